"""Exit statuses: our own (hvd_mnist/errors.py), the shell's, and those of signals."""

from __future__ import annotations

import signal

from hvd_mnist.explain.entry import Entry


def _status(number: int, said_by: str, means: str, check: str, do: str) -> Entry:
    return Entry(f"exit status {number}", said_by, means, check, do, status=number)


_OURS, _SHELL, _SIGNAL = "hvd_mnist", "the shell", "a signal"
_LINE = "the line `hvd-mnist: error: ...`, on the screen or in RUN/logs"

STATUSES = (
    _status(0, _OURS, "Done; nothing failed.", "RUN/summary.json is there", "hvd-mnist report RUN"),
    _status(
        1,
        _OURS,
        "Something failed that has no status of its own. horovodrun itself always ends with 1, whatever its ranks "
        "ended with.",
        _LINE + "; under horovodrun the first `Exit code:` it tells",
        "hvd-mnist launch, which ends with the status of the rank that failed first",
    ),
    _status(
        2,
        _OURS,
        "An option, a config file or an argument is wrong. Nothing was trained.",
        _LINE + "; it names the option and what was expected",
        "hvd-mnist COMMAND --help",
    ),
    _status(
        3,
        _OURS,
        "This machine cannot train: a package, a build, a GPU or memory is missing, or ranks have other versions.",
        "hvd-mnist doctor",
        "what the doctor says under its table; for Horovod: hvd-mnist build-horovod",
    ),
    _status(
        4,
        _OURS,
        "The data set is missing, broken or not what was asked for. On several hosts: on one of them.",
        "hvd-mnist data path mnist; hvd-mnist data fetch mnist",
        "fetch it where there is a network and copy the file, or set HVD_MNIST_CACHE to a folder that all hosts have",
    ),
    _status(
        5,
        _OURS,
        "A checkpoint cannot be written, read or used, or the run folder is already in use.",
        "hvd-mnist checkpoint list RUN; hvd-mnist checkpoint verify RUN; df -h RUN",
        "--resume auto to go on with a run, another --run-dir for a new one",
    ),
    _status(
        6,
        _OURS,
        "The job could not be started (hosts, slots, ssh, MPI), or it ran past --timeout.",
        "hvd-mnist doctor -H host1:4,host2:4; hvd-mnist launch --dry-run ...",
        "what the last line says; docs/launching.md",
    ),
    _status(
        7,
        _OURS,
        "Launcher and Horovod disagree on who is in the job, or ranks stand in different collectives. Training would "
        "have gone on with unconnected copies, or waited for ever.",
        "hvd-mnist whoami, started by the same launcher",
        "start with the launcher of the MPI that Horovod was built with, or horovodrun --gloo",
    ),
    _status(
        8,
        _OURS,
        "A benchmark ran to its end and is below the floor that was asked for.",
        "the table above; is something else running on the machine?",
        "run it again on an idle machine, or lower the floor",
    ),
    _status(
        10,
        _OURS,
        "Two ranks hold different variables: gradients were not averaged on all ranks, or a rank changed its own copy. "
        "The checkpoint before is still good.",
        "the line names the first variable that differs and the ranks",
        "wrap the optimizer in DistributedOptimizer on every rank; no assignment under `if rank == 0`; resume",
    ),
    _status(
        11,
        _OURS,
        "A loss, gradient or weight is NaN or infinite. Nothing that is not finite was saved.",
        "RUN/logs/nan-rank-N.json: step, tensor and the samples of that batch",
        "lower --learning-rate, raise --warmup-epochs, look at those samples; then --resume auto",
    ),
    _status(
        124,
        _SHELL,
        "`timeout` ended the command because its time was over.",
        "did the job stand still? RUN/logs/rank-N.log ends in a stack then",
        "a longer limit, or mend what stood still",
    ),
    _status(
        126,
        _SHELL,
        "The program was found and cannot be executed.",
        "ls -l PROGRAM; its first line",
        "chmod +x PROGRAM, or python PROGRAM",
    ),
    _status(
        127,
        _SHELL,
        "The program was not found: on a remote host PATH is another one, since ssh starts no login shell there.",
        "ssh HOST which PROGRAM",
        "give the full path, or hvd-mnist launch, which does",
    ),
    _status(130, _SIGNAL, "Ended by Ctrl-C (SIGINT).", "you, or a launcher that was stopped", "start it again"),
    _status(
        134,
        _SIGNAL,
        "Aborted (SIGABRT): native code found a fault of its own, often in MPI, Gloo or NCCL after a peer was lost.",
        "the lines above it; the first rank that failed",
        "mend what that rank says; the others are consequences",
    ),
    _status(
        135,
        _SIGNAL,
        "Bus error (SIGBUS): memory that is mapped from a file has no room behind it, most often /dev/shm in a "
        "container.",
        "df -h /dev/shm",
        "docker run --shm-size=1g ... (or --ipc=host)",
    ),
    _status(
        137,
        _SIGNAL,
        "Killed (SIGKILL), often by the kernel for want of memory, or by a scheduler's limit.",
        "dmesg | grep -i 'killed process'; the container's or the job's memory limit",
        "fewer ranks on that host, a smaller --batch-size, or a higher limit; then --resume auto",
    ),
    _status(
        139,
        _SIGNAL,
        "Segmentation fault (SIGSEGV) in native code: often Horovod built for another TensorFlow, or two MPIs at once.",
        "hvd-mnist doctor --run",
        "hvd-mnist build-horovod, which builds it for the TensorFlow that is installed",
    ),
    _status(
        143,
        _SIGNAL,
        "Told to stop (SIGTERM) before it could save: by a launcher after another rank failed, or by a scheduler.",
        "which rank failed first: RUN/logs, the launcher's first line about an exit",
        "mend that; then the same command with --resume auto",
    ),
    _status(
        200,
        _OURS,
        "Preempted: stopped by a signal, a file STOP or a time limit, after a complete save. No work is lost.",
        "RUN/checkpoints has a checkpoint of the step that the last line names",
        "the same command again, with --resume auto --run-dir RUN",
    ),
    _status(
        201,
        _OURS,
        "Another rank died, stalled or lost its host; this rank is well. Trying again can work.",
        "the first rank that failed: its line, RUN/logs/rank-N.log, the launcher's output",
        "the same command with --resume auto; or hvd-mnist launch --max-restarts 3 -- train --run-dir RUN",
    ),
    _status(
        255,
        "ssh",
        "ssh could not log in, or its connection was lost; what ran at the other end did not end by itself.",
        "ssh -o BatchMode=yes HOST true",
        "hvd-mnist doctor -H HOST, which says why",
    ),
)


def of_status(number: int) -> Entry | None:
    """The entry of an exit status; for 128 + n of a signal without one, what the system calls it."""
    known = next((entry for entry in STATUSES if entry.status == number), None)
    if known or number - 128 not in set(signal.Signals):
        return known
    name = signal.Signals(number - 128)
    return _status(
        number,
        _SIGNAL,
        f"Ended by signal {number - 128} ({name.name}: {signal.strsignal(name) or 'no description'}).",
        "who sent it: a launcher, a scheduler, a person, or the program's own fault",
        "mend that; then the same command with --resume auto",
    )
