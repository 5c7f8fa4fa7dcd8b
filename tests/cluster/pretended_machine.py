"""One pretended machine (a process 1 in namespaces of its own) and one command that runs on it.

pretended_hosts.py makes hosts of machines: it adds the network, names, keys and sshd.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

INIT = Path(__file__).with_name("pretended_host_init.py")
SBIN = "/usr/local/sbin:/usr/sbin:/sbin"
NAMESPACES = ("--net", "--uts", "--mount", "--ipc", "--pid")


def find_tool(name: str) -> str | None:
    """Path of a command, looked for in the system folders too (a user's PATH often lacks /usr/sbin)."""
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:{SBIN}")


def checked(argv: Sequence[str], text: str | None = None) -> None:
    """Run a command of the set-up, with ``text`` as its input; a RuntimeError with what it said where it fails."""
    environment = {**os.environ, "PATH": f"/usr/bin:/bin:{SBIN}"}
    done = subprocess.run(argv, input=text, capture_output=True, text=True, timeout=30, env=environment, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)} {text or ''}: status {done.returncode}: {done.stderr.strip()}")


class TimeLimit(AssertionError):
    """A command on a pretended host ran past its limit and was killed, with all that it had started."""


@dataclass(frozen=True)
class Done:
    """How a command ended: ``returncode`` as in subprocess (-n for signal n), and what it printed."""

    argv: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str
    seconds: float

    def checked(self) -> Done:
        """Itself where the status is 0; otherwise an AssertionError that shows the output."""
        assert self.returncode == 0, f"status {self.returncode} from {' '.join(self.argv)}\n{self.stdout}{self.stderr}"
        return self


class Job:
    """A command that runs on a pretended host. Output goes to files, so that an orphan cannot hold a pipe open."""

    def __init__(self, argv: Sequence[str], process: subprocess.Popen, stem: Path, kill_all: Callable[[], None]):
        self.argv, self.process, self.stem, self.kill_all = tuple(argv), process, stem, kill_all
        self.began = time.monotonic()

    @property
    def stdout(self) -> str:
        return self.stem.with_suffix(".out").read_text(errors="replace")

    @property
    def stderr(self) -> str:
        return self.stem.with_suffix(".err").read_text(errors="replace")

    @property
    def pid(self) -> int:
        """The command's process as seen from outside (``process`` itself is nsenter, which waits for it)."""
        return only_child(self.process.pid)

    def send_signal(self, signum: int, to_group: bool = False) -> None:
        """A signal to the command, as ``kill`` does, or to its whole process group, as a terminal's Ctrl-C does."""
        group = os.getpgid(self.pid)
        members = [p.pid for p in psutil.process_iter() if to_group and _pgid(p.pid) == group]
        for pid in set(members) - {self.process.pid} or {self.pid}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signum)

    def wait_for_output(self, pattern: str, timeout: float) -> re.Match:
        """The first match of a regular expression in standard output, waited for; a TimeLimit after ``timeout`` s."""
        until = time.monotonic() + timeout
        while not (found := re.search(pattern, self.stdout)):
            if self.process.poll() is not None or time.monotonic() > until:
                self.kill()
                raise TimeLimit(f"no {pattern!r} from {' '.join(self.argv)}\n{self.stdout}{self.stderr}")
            time.sleep(0.05)
        return found

    def wait(self, timeout: float) -> Done:
        """Wait for the end. Past ``timeout`` seconds: kill all that runs on all hosts (daemons apart), TimeLimit."""
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise TimeLimit(f"over {timeout} s: {' '.join(self.argv)}\n{self.stdout}{self.stderr}") from None
        return Done(self.argv, self.process.returncode, self.stdout, self.stderr, time.monotonic() - self.began)

    def kill(self) -> None:
        """Kill the command, and every other job that runs on the hosts."""
        self.process.kill()
        self.process.wait()
        self.kill_all()


class Machine:
    """A process 1 in namespaces of its own. It, and all in it, ends when ``close`` is called or this process ends."""

    def __init__(self, hostname: str, log: Path, tmpfs=(), folders=(), binds=()):
        settings = {
            "hostname": hostname,
            "tmpfs": [str(path) for path in tmpfs],
            "folders": [str(path) for path in folders],
            "binds": [[str(source), str(target)] for source, target in binds],
        }
        command = ["unshare", *NAMESPACES, "--fork", "--kill-child", "--mount-proc", sys.executable, "-I", "-S", INIT]
        with log.open("a") as errors:
            self.process = subprocess.Popen(
                [*command, json.dumps(settings)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,  # a Ctrl-C meant for pytest must not end hosts before their tests' clean-up
            )
        readable, _, _ = select.select([self.process.stdout], [], [], 30)
        if not readable or self.process.stdout.readline() != b"ready\n":
            self.close()
            raise RuntimeError(f"pretended host {hostname} did not start: {log.read_text().strip()}")
        self.pid = only_child(self.process.pid)
        self.pid_namespace = os.readlink(f"/proc/{self.pid}/ns/pid")

    def enter(self, *namespaces: str) -> list[str]:
        """The words that put a command inside: all namespaces, or those named."""
        return ["nsenter", "--target", str(self.pid), *(namespaces or NAMESPACES)]

    def processes(self) -> list[psutil.Process]:
        """All that runs inside, process 1 apart."""
        inside = []
        for process in psutil.process_iter():
            with contextlib.suppress(OSError):
                if process.pid != self.pid and os.readlink(f"/proc/{process.pid}/ns/pid") == self.pid_namespace:
                    inside.append(process)
        return inside

    def close(self) -> None:
        self.process.stdin.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()  # --kill-child: process 1 goes with it
            self.process.wait()
        self.process.stdout.close()


def only_child(pid: int, limit: float = 10.0) -> int:
    """The process that unshare or nsenter has forked, waited for."""
    until = time.monotonic() + limit
    while time.monotonic() < until:
        if children := psutil.Process(pid).children():
            return children[0].pid
        time.sleep(0.005)
    raise ProcessLookupError(f"process {pid} has no child")


def _pgid(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def command_line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline()) or process.name()
    except psutil.Error:
        return f"process {process.pid}, ended meanwhile"
