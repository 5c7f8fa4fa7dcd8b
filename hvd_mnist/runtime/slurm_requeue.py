"""Put the Slurm job that this process is part of back into its queue: ``scontrol requeue JOB``."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping

from hvd_mnist.errors import EnvironmentUnfit, UsageError

LIMIT_SECONDS = 30


def check(environ: Mapping[str, str]) -> None:
    """Before training: can this job be put back?

    Raises:
        UsageError: this is no Slurm job.
        EnvironmentUnfit: scontrol is not here.
    """
    if "SLURM_JOB_ID" not in environ:
        raise UsageError("--requeue: this is no Slurm job (SLURM_JOB_ID is not set)", "leave --requeue out")
    if shutil.which("scontrol") is None:
        raise EnvironmentUnfit("--requeue: scontrol is not on this node's PATH", "load Slurm's module, or leave it out")


def requeue(environ: Mapping[str, str]) -> None:
    """Ask Slurm, which then ends this job and starts it again later.

    Raises:
        EnvironmentUnfit: Slurm refuses, as it does for a job submitted with --no-requeue.
    """
    job = environ["SLURM_JOB_ID"]
    try:
        done = subprocess.run(["scontrol", "requeue", job], capture_output=True, text=True, timeout=LIMIT_SECONDS)
        said = (done.stderr or done.stdout).strip()
    except (OSError, subprocess.TimeoutExpired) as error:
        said, done = str(error), None
    if done is None or done.returncode:
        raise EnvironmentUnfit(
            f"the run is saved, but scontrol requeue {job} failed: {said}", "submit with --requeue; sbatch it again"
        )
