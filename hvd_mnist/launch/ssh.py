"""ssh to other hosts: never a prompt, never without a limit, host keys checked as the user's configuration says."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from hvd_mnist.cluster.host import Host
from hvd_mnist.errors import LaunchError
from hvd_mnist.launch.job import Ssh

WRAPPER = Path(__file__).with_name("checked_ssh") / "ssh"
"""The ssh that horovodrun and Hydra are given; it reads the variables of ``variables``."""

CONNECT_SECONDS = 10
OPTIONS = (
    *("-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_SECONDS}"),
    # A host that loses its power says nothing: without this its ranks would be waited for for ever.
    *("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"),
)


def variables(ssh: Ssh) -> dict[str, str]:
    """What ``checked_ssh/ssh`` reads."""
    given = {"USER": ssh.user, "PORT": ssh.port, "IDENTITY": ssh.identity}
    return {f"HVD_MNIST_SSH_{name}": str(value) for name, value in given.items() if value is not None}


def words(ssh: Ssh) -> tuple[str, ...]:
    """``ssh`` with all its options; the host and the remote command follow."""
    user = ("-l", ssh.user) if ssh.user else ()
    port = ("-p", str(ssh.port)) if ssh.port else ()
    identity = ("-i", ssh.identity) if ssh.identity else ()
    return ("ssh", *OPTIONS, *user, *port, *identity)


def same_for_all(ssh: Ssh, remote: Iterable[Host]) -> Ssh:
    """The one user and port of all remote hosts: launchers take one each.

    Raises:
        LaunchError: hosts differ.
    """
    found = {}
    for what, asked in (("user", ssh.user), ("port", ssh.port)):
        values = {getattr(host, what) or asked for host in remote} or {asked}
        if len(values) > 1:
            each = ", ".join(f"{host.name}: {getattr(host, what) or asked or 'none given'}" for host in remote)
            raise LaunchError(
                f"hosts with different ssh {what}s ({each}); a launcher takes one for all",
                f"write them in ~/.ssh/config ({what.capitalize()} under each Host), and not in the host list",
            )
        found[what] = values.pop()
    return Ssh(found["user"], found["port"], ssh.identity)


_FAILURES = (
    # (what ssh says, what that means, what to do); the first that matches.
    (
        "Could not resolve hostname|Name or service not known",
        "its name is not known",
        "check the spelling, or add {name} to DNS or /etc/hosts",
    ),
    (
        "REMOTE HOST IDENTIFICATION HAS CHANGED",
        "its host key has changed: a new system, or another machine in its place",
        "ask who runs it; if that is right: ssh-keygen -R {name}, then {login}",
    ),
    (
        "Host key verification failed|host key is known",
        "its host key is not known",
        "{login} once, compare the fingerprint, answer yes",
    ),
    ("Too many authentication failures", "it refuses the login", "name the right key: --ssh-identity FILE"),
    (r"Permission denied \(", "it refuses the login", "ssh-copy-id {target}"),
    (
        "Connection refused",
        "nothing listens on port {port}: no sshd, or on another port",
        "start sshd there, or give --ssh-port",
    ),
    (
        r"[Cc]onnection (to .* )?timed out|Operation (timed out|now in progress)|No route to|Network is unreachable",
        "no answer: it is down, or a firewall is between",
        "ping {name}",
    ),
    (
        "Connection closed|Connection reset|kex_exchange|Broken pipe",
        "sshd closed the connection",
        "{login} -v; many logins at once need a higher MaxStartups of sshd",
    ),
)


def failure_in(said: str, name: str = "HOST", login: str = "ssh HOST", port: int = 22) -> tuple[str, str] | None:
    """(what went wrong, what to type) of the first known message in what ssh said; None where there is none.

    Args:
        name: the host's name.
        login: the ssh command that a person would type to log in there.
    """
    for pattern, found, do in _FAILURES:
        if re.search(pattern, said):
            return found.format(port=port), do.format(login=login, name=name, target=login.removeprefix("ssh "))
    return None
