"""A conversation with the agent on one host, over ssh (or, for this machine, without). Every wait has a limit."""

from __future__ import annotations

import json
import os
import queue
import shlex
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from hvd_mnist.cluster.host import Host
from hvd_mnist.doctor.agent import MARK, PROTOCOL
from hvd_mnist.launch.job import Ssh
from hvd_mnist.launch.ssh import failure_in
from hvd_mnist.launch.ssh import words as ssh_words

MOST_THREADS = 256
PACKAGE_PARENT = Path(__file__).parent.parent.parent


class NoAnswer(Exception):
    """A host did not do what it was asked: what was found, and what to do about it."""

    def __init__(self, found: str, do: str):
        super().__init__(found)
        self.found, self.do = found, do


def login_of(host: Host, ssh: Ssh) -> Ssh:
    """How to log in on one host: its own user and port, else those of all."""
    return Ssh(host.user or ssh.user, host.port or ssh.port, ssh.identity)


def reminder(host: Host, login: Ssh) -> str:
    """The short ssh command that a person would type."""
    port = ["-p", str(login.port)] if login.port else []
    identity = ["-i", login.identity] if login.identity else []
    return shlex.join(["ssh", *port, *identity, f"{login.user}@{host.name}" if login.user else host.name])


def agent_words(environ: Mapping[str, str] = os.environ) -> list[str]:
    """The agent's command: this Python, and this package where the environment does not have it by itself."""
    path = [entry for entry in environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    if str(PACKAGE_PARENT) not in path and PACKAGE_PARENT != Path(sysconfig.get_path("purelib")):
        path.insert(0, str(PACKAGE_PARENT))
    settings = [f"PYTHONPATH={os.pathsep.join(path)}"] if path else []
    return ["env", *settings, sys.executable, "-m", "hvd_mnist.doctor.agent"]


def is_here(name: str) -> bool:
    """Whether a host's name means this machine, by name alone."""
    own = socket.gethostname().lower()
    name = name.lower().rstrip(".")
    return name in ("localhost", "::1", own, own.partition(".")[0]) or name.startswith("127.")


class Session:
    """One host's agent, started and greeted. ``close`` ends it, whatever it is doing.

    Args:
        limit: seconds until it must have greeted.

    Raises:
        NoAnswer: it cannot be reached or started, or says nothing in time.
    """

    def __init__(self, host: Host, ssh: Ssh, limit: float):
        self.host, self.login = host, login_of(host, ssh)
        words = agent_words()
        if not is_here(host.name):
            words = [*ssh_words(self.login), "-T", "--", host.name, shlex.join(["exec", *words])]
        self._errors = tempfile.TemporaryFile("w+", errors="replace")
        try:
            self._process = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True, errors="replace"
            )
        except OSError:
            raise NoAnswer("no ssh on this machine", "apt-get install openssh-client") from None
        self._lines: queue.SimpleQueue[dict | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()
        try:
            hello = self._next(limit)
            if hello.get("hello") != PROTOCOL:
                raise NoAnswer("its hvd_mnist is another version", "install the same hvd_mnist on all hosts")
        except NoAnswer:
            self.close()
            raise

    def _read(self) -> None:
        for line in self._process.stdout:
            if line.startswith(MARK):
                self._lines.put(json.loads(line.removeprefix(MARK)))
        self._lines.put(None)

    def _next(self, limit: float) -> dict:
        try:
            said = self._lines.get(timeout=max(0.01, limit))
        except queue.Empty:
            raise NoAnswer(f"no answer within {limit:.0f} s", f"{reminder(self.host, self.login)} true") from None
        if said is None:
            try:
                status = self._process.wait(5)
            except subprocess.TimeoutExpired:
                status = None
            self._errors.seek(0)
            raise NoAnswer(*why_ended(self._errors.read(), status, self.host, self.login))
        return said

    def ask(self, name: str, wait: float, /, **what):
        """The answer to one question, waited for at most ``wait`` seconds; ``what`` are its arguments."""
        try:
            self._process.stdin.write(json.dumps({"ask": name, **what}) + "\n")
            self._process.stdin.flush()
        except OSError:
            pass  # it has ended; the next line says how
        said = self._next(wait)
        if "error" in said:
            raise NoAnswer(f"{name}: {said['error']}", "please report this")
        return said["answer"]

    def clock_offset(self, tries: int = 5) -> tuple[float, float]:
        """(seconds by which the host's clock is ahead of this machine's, uncertainty): the quickest of some tries."""
        found = []
        for _ in range(tries):
            asked, began = time.time(), time.monotonic()
            theirs = self.ask("clock", 20)
            took = time.monotonic() - began
            found.append((took / 2, theirs - (asked + took / 2)))
        uncertainty, offset = min(found)
        return offset, uncertainty

    def close(self) -> None:
        """End the agent: its input ends, and it ends what it has started. Safe to call twice."""
        try:
            self._process.stdin.close()
        except OSError:
            pass
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()


def why_ended(errors: str, status: int | None, host: Host, login: Ssh) -> tuple[str, str]:
    """(what went wrong, what to do) for an agent that ended, from what ssh, the shell and Python said.

    Args:
        errors: standard error of the ssh command.
        status: its exit status; 255 is ssh's own failure, any other the remote command's.
    """
    typed, name, python = reminder(host, login), host.name, sys.executable
    if status == 255 and (known := failure_in(errors, name, typed, login.port or 22)):
        return known
    if status in (126, 127):
        return f"no {python} there", f"make the same environment at the same path there, or share {sys.prefix}"
    if "No module named 'hvd_mnist.doctor" in errors or "No module named hvd_mnist.doctor" in errors:
        return "its hvd_mnist is another version, without a doctor", "install the same hvd_mnist on all hosts"
    if "No module named 'hvd_mnist" in errors:
        remedy = f"install it there, or copy {PACKAGE_PARENT / 'hvd_mnist'} to the same path there"
        return f"{python} there has no hvd_mnist", remedy
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    said = lines[-1][:300] if lines else "without a word"
    return f"ended with status {status}: {said}", f"{typed} {python} -V"


def open_all(hosts: Sequence[Host], ssh: Ssh, limit: float) -> dict[str, Session | NoAnswer]:
    """A session with each host, all at once; where it did not come about, why."""

    def one(host: Host) -> Session | NoAnswer:
        try:
            return Session(host, ssh, limit)
        except NoAnswer as wrong:
            return wrong

    return dict(zip((host.name for host in hosts), at_once(one, hosts), strict=True))


def at_once(work, items: Sequence) -> list:
    """``work`` of each item in its own thread; results in order. A Ctrl-C does not wait for the threads."""
    from multiprocessing.pool import ThreadPool

    if not items:
        return []
    with ThreadPool(min(len(items), MOST_THREADS)) as pool:
        return pool.map(work, items, chunksize=1)
