"""``hvd_mnist.run(function, np=2)``: a function of a script or notebook on every rank of a job.

The function travels as a file that only this user can read, and so do the results; nothing is unpickled from a network.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar, cast

from hvd_mnist.errors import LaunchError, UsageError

TAIL_LINES = 10
Result = TypeVar("Result")  # what the function returns


def run(
    function: Callable[..., Result],
    args: Sequence[Any] = (),
    kwargs: dict[str, Any] | None = None,
    *,
    np: int = 2,
    hosts: str | None = None,
    timeout: float | None = None,
    folder: str | None = None,
    quiet: bool = False,
) -> list[Result]:
    """Start ``np`` ranks that each call ``function(*args, **kwargs)``, and wait for them.

        def train():
            import hvd_mnist.keras as hvd
            hvd.init()
            ...
            return hvd.rank()

        hvd_mnist.run(train, np=2)      # [0, 1]

    Args:
        function: any function, also one defined in a notebook; it imports what it needs, and calls ``hvd.init()``.
        np: ranks.
        hosts: as ``launch -H``, "host1:4,host2:4"; default this machine.
        timeout: seconds after which the job is stopped.
        folder: where function and results are kept for the job; on several hosts one that all of them see.
        quiet: do not print what the ranks print.

    Returns:
        What each rank returned, in rank order.

    Raises:
        UsageError: the function cannot be pickled, or several hosts without ``folder``.
        LaunchError: the job failed; the last lines of its output are in the text.
    """
    import cloudpickle

    if hosts is not None and folder is None and any(not name.startswith("localhost") for name in hosts.split(",")):
        raise UsageError("run(hosts=...) needs a folder that every host sees", "folder='/shared/scratch'")
    with tempfile.TemporaryDirectory(prefix="hvd-mnist-run-", dir=folder) as place:  # mode 0700
        try:
            (Path(place) / "function").write_bytes(cloudpickle.dumps((function, tuple(args), dict(kwargs or {}))))
        except Exception as error:
            raise UsageError(f"run: {function!r} or its arguments cannot be pickled: {error}") from error
        words = [sys.executable, "-m", "hvd_mnist", "launch", "-np", str(np), "-H", hosts or f"localhost:{np}",
                 "--log-dir", f"{place}/logs",
                 *(["--timeout", str(timeout)] if timeout else []),
                 "--", sys.executable, "-m", "hvd_mnist.launch.function_rank", place]  # fmt: skip
        status, output = _follow(words, quiet)
        if status:
            tail = "\n".join(output[-TAIL_LINES:])
            raise LaunchError(f"run: the job of {np} ranks ended with status {status}:\n{tail}")
        return [_result(Path(place) / f"result-{rank}", rank) for rank in range(np)]


def _follow(words: list[str], quiet: bool) -> tuple[int, list[str]]:
    """Run to the end, print what comes (in a notebook too), and give status and lines."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    process = subprocess.Popen(
        words, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True,
        errors="replace",
    )  # fmt: skip
    lines = []
    try:
        for line in cast(IO[str], process.stdout):  # a pipe, as asked for above
            lines.append(line.rstrip("\n"))
            if not quiet:
                print(lines[-1], flush=True)
        return process.wait(), lines
    finally:
        if process.poll() is None:  # a Ctrl-C, or a kernel that is interrupted
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(40)
            process.kill()
            process.wait()


def _result(path: Path, rank: int) -> Any:
    import cloudpickle

    if not path.exists():
        raise LaunchError(f"run: rank {rank} ended well and left no result")
    return cloudpickle.loads(path.read_bytes())
