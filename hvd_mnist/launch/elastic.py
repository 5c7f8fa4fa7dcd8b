"""What an elastic job needs beyond any other: how many ranks, and the script that says which hosts there are."""

from __future__ import annotations

import os
import subprocess

from hvd_mnist.cluster.host import HostList
from hvd_mnist.cluster.hostfile import parse_hosts
from hvd_mnist.errors import LaunchError, UsageError
from hvd_mnist.launch.job import Elastic

SCRIPT_SECONDS = 30.0


def elastic_of(
    script: str | None, size: int | None, least: int | None, most: int | None, reset_limit: int, cooldown
) -> Elastic | None:
    """The elastic part of a job, or None where no option asks for it.

    Raises:
        UsageError: options that do not go together.
    """
    if script is None:
        for name, value in (("--min-np", least), ("--max-np", most)):
            if value is not None:
                raise UsageError(
                    f"{name} without --host-discovery-script",
                    "--host-discovery-script FILE, a program that prints one host:slots a line",
                )
        return None
    path = os.path.abspath(script)
    if not os.access(path, os.X_OK) or os.path.isdir(path):
        raise UsageError(f"--host-discovery-script {script}: no program that can be run", f"chmod +x {script}")
    start = size or least or 1
    if not (least or 1) <= start <= (most or start):
        raise UsageError(f"-np {start} does not lie between --min-np {least or 1} and --max-np {most or 'none'}")
    if cooldown[0] < 1 or cooldown[1] > 3600 or cooldown[0] > cooldown[1]:
        raise UsageError(f"--cooldown {cooldown[0]} {cooldown[1]}: expected LOW HIGH, from 1 to 3600 seconds")
    return Elastic(path, start, least or start, most, reset_limit, tuple(cooldown))


def discover(script: str) -> HostList:
    """The hosts that the script prints now, one ``host`` or ``host:slots`` a line.

    Raises:
        LaunchError: it fails, or takes more than SCRIPT_SECONDS.
        HostFileError: a line that is no host, with its column.
    """
    try:
        done = subprocess.run([script], capture_output=True, text=True, timeout=SCRIPT_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise LaunchError(f"{script} was still running after {SCRIPT_SECONDS:g} s", "run it by hand") from None
    except OSError as error:
        raise LaunchError(f"{script}: {error.strerror}", "does it begin with #!, as in #!/bin/sh ?") from None
    if done.returncode:
        said = done.stderr.strip().splitlines()[-1:] or ["it said nothing"]
        raise LaunchError(f"{script} ended with status {done.returncode}: {said[0][:200]}", "run it by hand")
    lines = list(dict.fromkeys(line.strip() for line in done.stdout.splitlines() if line.strip()))
    if not lines:
        raise LaunchError(f"{script} names no host", "it must print one host:slots a line, at the start too")
    return parse_hosts(",".join(lines), source=script)
