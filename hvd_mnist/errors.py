"""Everything this package raises on purpose, and the exit status that each one becomes.

HvdMnistError                 1    something failed; the message says what
├── UsageError                2    an option, a config file or an argument is wrong
├── EnvironmentUnfit          3    this machine cannot train: a package, a build, a GPU or memory is missing
│   └── BuildError            3    Horovod could not be built
├── DataError                 4    the data set is missing, broken or not what was asked for
├── CheckpointError           5    a checkpoint cannot be written, read or used
├── LaunchError               6    the job cannot be started: hosts, slots, ssh, MPI
│   └── HostFileError         6    a host list cannot be read; has file, line and column
├── WorldError                7    launcher and Horovod disagree on who is in the job
├── BelowFloor                8    a benchmark ran and is below the floor that was asked for
├── ReplicasDiffer           10    two ranks hold different variables
├── NotFinite                11    a loss, gradient or weight is NaN or infinite
├── Preempted               200    stopped by a signal or a file, after a complete save: run it again
└── PeerLost                201    another rank died or stalled: run it again

A process ended by signal n has the status 128 + n. Statuses below 128 mean "the same command will fail
again"; statuses from 128 up mean "trying again can work" (the rule of Kubernetes' ExitCode policy).
"""

from __future__ import annotations


def printable(text: str, limit: int = 200) -> str:
    """Foreign text for a message: one line, its middle left out where it is long, nothing that moves a cursor."""
    text = "".join(char if char.isprintable() else "?" for char in " ".join(text.split()))
    return text if len(text) <= limit else f"{text[: limit // 2]} ... {text[-(limit // 2) :]}"


class HvdMnistError(Exception):
    """Base of the tree. ``str(error)`` is the one line that the user sees.

    Args:
        message: what was found and what was expected, with the place (file and line, host, rank).
        hint: what to type next, or None where nothing can be typed.
    """

    exit_status = 1

    def __init__(self, message: str, hint: str | None = None):
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} -> {self.hint}" if self.hint else self.message


class UsageError(HvdMnistError):
    exit_status = 2


class EnvironmentUnfit(HvdMnistError):
    exit_status = 3


class BuildError(EnvironmentUnfit):
    pass


class DataError(HvdMnistError):
    exit_status = 4


class CheckpointError(HvdMnistError):
    exit_status = 5


class LaunchError(HvdMnistError):
    exit_status = 6


class HostFileError(LaunchError):
    """A host list that cannot be read: ``source:line:column: what was found``, then the right form."""

    def __init__(
        self,
        message: str,
        hint: str | None = None,
        *,
        source: str = "",
        line: int = 1,
        column: int = 1,
        text: str = "",
    ):
        super().__init__(f"{source}:{line}:{column}: {message}" if source else message, hint)
        self.source, self.line, self.column, self.text = source, line, column, text


class WorldError(HvdMnistError):
    exit_status = 7


class BelowFloor(HvdMnistError):
    exit_status = 8


class RankFailed(HvdMnistError):
    """A rank of a launched job failed.

    Args:
        status: that rank's exit status, 128 + n for signal n; it becomes the launcher's.
    """

    def __init__(self, message: str, hint: str | None, status: int):
        super().__init__(message, hint)
        self.exit_status = status


class ReplicasDiffer(HvdMnistError):
    exit_status = 10


class NotFinite(HvdMnistError):
    exit_status = 11


class Preempted(HvdMnistError):
    """The job was stopped on request, all ranks together. ``quiet``: another rank says so."""

    exit_status = 200
    quiet = False


class PeerLost(HvdMnistError):
    exit_status = 201
