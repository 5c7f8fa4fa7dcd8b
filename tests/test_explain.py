"""``hvd-mnist explain``: each status and message is found, and the texts are those that programs really print."""

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner

from hvd_mnist import errors
from hvd_mnist.cluster.hostfile import parse_hosts
from hvd_mnist.cluster.identity import check_agrees, identity_from
from hvd_mnist.cluster.placement import place
from hvd_mnist.commands.explain import explain
from hvd_mnist.explain.lookup import MESSAGES, in_log, lookup, recognize
from hvd_mnist.explain.show import as_markdown
from hvd_mnist.explain.statuses import STATUSES, of_status
from hvd_mnist.launch.failure import cause_in

ROOT = Path(__file__).resolve().parents[1]


def said(*words, **more):
    return CliRunner().invoke(explain, words, catch_exceptions=True, **more)


def kinds(kind=errors.HvdMnistError):
    return [kind, *(below for child in kind.__subclasses__() for below in kinds(child))]


# --- the table -----------------------------------------------------------------------------------------------


def test_every_status_of_ours_has_an_entry():
    ours = {kind.exit_status for kind in kinds()} | {0}
    assert len(ours) >= 12 and ours <= {entry.status for entry in STATUSES if entry.said_by == "hvd_mnist"}


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.__name__)
def test_the_name_of_an_error_is_its_status(kind):
    assert [entry.status for entry in lookup(kind.__name__)] == [kind.exit_status]


@pytest.mark.parametrize("entry", MESSAGES, ids=lambda entry: entry.shown[:40])
def test_a_message_is_found_in_its_own_text_and_no_other_entry_takes_it(entry):
    assert recognize(entry.shown) is entry
    assert recognize(f"[1]<stderr>:{entry.shown}") is entry, "behind a launcher's mark"
    assert entry.means and entry.check and entry.do


def test_no_text_stands_twice_and_ordinary_lines_are_not_explained():
    shown = [entry.shown for entry in STATUSES + MESSAGES]
    assert len(set(shown)) == len(shown)
    usual = (
        "epoch 1: test accuracy 98.10% (9810 of 10000), test loss 0.0610",
        "step 20/30  epoch 2  loss 0.8671  accuracy 72.81%  7837 images/s",
        "replicas proven equal: 5 comparisons of all ranks, 0.28 s",
        "rank 1 of 2, local rank 1, host vm, pid 17872",
        "launcher        horovodrun-gloo (HOROVOD_RANK=1 and HOROVOD_SIZE=2)",
        "run folder /runs/one",
        "hvd-mnist: stopped by SIGTERM, after a complete save",
        "",
    )
    for line in usual:
        assert recognize(line) is None, line
    assert recognize("a" * 100_000 + " /" * 50_000) is None


# --- the texts are real --------------------------------------------------------------------------------------


def test_errors_that_this_package_raises_are_known():
    with pytest.raises(errors.LaunchError) as many:
        place(parse_hosts("h1:2"), np=4)
    identity = identity_from({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"})
    with pytest.raises(errors.WorldError) as copies:
        check_agrees(identity, 0, 1)
    for text in (str(many.value), str(copies.value)):
        assert recognize(f"hvd-mnist: error: rank 1 on h, in step 5: {text}") is not None, text


@pytest.mark.parametrize(
    "text",
    [
        "but Horovod counts",
        " visible GPU",
        "used a device before its GPU was chosen",
        "all claim GPU",
        "replicas differ in ",
        "has another model than rank 0",
        "holds a run already",
        "is in use by",
        "going to the network is forbidden",
        "stopped after step",
        "ranks were lost or changed",
        "did not come: ",
        "are all taken",
        "skipped checkpoint",
        "cannot be \"\n            \"compiled by XLA here",
        "is not finite on rank",
    ],
)  # fmt: skip
def test_words_of_our_messages_stand_in_the_code(text):
    code = "".join(path.read_text() for path in (ROOT / "hvd_mnist").rglob("*.py") if "explain" not in path.parts)
    assert text in code


HOROVOD_SAYS = (
    "submitted to be reduced, gathered or broadcasted by subset of ranks",
    "is stalled for longer than ",
    "Horovod has been shut down",
    "Mismatched data types",
    " tensor shapes: One rank sent",
    "Mismatched operations",
    "name as another tensor",
    "Wait timeout after ",
    "Connection closed by peer",
    "Requested more processes",
    "Invalid host input",
    "could not connect to some hosts via ssh",
    "Timed out waiting for ",
    "nable to find a set of common task-to-task",
    "Gloo support has not been built",
    "exited with non-zero",
)


def test_horovods_messages_stand_in_horovod():
    """The very words, in the library and the scripts that are installed here."""
    found = find_spec("horovod")
    if found is None:
        pytest.skip("Horovod is not installed")
    folder = Path(found.submodule_search_locations[0])
    files = [*folder.glob("tensorflow/mpi_lib*.so"), *folder.glob("runner/**/*.py")]
    held = b"\n".join(path.read_bytes() for path in files)
    for text in HOROVOD_SAYS:
        assert text.encode() in held, text
        assert any(text.split("%")[0] in entry.shown or entry.is_in(text) for entry in MESSAGES), text


@pytest.mark.parametrize(
    "line",
    [
        "bash: line 1: orted: command not found",
        "There are not enough slots available in the system",
        "ssh: Could not resolve hostname h9: Name or service not known",
        "Host key verification failed.",
        "root@h1: Permission denied (publickey).",
        "ssh: connect to host h1 port 22: Connection refused",
        "ssh: connect to host h1 port 22: No route to host",
    ],
)
def test_what_launch_recognizes_is_explained(line):
    assert cause_in(line) is not None and recognize(line) is not None


@pytest.mark.parametrize(
    "text, words",
    # What ncclGetErrorString of NCCL 2.32.3 answers to 1 to 6, asked on a machine without a GPU, as Horovod shows it.
    [
        ("ncclCommInitRank failed: unhandled cuda error (run with NCCL_DEBUG=INFO for details)", "driver refused"),
        ("ncclCommInitRank failed: unhandled system error (run with NCCL_DEBUG=INFO for details)", "shared memory"),
        ("ncclAllReduce failed: internal error - please report this issue to the NCCL developers", "inside"),
        ("ncclAllReduce failed: invalid argument (run with NCCL_DEBUG=WARN for details)", "inside"),
        ("ncclCommInitRank failed: invalid usage (run with NCCL_DEBUG=WARN for details)", "Two ranks use one GPU"),
        ("NCCL async error: remote process exited or there was a network error", "Another rank is gone"),
        ("NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000", "Two ranks use one GPU"),
        ("Multiple Ranks are using the same GPU/Partition. Set NCCL_MULTI_RANK_GPU_ENABLE=1 to enable", "Two ranks"),
    ],
)
def test_what_nccl_says_through_horovod_is_explained(text, words):
    found = recognize(f"tensorflow.python.framework.errors_impl.UnknownError: {text} [Op:HorovodAllreduce]")
    assert found is not None and words in found.means


# --- statuses ------------------------------------------------------------------------------------------------


def test_statuses_of_signals():
    assert "want of memory" in of_status(137).means
    assert "SIGQUIT" in of_status(131).means and of_status(131).status == 131
    assert of_status(99) is None and of_status(128) is None


@pytest.mark.parametrize(
    "line, status",
    [
        ("Exit code: 137", 137),
        ("  Exit code:    201", 201),
        ("rank 1 on h2 ended with status 10 (ReplicasDiffer)", 10),
        ("mpirun noticed that process rank 1 with PID 7 on node h exited on signal 9 (Killed).", 137),
        ("rank 1 on h2 was ended by signal 11 (SIGSEGV)", 139),
        ("Exit code: 0", None),
    ],
)
def test_a_status_in_a_line(line, status):
    found = recognize(line)
    assert (found and found.status) == status


# --- the command ---------------------------------------------------------------------------------------------


def test_a_status_a_message_and_words():
    assert "Another rank died" in said("201").output
    assert "--prefix" in said("orted:", "command", "not", "found").output
    assert said("Duplicate GPU detected").output.count("check") >= 1
    assert "SIGKILL" in said("SIGKILL").output


def test_unknown_is_an_error():
    for words in (("zorg",), ("299",), ("99",)):
        ended = said(*words)
        assert isinstance(ended.exception, errors.HvdMnistError) and "--list" in str(ended.exception)
    assert isinstance(said().exception, errors.UsageError)


def test_a_log_is_read_from_standard_input():
    log = (
        b"epoch 1: test accuracy 90%\n"
        b"[0]<stderr>:bash: orted: command not found\n"
        b"[1]<stderr>:bash: orted: command not found\n"
        b"\xff\xfe broken bytes\n"
        b"Exit code: 137\n"
    )
    ended = subprocess.run(
        [sys.executable, "-m", "hvd_mnist", "explain", "-"], input=log, capture_output=True, cwd=ROOT, timeout=60
    )
    text = ended.stdout.decode()
    assert ended.returncode == 0, ended.stderr
    assert "line 2, 2 times" in text and "line 5: Exit code: 137" in text
    assert text.index("orted") < text.index("exit status 137")
    assert isinstance(said("-", input="all is well\n").exception, errors.HvdMnistError)


def test_a_log_may_hold_what_moves_a_cursor():
    (found,) = in_log(["\x1b[2Jbash: orted: command not found\n"])
    assert "\x1b" not in found.text and found.line == 1


def test_troubleshooting_is_made_from_the_table():
    page = ROOT / "docs" / "troubleshooting.md"
    assert page.read_text(encoding="utf-8") == as_markdown(), (
        "out of step: hvd-mnist explain --markdown > docs/troubleshooting.md"
    )
    for entry in MESSAGES:
        assert f"### `{entry.shown}`" in page.read_text(encoding="utf-8")
    assert said("--markdown").output == as_markdown()


def test_commands_that_are_advised_exist():
    """Each ``hvd-mnist WORD`` in the table is a command."""
    from hvd_mnist.cli import COMMANDS

    text = as_markdown()
    words = set(re.findall(r"hvd-mnist ([a-z][a-z-]+)", text))
    assert len(words) > 5 and words <= set(COMMANDS), words - set(COMMANDS)
