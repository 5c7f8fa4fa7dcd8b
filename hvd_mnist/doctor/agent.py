"""The doctor's far end: ``python -m hvd_mnist.doctor.agent`` on a host answers questions on standard input.

A line each way, JSON behind a mark (a login shell may print what it likes). When the questions end, because the
doctor has ended or the network broke, this process ends with all that it started.
"""

from __future__ import annotations

import json
import os
import queue
import secrets
import signal
import socket
import sys
import threading
import time

MARK = "HVD-MNIST-AGENT "
PROTOCOL = 1
REACH_LIMIT = 5.0  # seconds for a connection to another host


class Agent:
    """Answers to the questions; a question ``{"ask": name, ...}`` is a call of the method of that name."""

    def __init__(self):
        self._token = secrets.token_hex(8)

    def facts(self, folder: str, limit: float) -> dict:
        """Facts of this host, as training in ``folder`` would find them."""
        from hvd_mnist.doctor.gather import gather

        return gather(folder, limit=limit).as_dict()

    def clock(self) -> float:
        """Seconds since 1970 by this host's clock."""
        return time.time()

    def listen(self) -> dict:
        """Listen on a port that the system chooses, as Horovod does; whoever connects is told the token."""
        try:
            listener = socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
        except (OSError, ValueError):  # no IPv6 here
            listener = socket.create_server(("", 0))

        def answer():
            while True:
                connection, _ = listener.accept()
                with connection:
                    connection.sendall(self._token.encode())

        threading.Thread(target=answer, daemon=True).start()
        return {"port": listener.getsockname()[1], "token": self._token}

    def reach(self, targets: list[dict]) -> list[str | None]:
        """For each ``{"address", "port", "token"}`` None, or why it was not reached. All at once."""
        found: list[str | None] = [None] * len(targets)

        def one(index: int) -> None:
            found[index] = reached(**targets[index])

        threads = [threading.Thread(target=one, args=[index], daemon=True) for index in range(len(targets))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found

    def exchange(self, limit: float) -> dict:
        """A real sum over two ranks of this host."""
        from hvd_mnist.cluster.host import Host
        from hvd_mnist.doctor import exchange
        from hvd_mnist.launch.job import Ssh

        return exchange.run([Host("localhost", 2)], 2, Ssh(), limit)


def reached(address: str, port: int, token: str) -> str | None:
    """Connect to a listening agent; None where it is the one that has ``token``, else what went wrong."""
    try:
        with socket.create_connection((address, port), timeout=REACH_LIMIT) as connection:
            said = connection.recv(64).decode(errors="replace")
    except OSError as wrong:
        return "timed out" if isinstance(wrong, TimeoutError) else str(wrong.strerror or wrong)
    return None if said == token else "another host answered"


def serve() -> None:
    """Answer until standard input ends."""
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    questions: queue.SimpleQueue[str] = queue.SimpleQueue()

    def read() -> None:
        for line in sys.stdin:
            questions.put(line)
        os.killpg(0, signal.SIGKILL)  # the doctor is gone: so is everything that was started for it

    say(hello=PROTOCOL)
    threading.Thread(target=read, daemon=True).start()
    agent = Agent()
    while True:
        question = json.loads(questions.get())
        name = question.pop("ask")
        try:
            say(answer=getattr(agent, name)(**question))
        except Exception as wrong:
            say(error=f"{type(wrong).__name__}: {wrong}")


def say(**what) -> None:
    sys.stdout.write(MARK + json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    serve()
