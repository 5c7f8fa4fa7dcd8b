"""Stands beside one rank on its host: ``python -m hvd_mnist.launch.guard [--subnet ...] -- PROGRAM ...``.

Launchers differ in what they tell of a rank that ends, and some leave ranks behind when they are killed. With a
guard it is the same under every launcher:
- A rank that ends badly says so in one line, with rank, host, and status or signal (horovodrun over ssh would
  say 255 for any signal).
- When the launcher goes, however it goes, standard output has no reader any more: the guard sees that at once and
  ends the rank and all that it started. A rank never outlives its guard.
- Output goes on in whole lines. Launchers put their mark on each piece that they read, and a program may write a
  line in many pieces.
- What differs from host to host is decided on the host: the interface in a subnet, GPUs, threads.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time

from hvd_mnist.cluster.identity import Identity, identity_from
from hvd_mnist.errors import HvdMnistError, LaunchError

GRACE_SECONDS = 10.0  # between SIGTERM and SIGKILL: enough to end a step and save
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m hvd_mnist.launch.guard")
    parser.add_argument("--subnet", help="use the interface of this host in this network")
    parser.add_argument("--chdir", metavar="DIR")
    parser.add_argument(
        "--gpus", metavar="A-B=I,J", action="append", default=[], help="GPUs of the host of ranks A to B"
    )
    parser.add_argument("words", nargs=argparse.REMAINDER)
    options = parser.parse_args(argv)
    words = options.words[1:] if options.words[:1] == ["--"] else options.words
    try:
        me = identity_from(os.environ)
        enter(options.chdir, me)
        os.environ.update(settings(os.environ, me, options.subnet, options.gpus))
    except HvdMnistError as error:
        print(f"hvd-mnist: error: {error}", file=sys.stderr, flush=True)
        return error.exit_status
    return watch(words, me)


def enter(folder: str | None, me: Identity) -> None:
    """Go to the job's folder; horovodrun cannot where its path has a space, and mpirun stays where it is missing."""
    if folder is None:
        return
    try:
        os.chdir(folder)
    except OSError as error:
        raise LaunchError(
            f"rank {me.rank} on {me.host}: {folder}: {error.strerror}", "start from a folder that every host has"
        ) from None


def settings(environ, me: Identity, subnet: str | None, gpus: list[str]) -> dict[str, str]:
    """Variables that this host decides for its rank.

    Raises:
        LaunchError: no interface of this host lies in the subnet.
    """
    found = {}
    if subnet:
        from hvd_mnist.launch.network import interfaces

        here = interfaces()
        name = next((each.name for each in here if each.subnet == subnet), None)
        if name is None:
            shown = ", ".join(f"{each.name} {each.address}" for each in here)
            raise LaunchError(
                f"rank {me.rank}: {me.host} has no interface in {subnet}: it has {shown}",
                "choose another network with --network-interface",
            )
        found["NCCL_SOCKET_IFNAME"] = name
        if "HOROVOD_GLOO_IFACE" in environ:
            found["HOROVOD_GLOO_IFACE"] = name
    for entry in gpus:
        ranks, _, ids = entry.partition("=")
        first, _, last = ranks.partition("-")
        if int(first) <= me.rank <= int(last):
            found["CUDA_VISIBLE_DEVICES"] = ids
    if "OMP_NUM_THREADS" not in environ and me.local_size:
        found["OMP_NUM_THREADS"] = str(max(1, len(os.sched_getaffinity(0)) // me.local_size))
    return found


def watch(words: list[str], me: Identity) -> int:
    """Run the program to its end; the status is its own, or 128 + n for signal n."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)  # what the program leaves behind becomes ours to end
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    told: list[int] = []
    signal.set_wakeup_fd(wake_write)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: told.append(number))
    asked: list[int] = []  # passed on, without an end to it: the program may save, and stop by itself
    signal.signal(signal.SIGUSR1, lambda number, _: asked.append(number))
    guard = os.getpid()

    def die_with_guard() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guard:
            os._exit(137)

    try:
        # Hydra hands its ranks an open socket by number, so no file is closed.
        program = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, close_fds=False, preexec_fn=die_with_guard
        )
    except OSError as error:
        print(f"hvd-mnist: error: rank {me.rank} on {me.host}: {words[0]}: {error.strerror}", file=sys.stderr)
        _report(me, os.getpid(), 127, False)
        return 127
    relays = {stream.fileno(): Relay(target) for target, stream in ((1, program.stdout), (2, program.stderr))}
    poll = select.poll()
    for stream in (wake_read, *relays):
        poll.register(stream, select.POLLIN)
    for stream in (1, 2):
        poll.register(stream, 0)  # POLLERR and POLLHUP alone: the reader has gone
    kill_at = None
    while program.poll() is None:
        for stream, events in poll.poll(200):
            if stream == wake_read:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake_read, 512)
            elif stream in relays:
                if not relays[stream].pump(stream):
                    poll.unregister(stream)
            elif events & (select.POLLERR | select.POLLHUP | select.POLLNVAL):
                poll.unregister(stream)
                told.append(signal.SIGHUP)
        for relay in relays.values():
            relay.send_begun_line()
        while asked:
            program.send_signal(asked.pop())
        if told and kill_at is None:
            kill_at = time.monotonic() + GRACE_SECONDS
            program.send_signal(signal.SIGINT if told[0] == signal.SIGINT else signal.SIGTERM)
        if kill_at is not None and time.monotonic() >= kill_at:
            program.kill()
    _kill_orphans()
    for stream, relay in relays.items():
        while select.select([stream], [], [], 0)[0] and relay.pump(stream):
            pass
        relay.end()
    if program.returncode:
        _report(me, program.pid, program.returncode, bool(told))
    return program.returncode if program.returncode >= 0 else 128 - program.returncode


class Relay:
    """Hands on what the program writes to one stream, in whole lines. A line that stands begun goes on after 1 s."""

    def __init__(self, target: int):
        self._target, self._begun, self._since = target, b"", 0.0

    def pump(self, stream: int) -> bool:
        """Read once and hand on; False at the end of the stream."""
        data = os.read(stream, 1 << 16)
        self._since = time.monotonic()
        whole, newline, self._begun = (self._begun + data).rpartition(b"\n")
        self._write(whole + newline)
        return bool(data)

    def send_begun_line(self) -> None:
        """A prompt, a progress bar: hand it on without its line end, once it has stood for a second."""
        if self._begun and time.monotonic() - self._since > 1:
            self.end()

    def end(self) -> None:
        """Hand on the rest."""
        self._write(self._begun)
        self._begun = b""

    def _write(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # the reader has gone: the guard sees that by itself
            while data:
                data = data[os.write(self._target, data) :]


def _report(me: Identity, pid: int, status: int, told: bool) -> None:
    """One line, in one write; hvd_mnist/launch/failure.py reads it."""
    how = f"status {status}" if status >= 0 else f"signal {-status} ({signal.Signals(-status).name})"
    line = (
        f"hvd-mnist: rank {me.rank} on {me.host}, process {pid}, ended with {how}{', told to stop' if told else ''}\n"
    )
    with contextlib.suppress(OSError):
        os.write(2, line.encode())


def _kill_orphans() -> None:
    import psutil

    orphans = psutil.Process().children(recursive=True)
    for process in orphans:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(orphans, timeout=5)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
