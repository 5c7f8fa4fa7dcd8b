"""Start a job again when it failed: ``hvd-mnist launch --max-restarts K``. docs/elastic.md.

It is started again only where it had made progress (a newer complete checkpoint in the run folder than at its last
start), so that a fault which comes at once, each time, ends the job and does not fill a night.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from hvd_mnist.errors import HvdMnistError, LaunchError, Preempted, UsageError
from hvd_mnist.launch.job import Command

LONGEST_PAUSE = 300.0  # seconds
_WORTH_IT = (1, LaunchError.exit_status)  # of the statuses below 128: the others say that it would fail again


@dataclass(frozen=True)
class Restarts:
    """How often, and after which pause (seconds; doubled each time, up to LONGEST_PAUSE)."""

    most: int
    delay: float

    def pause(self, restart: int) -> float:
        """Seconds before restart 1, 2, ..."""
        return min(LONGEST_PAUSE, self.delay * 2 ** (restart - 1))


def run_with_restarts(
    start: Callable[[bool], int],
    newest: Callable[[], int],
    restarts: Restarts,
    until: float | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Run a job, and again while that is allowed and worth it.

    Args:
        start: runs the job to its end; its argument is True for a restart. A status that it returns is final (done,
            or stopped by a signal to the launcher); an error that it raises is a failure.
        newest: the step of the newest complete checkpoint, -1 where there is none.
        until: by the monotonic clock; nothing is started after it.

    Raises:
        HvdMnistError: that of the last failure, when there is no restart.
    """
    made = 0
    while True:
        before = newest()
        try:
            return start(made > 0)
        except HvdMnistError as error:
            after = newest()
            against = _against(error, made, restarts.most, before, after)
            pause = restarts.pause(made + 1)
            if until is not None and time.monotonic() + pause >= until:
                against = against or "--timeout is over"
            if against:
                if restarts.most:
                    _say(f"not started again: {against}")
                raise
            made += 1
            _say(
                f"{error.message}; step {after} was saved since its start: restart {made} of {restarts.most}"
                f" in {pause:g} s"
            )
            sleep(pause)


def _against(error: HvdMnistError, made: int, most: int, before: int, after: int) -> str | None:
    """Why not to start again, or None."""
    status = error.exit_status
    if status == Preempted.exit_status:
        return "it was stopped on request, after a complete save"
    if status < 128 and status not in _WORTH_IT:
        return f"status {status} means that it would fail again"
    if made >= most:
        return f"{made} of {most} restarts are used"
    if after <= before:
        saved = f"step {after} is still the newest" if after >= 0 else "there is none"
        return f"no new complete checkpoint since its last start ({saved})"
    return None


def _say(text: str) -> None:
    print(f"hvd-mnist: {text}", file=sys.stderr, flush=True)


def newest_step(run: Path) -> int:
    """Step of the newest complete checkpoint of a run folder, by names, manifests and sizes; -1 for none."""
    from hvd_mnist.checkpoint.manifest import verify
    from hvd_mnist.checkpoint.read import FOLDER, candidates

    for candidate in candidates(run / FOLDER):
        if verify(candidate.path, hashes=False).ok:
            return candidate.step
    return -1


def run_dir_of(words: tuple[str, ...]) -> Path:
    """The folder after --run-dir among a program's words.

    Raises:
        UsageError: there is none, and progress could not be seen.
    """
    for index, word in enumerate(words):
        name, given, value = word.partition("=")
        if name == "--run-dir" and (given or index + 1 < len(words)):
            return Path(value if given else words[index + 1])
    raise UsageError(
        "--max-restarts without --run-dir among the program's words: progress is seen by the checkpoints in it",
        "hvd-mnist launch --max-restarts 3 -- train --run-dir runs/one",
    )


def going_on(command: Command) -> Command:
    """The command of a restart: ``train`` goes on from the newest checkpoint. Other programs see to that themselves."""
    ours = command.argv[command.argv.index("hvd_mnist") :] if "hvd_mnist" in command.argv else ()
    return replace(command, argv=(*command.argv, "--resume", "auto")) if ours[1:2] == ("train",) else command
