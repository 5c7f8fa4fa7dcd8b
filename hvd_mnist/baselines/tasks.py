"""A cluster is jobs, a job is tasks, a task is a process with an address: read them, start them, watch them, end them.

    {"ps": ["localhost:2222"], "worker": ["localhost:2223", "localhost:2224"]}

A started task holds the reading end of a pipe to its starter. When the starter is gone, however it went, the pipe
closes and the task ends; over ssh too. Nothing here loads TensorFlow.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from hvd_mnist.config import TrainConfig, flag
from hvd_mnist.errors import HvdMnistError, LaunchError, PeerLost, UsageError

STARTED = "HVD_MNIST_STARTED_TASK"  # set in a task that a starter watches
FIRST_PORT = 23400  # of tasks on other hosts, where nobody can ask for a free one
END_SECONDS = 5.0


def read_addresses(option: str, text: str | None) -> list[str]:
    """``host:port,host:port`` as a list.

    Raises:
        UsageError: an entry is no host:port, or comes twice; the option and the entry are named.
    """
    entries = [entry.strip() for entry in (text or "").split(",") if entry.strip()]
    for number, entry in enumerate(entries):
        host, _, port = entry.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536 or any(c in host for c in " /;"):
            raise UsageError(
                f"{option} entry {number} is {entry!r}: expected host:port", f"{option} host1:2222,host2:2222"
            )
        if entry in entries[:number]:
            raise UsageError(f"{option} has {entry} twice: each task needs an address of its own")
    return entries


def check_task(cluster: dict[str, list[str]], job: str, index: int) -> None:
    """Raises UsageError where the cluster has no such task, or one address is two tasks'."""
    if not cluster.get(job):
        raise UsageError(f"--job-name {job}: the cluster has no such task", f"--{job}-hosts host1:2222")
    if not 0 <= index < len(cluster[job]):
        raise UsageError(f"--task-index {index}: --{job}-hosts has tasks 0 to {len(cluster[job]) - 1}")
    whose: dict[str, str] = {}
    for name, addresses in cluster.items():
        for number, address in enumerate(addresses):
            if address in whose:
                raise UsageError(f"{address} is given to {whose[address]} and to {name} {number}")
            whose[address] = f"{name} {number}"


def free_ports(number: int) -> list[int]:
    """Ports of this machine that nobody listens on now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for one in sockets:
            one.bind(("", 0))
        return [one.getsockname()[1] for one in sockets]


def place(jobs: dict[str, int], hosts: list[str], fixed: dict[str, str | None]) -> dict[str, list[str]]:
    """A cluster for so many tasks of each job: on free ports of this machine, or on ``hosts`` from FIRST_PORT on.

    Args:
        hosts: names, used in turn by the tasks in the order of ``jobs``; empty for this machine.
        fixed: job -> the host that all its tasks are on instead.

    >>> place({"ps": 1, "worker": 2}, ["a", "b"], {})
    {'ps': ['a:23400'], 'worker': ['b:23401', 'a:23402']}
    """
    number = sum(jobs.values())
    ports = [FIRST_PORT + task for task in range(number)] if hosts else free_ports(number)
    cluster, task, turn = {}, 0, 0
    for job, wanted in jobs.items():
        cluster[job] = []
        for _ in range(wanted):
            host = fixed.get(job) or (hosts[turn % len(hosts)] if hosts else "localhost")
            turn += job not in fixed
            cluster[job].append(f"{host}:{ports[task]}")
            task += 1
    return cluster


def own_name(hosts: list[str]) -> str:
    """What the hosts can call this machine: its address on the way to the first of them."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((hosts[0], 9))  # sends nothing
        except OSError as error:
            raise LaunchError(f"host {hosts[0]}: {error.strerror}", "check the name") from None
        return probe.getsockname()[0]


def check_port(task: str, address: str) -> None:
    """Raises LaunchError where another program listens on the port that a task of this machine is to have."""
    port = int(address.rpartition(":")[2])
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("", port))
        except OSError as error:
            raise LaunchError(
                f"{task} cannot listen on {address}: {error.strerror}", "another port, or end the program that has it"
            ) from None


def answers(address: str, limit: float = 1.0) -> bool:
    """Does something accept connections there?"""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=limit).close()
        return True
    except OSError:
        return False


def silent(cluster: dict[str, list[str]], jobs: Iterable[str]) -> list[str]:
    """The tasks, as "ps 0 at host:port", of these jobs that accept no connection."""
    tasks = [(job, number, address) for job in jobs for number, address in enumerate(cluster.get(job, []))]
    return [f"{job} {number} at {address}" for job, number, address in tasks if not answers(address)]


def wait_for(cluster: dict[str, list[str]], jobs: Iterable[str], limit: float, check: Callable = lambda: None) -> None:
    """Until every task of these jobs accepts connections.

    Args:
        limit: seconds.
        check: called between looks; may raise.

    Raises:
        LaunchError: some do not within the limit; they are named.
    """
    until, jobs = time.monotonic() + limit, list(jobs)
    while missing := silent(cluster, jobs):
        check()
        if time.monotonic() > until:
            raise LaunchError(f"{', '.join(missing)} did not come up in {limit:g} s", "start it, or look at its log")
        time.sleep(0.2)


def without_proxy(cluster: dict[str, list[str]]) -> None:
    """gRPC would send what is for these hosts through the environment's proxy."""
    hosts = {address.rpartition(":")[0] for addresses in cluster.values() for address in addresses}
    os.environ["no_grpc_proxy"] = ",".join(sorted(hosts))


def knob_words(config: TrainConfig, names: Iterable[str]) -> list[str]:
    """The flags that give another process the same settings."""
    words = []
    for spec in dataclasses.fields(config):
        value = getattr(config, spec.name)
        if spec.name not in names or value == spec.default:
            continue
        if isinstance(value, bool):
            words.append(flag(spec.name) if value else "--no-" + spec.name.replace("_", "-"))
        else:
            words += [flag(spec.name), str(value)]
    return words


@dataclass
class Task:
    job: str
    index: int
    process: subprocess.Popen
    log: Path | None
    said_gone: bool = False

    @property
    def name(self) -> str:
        return f"{self.job} {self.index}"

    def ending(self) -> str:
        """How it ended, in words, with the last line that it wrote as an error."""
        status = self.process.returncode
        words = f"ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        lines = self.log.read_text(errors="replace").splitlines() if self.log and self.log.exists() else []
        errors = [line.partition("error: ")[2] for line in lines if line.startswith("hvd-mnist: error: ")]
        return errors[-1] if errors else f"{words}" + (f"; its log is {self.log}" if self.log else "")


class Tasks:
    """Started tasks; leaving the block ends them all.

    Args:
        logs: folder of their output, one file a task.
    """

    def __init__(self, logs: Path):
        self.logs, self.all = logs, []

    def __enter__(self) -> Tasks:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def start(self, job: str, index: int, words: list[str], host: str | None = None, *, aloud: bool = False) -> Task:
        """Start ``hvd-mnist WORDS`` here or, over ssh, on ``host``; ``aloud`` lets it write to this terminal."""
        argv = [sys.executable, "-m", "hvd_mnist", *words]
        environ = os.environ | {STARTED: "1", "PYTHONUNBUFFERED": "1"}
        if host is not None:
            from hvd_mnist.launch import ssh
            from hvd_mnist.launch.job import Ssh

            kept = [f"{k}={v}" for k, v in environ.items() if k in ("PATH", "PYTHONPATH") or k.startswith("HVD_MNIST_")]
            there = ["env", *kept, "PYTHONUNBUFFERED=1", *argv]
            argv = [*ssh.words(Ssh()), host, f"cd {shlex.quote(os.getcwd())} && exec {shlex.join(there)}"]
        self.logs.mkdir(parents=True, exist_ok=True)
        log = None if aloud else self.logs / f"{job}-{index}.log"
        with contextlib.ExitStack() as stack:
            output = None if aloud else stack.enter_context(log.open("wb"))
            process = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=output, stderr=output, env=environ, start_new_session=True
            )
        self.all.append(Task(job, index, process, log))
        return self.all[-1]

    def gone(self) -> list[Task]:
        """Tasks that have ended, each told once."""
        found = [task for task in self.all if not task.said_gone and task.process.poll() is not None]
        for task in found:
            task.said_gone = True
        return found

    def check(self) -> None:
        """Raises PeerLost where a task has ended."""
        for task in self.gone():
            raise PeerLost(f"{task.name}: {task.ending()}")

    def close(self) -> None:
        """Close their pipes, which ends them; kill what has not ended soon."""
        for task in self.all:
            with contextlib.suppress(OSError):
                task.process.stdin.close()
        until = time.monotonic() + END_SECONDS
        for task in self.all:
            with contextlib.suppress(subprocess.TimeoutExpired):
                task.process.wait(max(0.1, until - time.monotonic()))
            if task.process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(task.process.pid, signal.SIGKILL)
                task.process.wait()


def end_with_starter() -> None:
    """In a started task: end when the starter does. A task that was started by hand is left alone."""
    if not os.environ.pop(STARTED, None):
        return

    def watch() -> None:
        while os.read(0, 4096):
            pass
        os._exit(128 + signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def end_at_once(error: HvdMnistError) -> None:
    """Say the error and be gone: TensorFlow's own farewell would wait for tasks that are lost."""
    print(f"hvd-mnist: error: {error}", file=sys.stderr, flush=True)
    sys.stdout.flush()
    os._exit(error.exit_status)


class Limit:
    """``with limit:`` ends this process with one line where the block takes longer than ``seconds``.

    A thread of its own, because TensorFlow's waits cannot be interrupted from Python: no wait for a host that was
    switched off is for ever.
    """

    def __init__(self, seconds: float, error: Callable[[], HvdMnistError]):
        self._seconds, self._error, self._until = seconds, error, None
        threading.Thread(target=self._watch, daemon=True).start()

    def __enter__(self) -> None:
        self._until = time.monotonic() + self._seconds

    def __exit__(self, *_) -> None:
        self._until = None

    def _watch(self) -> None:
        while (until := self._until) is None or time.monotonic() < until:
            time.sleep(0.5)
        end_at_once(self._error())
