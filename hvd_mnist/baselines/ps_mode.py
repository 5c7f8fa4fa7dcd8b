"""The settings of a parameter-server job, apart from those of its training. Loads nothing."""

from __future__ import annotations

from dataclasses import dataclass

from hvd_mnist.errors import UsageError


@dataclass(frozen=True)
class Mode:
    """How gradients become updates, and where variables are.

    Attributes:
        backup: workers whose gradients a synchronous update does not wait for.
        placement, largest: of ``shards.place_shards``.
        slow: (worker, seconds): that worker waits so long before each of its steps.
    """

    synchronous: bool = True
    backup: int = 0
    placement: str = "round-robin"
    largest: int = 1 << 20
    slow: tuple[int, float] | None = None

    def check(self, workers: int) -> None:
        """Raises UsageError where it does not fit so many workers."""
        if self.backup and not self.synchronous:
            raise UsageError(f"--backup-workers {self.backup} with --async: only a synchronous update waits", "--sync")
        if self.backup >= workers:
            raise UsageError(f"--backup-workers {self.backup} of {workers} workers leaves none to wait for")
        if self.slow and not 0 <= self.slow[0] < workers:
            raise UsageError(f"--slow-worker {self.slow[0]}: there are workers 0 to {workers - 1}")

    def words(self) -> list[str]:
        """The options that give another process the same mode."""
        slow = ["--slow-worker", f"{self.slow[0]}:{self.slow[1]}"] if self.slow else []
        waits = ["--sync" if self.synchronous else "--async", "--backup-workers", str(self.backup)]
        return [*waits, "--placement", self.placement, "--largest-shard", str(self.largest), *slow]
