"""Start a Command and see it to its end: the one place that starts a job's processes.

The launcher runs in a session of its own, so that a Ctrl-C at the terminal comes to us alone; we pass it on as
SIGTERM, wait, and kill. Should we be killed ourselves, the kernel sends the launcher SIGTERM.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from pathlib import Path

from hvd_mnist.errors import LaunchError, PeerLost, Preempted, RankFailed
from hvd_mnist.launch import failure, reach
from hvd_mnist.launch.job import Command
from hvd_mnist.launch.output import Fold, Lines, RankLogs, shown

SAVE_SECONDS = 10.0  # for the ranks of train to save, before mpirun is sent SIGTERM
STOP_SECONDS = 20.0  # from SIGTERM to SIGKILL of the launcher; horovodrun itself takes up to 10
DRAIN_SECONDS = 2.0  # for output that is under way when the launcher has ended
ALONE_SECONDS = 20.0  # that other ranks may run on when one has failed; Hydra would let them run for ever
TAIL_LINES = 20
_PR_SET_PDEATHSIG = 1


def run(command: Command, log_dir: str | None = None, timeout: float | None = None, prefix_output: bool = False) -> int:
    """Run a command to its end, show its output, keep each rank's in a file.

    Args:
        log_dir: folder of the rank logs; None: logs/ in the folder of --run-dir, or under runs/.
        timeout: seconds after which the job is stopped.
        prefix_output: the rank before every line.

    Returns:
        0; for a job that a signal to this process stopped, 200 where every rank ended after a complete save, else
        128 + n. Anything else is raised.

    Raises:
        RankFailed: with the status of the rank that failed first (128 + n for signal n).
        PeerLost: a host was lost, and no rank of it could say why.
        LaunchError: the job did not start, or ran past ``timeout``.
    """
    reach.check(command)
    logs = RankLogs(Path(log_dir) if log_dir else default_log_dir(command.argv))
    watcher = _Watcher(command, logs, prefix_output)
    process = late = None
    stopped, ended = 0, False
    try:
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, _raise_stopped)
        signal.signal(signal.SIGUSR1, lambda number, frame: _ask_to_stop(command, number))
        process = _start(command)
        ended = watcher.watch(process, time.monotonic() + timeout if timeout else None, alone=ALONE_SECONDS)
    except KeyboardInterrupt:
        stopped = signal.SIGINT
    except _Stopped as error:
        stopped = error.signum
    except TimeoutError:
        late = f"the job was still running after {timeout:g} s and has been stopped"
    finally:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)  # a second one ends us at once, and the kernel the launcher
        if process is not None and not ended:
            with contextlib.suppress(KeyboardInterrupt):
                _stop(process, watcher, may_save=bool(stopped or late))
    watcher.finish()
    if logs.broken:
        print(f"hvd-mnist: {logs.broken}", file=sys.stderr)
    if stopped:
        saved = bool(watcher.endings) and all(e.status == Preempted.exit_status for e in watcher.endings)
        after = ", after a complete save" if saved else ""
        print(f"hvd-mnist: stopped by {signal.Signals(stopped).name}{after}", file=sys.stderr, flush=True)
        return Preempted.exit_status if saved else 128 + stopped
    if late:
        raise LaunchError(late, "a larger --timeout, or fewer --epochs")
    if process.returncode == 0 and (command.elastic or not watcher.endings):
        for ending in watcher.endings:
            print(f"hvd-mnist: the job went on without it: {ending.text(ours=True)}", file=sys.stderr, flush=True)
        return 0
    raise watcher.error(process.returncode)


def default_log_dir(argv: tuple[str, ...]) -> Path:
    """logs/ in the run folder where --run-dir is among the words, else in runs/ under a new name."""
    folder = _run_dir(argv) or Path("runs") / f"launch-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    return folder / "logs"


def _run_dir(argv: tuple[str, ...]) -> Path | None:
    for index, word in enumerate(argv):
        name, given, value = word.partition("=")
        if name == "--run-dir":
            return Path(value if given else argv[index + 1])
    return None


class _Stopped(Exception):
    def __init__(self, signum: int):
        super().__init__()
        self.signum = signum


def _raise_stopped(signum, frame):
    raise _Stopped(signum)


def _ask_to_stop(command: Command, number: int) -> None:
    """SIGUSR1: ranks of ``train`` are asked by the file STOP to save and stop, which takes as long as it takes.

    Launchers differ in what they make of the signal itself: mpirun hands it on, horovodrun ends at once.
    """
    folder = _run_dir(command.argv) if "hvd_mnist" in command.argv else None
    if folder is None:
        _raise_stopped(number, None)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "STOP").touch()
    except OSError:
        _raise_stopped(number, None)


def _start(command: Command) -> subprocess.Popen:
    libc, parent = ctypes.CDLL(None), os.getpid()
    # One rank alone has no guard beside it and is killed; a launcher is asked, so that it takes its ranks along.
    farewell = signal.SIGKILL if command.tag is None else signal.SIGTERM

    def end_with_parent() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, farewell)
        if os.getppid() != parent:
            os._exit(143)

    try:
        return subprocess.Popen(
            command.argv,
            env=dict(command.env),
            cwd=command.cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=end_with_parent,
        )
    except OSError as error:
        raise LaunchError(
            f"cannot start {command.argv[0]}: {error.strerror}", "check the path of the program"
        ) from None


def _stop(process: subprocess.Popen, watcher: _Watcher, may_save: bool) -> None:
    """Ask the launcher to end its ranks; kill what has not ended in STOP_SECONDS."""
    import psutil

    family = []
    with contextlib.suppress(psutil.Error):
        family = psutil.Process(process.pid).children(recursive=True)
    try:
        if may_save and watcher.hands_on_usr1:
            process.send_signal(signal.SIGUSR1)
            with contextlib.suppress(TimeoutError):
                watcher.watch(process, time.monotonic() + SAVE_SECONDS)
        if process.returncode is None:
            process.terminate()
        with contextlib.suppress(TimeoutError):
            watcher.watch(process, time.monotonic() + STOP_SECONDS)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        for one in family:
            with contextlib.suppress(psutil.Error):
                one.kill()
        process.wait()


class _Watcher:
    """Reads the launcher's two streams: lines to the terminal and to the rank logs, endings to ``endings``."""

    def __init__(self, command: Command, logs: RankLogs, prefixed: bool):
        self.command, self.logs, self.prefixed = command, logs, prefixed
        self.endings: list[failure.Ending] = []
        self.launcher_said: deque[str] = deque(maxlen=200)
        self._ours = "hvd_mnist" in command.argv  # as in: python -m hvd_mnist train
        # Told to stop by SIGTERM, Open MPI kills the ranks a second after they hear of it, and no longer reads what
        # they say. SIGUSR1 it hands on at once; the trainer takes it as the same wish.
        self.hands_on_usr1 = command.launcher.startswith("openmpi") and self._ours
        self._fold = Fold()
        self._lines = {1: Lines(command.tag), 2: Lines(command.tag)}

    def watch(self, process: subprocess.Popen, until: float | None, alone: float | None = None) -> bool:
        """Until the launcher has ended and its output is read; then True. TimeoutError at ``until`` (monotonic s).

        Args:
            alone: seconds after a rank's failure at which waiting for the launcher ends; then False.
        """
        failed_at = None
        with selectors.DefaultSelector() as selector:
            for number, stream in ((1, process.stdout), (2, process.stderr)):
                if not stream.closed:
                    selector.register(stream, selectors.EVENT_READ, number)
            gone = None
            while selector.get_map():
                for key, _ in selector.select(0.1):
                    data = os.read(key.fd, 1 << 16)
                    self._take(key.data, data)
                    if not data:
                        selector.unregister(key.fileobj)
                        key.fileobj.close()
                now = time.monotonic()
                self._show(now)
                if gone is None and process.poll() is not None:
                    gone = now
                if gone is not None and now - gone > DRAIN_SECONDS:
                    break  # an orphan may hold a pipe open
                if failed_at is None and self._has_failed():
                    failed_at = now
                if alone is not None and failed_at is not None and now - failed_at > alone and gone is None:
                    return False
                if until is not None and now > until:
                    raise TimeoutError
        try:
            process.wait(None if until is None else max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise TimeoutError from None
        return True

    def _has_failed(self) -> bool:
        """A rank failed; in an elastic job, one that had lost others and gave up: it outlives all other failures."""
        if not self.command.elastic:
            return bool(self.endings)
        return any(ending.status == PeerLost.exit_status and not ending.told for ending in self.endings)

    def _take(self, stream: int, data: bytes) -> None:
        now = time.monotonic()
        for rank, text in self._lines[stream].feed(data):
            ending = failure.ending_in(text)
            if ending:
                self.endings.append(ending)
                rank = ending.rank
            self.logs.add(rank, text)
            if rank is None:
                self.launcher_said.append(text)
                if self.endings:
                    continue  # a launcher says much when a rank has failed, and none of it is news
            self._fold.add(rank, stream, text, now)

    def _show(self, now: float, rest: bool = False) -> None:
        for ranks, stream, text in self._fold.ready(now, rest):
            out = sys.stdout if stream == 1 else sys.stderr
            with contextlib.suppress(OSError):  # a reader that has gone (| head) does not end the job
                print(shown(ranks, text, self.command.placement.size, self.prefixed), file=out, flush=True)
        self.logs.flush()

    def finish(self) -> None:
        """Show what is still held back."""
        for stream in (1, 2):
            self._take(stream, b"")
        self._show(time.monotonic(), rest=True)

    def error(self, status: int) -> Exception:
        """What is to be raised for a job that failed; the first failing rank's last lines are shown before."""
        first = failure.first_failure(self.endings)
        if self.command.elastic and self.endings:  # the job outlived the first ones
            first = next((ending for ending in reversed(self.endings) if not ending.told), first)
        if first is None and self.command.tag is None:
            first = failure.Ending(0, os.uname().nodename, status if status > 0 else 128 - status, False)
        lost = failure.lost_hosts(self.command.launcher, self.endings, self.launcher_said, self.command.placement)
        if lost and not self.command.elastic and (first is None or first.told or first.status == PeerLost.exit_status):
            return PeerLost(
                f"lost {', '.join(lost)} in mid-job: its connection ended, and its ranks said nothing",
                f"is it up? then run the same command again (the launcher's words: {self.logs.path(None)})",
            )
        if first:
            self._show_tail(first)
            return RankFailed(first.text(self._ours), f"its output is in {self.logs.path(first.rank)}", first.status)
        known = failure.cause_in("\n".join(self.launcher_said))
        how = failure.meaning(status if status > 0 else 128 - status, ours=False)
        what, hint = known or (self._said(), "see the lines above, or hvd-mnist launch --dry-run")
        return LaunchError(f"{self.command.launcher} {how}, and no rank said why: {what}", hint)

    def _show_tail(self, first: failure.Ending) -> None:
        """The failing rank's lines again, where others have spoken since."""
        lines = list(self.logs.last.get(first.rank, ()))[-TAIL_LINES:]
        if self.command.placement.size > 1 and lines:
            print(f"-- the last lines of rank {first.rank} on {first.host}, which failed first:", file=sys.stderr)
            for line in lines:
                print(f"[{first.rank}] {line}", file=sys.stderr)
            sys.stderr.flush()

    def _said(self) -> str:
        lines = [line.strip() for line in self.launcher_said if line.strip(" -\t*")]
        return " / ".join(lines[-3:])[:300] or "it said nothing"
