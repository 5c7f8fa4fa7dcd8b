"""One job a run folder: two that share one would overwrite each other's checkpoints."""

from __future__ import annotations

import json
import os
import socket
from datetime import datetime, timezone
from pathlib import Path

from hvd_mnist.errors import CheckpointError

LOCK, OWNER = ".lock", ".lock.owner"
_JOB_VARIABLES = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID")


class RunLock:
    """A held lock; ``release()`` or the end of a ``with`` block lets it go. A process that dies loses it too."""

    def __init__(self, held, owner_file: Path):
        self._held = held
        self._owner_file = owner_file

    def release(self) -> None:
        if self._held.is_locked:
            try:
                self._owner_file.unlink(missing_ok=True)
            finally:
                self._held.release()

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        self.release()


def lock(run_dir: Path | str) -> RunLock:
    """Claim a run folder for this process (made if it is not there). Does not wait.

    The lock is the kernel's (flock on ``RUN/.lock``), so ``kill -9`` leaves nothing stale; ``RUN/.lock.owner`` only
    says whose it is: {"host", "pid", "job", "since"}.

    Raises:
        CheckpointError: another process has it, named with host, pid, job and time; or the folder cannot be written.
    """
    import filelock

    run_dir = Path(run_dir)
    held = filelock.FileLock(run_dir / LOCK, timeout=0)
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        held.acquire()
        _write_owner(run_dir / OWNER)
    except filelock.Timeout:
        raise CheckpointError(
            f"run folder {run_dir} is in use by {_owner(run_dir / OWNER)}",
            hint="wait for it, stop it, or use another --run-dir",
        ) from None
    except OSError as error:
        held.release()
        raise CheckpointError(
            f"cannot lock run folder {run_dir}: {error.strerror or error}", hint="use a --run-dir that you may write in"
        ) from error
    return RunLock(held, run_dir / OWNER)


def _write_owner(path: Path) -> None:
    owner = {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "job": next((os.environ[name] for name in _JOB_VARIABLES if os.environ.get(name)), None),
        "since": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(owner))
    temporary.rename(path)


def _owner(path: Path) -> str:
    try:
        owner = json.loads(path.read_bytes()[:4096])
        job = f" (job {owner['job']})" if owner["job"] else ""
        return f"pid {owner['pid']} on {owner['host']}{job} since {owner['since']}"
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return "another process"
