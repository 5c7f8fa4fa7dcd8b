"""Before the start: is every other host reachable over ssh, and are this Python and this folder there?"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from hvd_mnist.cluster.host import Host
from hvd_mnist.errors import EnvironmentUnfit, LaunchError
from hvd_mnist.launch import ssh
from hvd_mnist.launch.job import Command

LIMIT_SECONDS = 30


def check(command: Command) -> None:
    """Ask all hosts of ``command.reach`` at once.

    Raises:
        LaunchError: the first host that fails, with the reason and what to type; the number of others.
    """
    hosts = command.reach
    if not hosts:
        return
    if not os.access(ssh.WRAPPER, os.X_OK):  # horovodrun would take the next ssh, and check no host key
        raise EnvironmentUnfit(f"{ssh.WRAPPER} cannot be executed", f"chmod +x {ssh.WRAPPER}")
    with ThreadPoolExecutor(min(32, len(hosts))) as pool:
        wrong = [found for found in pool.map(lambda host: wrong_with(host, command), hosts) if found]
    if wrong:
        what, hint = wrong[0]
        more = f" (and {len(wrong) - 1} more hosts)" if len(wrong) > 1 else ""
        raise LaunchError(f"{what}{more}", hint)


def wrong_with(host: Host, command: Command) -> tuple[str, str] | None:
    """(what is wrong with one host, what to type), or None."""
    python, folder = shlex.quote(command.python), shlex.quote(command.folder)
    look = f"test -x {python} || exit 41; cd {folder} || exit 42"
    login = [*ssh.words(command.ssh), host.name]
    try:
        asked = subprocess.run(
            [*login, f"sh -c {shlex.quote(look)}"],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=LIMIT_SECONDS,
        )  # fmt: skip
    except FileNotFoundError:
        return "no ssh on PATH, which other hosts need", "apt-get install openssh-client"
    except subprocess.TimeoutExpired:
        return f"{host.name}: no answer over ssh in {LIMIT_SECONDS} s", f"{shlex.join(login)} true"
    if asked.returncode == 0:
        return None
    if asked.returncode == 41:
        return f"{host.name} has no {command.python}", "install the same environment under the same path there"
    if asked.returncode == 42:
        return f"{host.name} has no folder {command.folder}", "start from a folder that every host has"
    said = _last_line(asked.stderr.splitlines())
    known = ssh.failure_in(asked.stderr, host.name, f"ssh {host.name}")
    if known is None:
        return f"{host.name}: ssh ended with status {asked.returncode}: {said}", f"{shlex.join(login)} true"
    what, hint = known
    return f"{host.name}: {what} ({said})", hint


def _last_line(lines: Iterable[str]) -> str:
    return next((line.strip() for line in reversed(list(lines)) if line.strip()), "nothing said")
