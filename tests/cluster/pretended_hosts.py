"""Several hosts pretended on one machine, so that launchers are tested over a real network and real ssh.

    with pretended_hosts({"host1": 2, "host2": 2}, tmp_path) as hosts:
        done = hosts.run("host1", ["horovodrun", "-np", "4", "-H", hosts.dash_h, "hostname"], timeout=60)

Needs root and Debian's openssh-server and iproute2. Each host is a process 1 in its own network, UTS, PID, mount
and IPC namespaces, with its own sshd, host key, /run, /dev/shm, /etc/hosts and /etc/ssh; a further process holds
the switch. Nothing is named on, or added to, the machine itself: no interface, no /run/netns entry, no file in
/etc or ~/.ssh. So two test runs cannot collide, and all of it ends with the test process, even by kill -9.
The file system is shared, as on a cluster with one network file system. docs/testing.md has the drawing.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil
from pretended_machine import NAMESPACES, SBIN, Done, Job, Machine, checked, command_line, find_tool, only_child

SWITCH = "the-switch"
# Accounts on the hosts, by user number. Homes are the same on all hosts, as on a network file system, and are not
# those of this machine: no ~/.bashrc and no ~/.ssh of whoever runs the tests has a say.
USERS = {"root": 0, "trainer": 4242}
HOMES = "/mnt"
Binds = Sequence[tuple[str | os.PathLike, str | os.PathLike]]


@functools.cache
def missing_for_hosts() -> str | None:
    """Why hosts cannot be pretended here, with what to type; None where they can."""
    if os.geteuid() != 0:
        return "pretended hosts need root: run the tests as root"
    tools = ("unshare", "nsenter", "ip", "tc", "ssh", "ssh-keygen", "sshd")
    absent = [tool for tool in tools if find_tool(tool) is None]
    if absent:
        return f"{', '.join(absent)} not found: apt-get install openssh-server openssh-client iproute2 util-linux"
    trial = subprocess.run(["unshare", *NAMESPACES, "--fork", "true"], capture_output=True, text=True, check=False)
    return f"namespaces are not allowed here: {trial.stderr.strip()}" if trial.returncode else None


class PretendedHosts:
    """The hosts of one ``pretended_hosts``. Methods that change something are context managers: they change it back."""

    def __init__(self, slots: Mapping[str, int], folder: Path, networks: Mapping[str, str], binds: Binds):
        self.slots, self.folder, self.networks, self.binds = dict(slots), folder, dict(networks), list(binds)
        self.names = list(slots)
        self._machines: dict[str, Machine] = {}
        self._daemons: dict[str, dict[str, list[psutil.Process]]] = {name: {} for name in self.names}
        self._jobs = 0

    # What tests ask.

    @property
    def dash_h(self) -> str:
        """The value of ``-H``: ``host1:2,host2:2``."""
        return ",".join(f"{name}:{count}" for name, count in self.slots.items())

    def address(self, name: str, interface: str | None = None) -> str:
        """IPv4 address of a host on a network (the first where none is named)."""
        prefix = self.networks[interface or next(iter(self.networks))]
        return f"{prefix}.{self.names.index(name) + 11}"

    def processes(self, name: str) -> list[psutil.Process]:
        """What runs on a host: process 1 and the daemons of this fixture apart."""
        known = {process.pid for daemon in self._daemons[name].values() for process in daemon}
        return [process for process in self._machines[name].processes() if process.pid not in known]

    def leftovers(self, grace: float = 5.0) -> list[str]:
        """Jobs' processes that are still there after ``grace`` seconds, as "host: command line"; none is right."""
        until = time.monotonic() + grace
        while True:
            left = [f"{name}: {command_line(p)}" for name in self._machines_up() for p in self.processes(name)]
            if not left or time.monotonic() > until:
                return left
            time.sleep(0.1)

    # Running commands.

    def start(
        self,
        name: str,
        argv: Sequence[str | os.PathLike],
        env: Mapping[str, str | None] | None = None,
        cwd: str | os.PathLike | None = None,
        user: str = "root",
    ) -> Job:
        """Start a command on a host and return at once.

        ``env`` is laid over this process's environment (None removes a name), in which the folder of this Python
        comes first on PATH; HOME is the user's on the hosts. ``user`` is "root" or "trainer". Give ``.wait`` a limit.
        """
        words = [os.fspath(word) for word in argv]
        self._jobs += 1
        stem = self.folder / f"job-{self._jobs}"
        identity = [f"--setuid={USERS[user]}", f"--setgid={USERS[user]}"]
        account = {"HOME": f"{HOMES}/{user}", "USER": user, "LOGNAME": user}
        with stem.with_suffix(".out").open("wb") as out, stem.with_suffix(".err").open("wb") as err:
            process = subprocess.Popen(
                # nsenter leaves the command in /, so env puts it back.
                [*self._machines[name].enter(), *identity, "env", "-C", os.fspath(cwd or os.getcwd()), *words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=job_environment({**account, **(env or {})}),
                start_new_session=True,
            )
        return Job(words, process, stem, self.kill_jobs)

    def run(self, name: str, argv: Sequence[str | os.PathLike], timeout: float, **how) -> Done:
        """Run a command on a host to its end; the limit is in seconds. ``how`` as in ``start``."""
        return self.start(name, argv, **how).wait(timeout)

    def kill_jobs(self) -> None:
        """Kill whatever runs on the hosts, daemons of this fixture apart."""
        until = time.monotonic() + 10
        while running := [p for name in self._machines_up() for p in self.processes(name)]:
            for process in running:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            if time.monotonic() > until:
                raise RuntimeError(f"cannot be killed: {[command_line(process) for process in running]}")
            time.sleep(0.02)

    def start_daemon(self, name: str, label: str, argv: Sequence[str], ready: str | None = None) -> Path:
        """Start a daemon in the foreground on a host, wait until its log matches ``ready``, return the log."""
        log = self.folder / name / f"{label}.log"
        before = log.stat().st_size if log.exists() else 0
        with log.open("ab") as output:
            process = subprocess.Popen(
                [*self._machines[name].enter(), *argv],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={"PATH": f"/usr/bin:/bin:{SBIN}"},
                start_new_session=True,
            )
        until = time.monotonic() + 30
        while ready and not re.search(ready, said := log.read_bytes()[before:].decode(errors="replace")):
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"{label} on {name} did not start: {said}")
            time.sleep(0.01)
        entered = psutil.Process(only_child(process.pid))
        self._daemons[name][label] = [entered, *entered.children(recursive=True)]
        return log

    def stop_daemon(self, name: str, label: str) -> None:
        for process in self._daemons[name].pop(label):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
                process.wait(5)

    # What can go wrong with a host.

    def power_off(self, name: str) -> None:
        """The host dies at once: its processes are killed, its network is gone. ``power_on`` brings up a fresh one."""
        self._machines.pop(name).close()
        self._daemons[name] = {}

    def power_on(self, name: str) -> None:
        own = self.folder / name
        self._machines[name] = Machine(
            name,
            own / "init.log",
            tmpfs=["/run", "/dev/shm"],
            folders=["/run/sshd", "/run/lock", "/run/munge", "/run/slurm"],
            binds=[
                (own / "ssh", "/etc/ssh"),
                (self.folder / "hosts", "/etc/hosts"),
                (self.folder / "passwd", "/etc/passwd"),
                (self.folder / "homes", HOMES),
                *self.binds,
            ],
        )
        self._plug_in(name)
        self._start_sshd(name)

    @contextlib.contextmanager
    def unplugged(self, name: str) -> Iterator[None]:
        """The host runs on, but its cables are out: the others get no answer, not even a refusal."""
        ports = self._ports(name)
        self._ip(SWITCH, [f"link set {port} down" for port in ports])
        try:
            yield
        finally:
            self._ip(SWITCH, [f"link set {port} up" for port in ports])
            self._wait_for_links(name)

    @contextlib.contextmanager
    def without_sshd(self, name: str) -> Iterator[None]:
        """The host is up and refuses connections to port 22."""
        self.stop_daemon(name, "sshd")
        try:
            yield
        finally:
            self._start_sshd(name)

    @contextlib.contextmanager
    def refusing_key(self, name: str) -> Iterator[None]:
        """The host's sshd takes nobody's key ("Permission denied (publickey)")."""
        with _changed(self.folder / name / "ssh" / "authorized_keys", lambda text: ""):
            yield

    @contextlib.contextmanager
    def unknown(self, name: str) -> Iterator[None]:
        """The host is in nobody's known_hosts ("Host key verification failed")."""
        with self._known_hosts(lambda line: None if _is_for(line, name) else line):
            yield

    @contextlib.contextmanager
    def other_host_key(self, name: str) -> Iterator[None]:
        """Everybody's known_hosts holds another key for the host ("REMOTE HOST IDENTIFICATION HAS CHANGED")."""
        key = (self.folder / "wrong_key.pub").read_text().split()[1]
        with self._known_hosts(lambda line: re.sub(r"\S+$", key, line) if _is_for(line, name) else line):
            yield

    @contextlib.contextmanager
    def slow_link(self, name: str, rate: str, burst: str = "64kb", latency: str = "50ms") -> Iterator[None]:
        """Limit what a host sends and gets, e.g. ``rate="20mbit"`` (tc's words).

        After a pause ``burst`` bytes pass free; what would wait in a queue for longer than ``latency`` is dropped.
        """
        shaped = [(name, interface) for interface in self.networks] + [(SWITCH, port) for port in self._ports(name)]
        limit = ["root", "tbf", "rate", rate, "burst", burst, "latency", latency]
        for machine, device in shaped:
            checked([*self._machines[machine].enter("--net"), "tc", "qdisc", "replace", "dev", device, *limit])
        try:
            yield
        finally:
            for machine, device in shaped:
                if machine in self._machines:
                    checked([*self._machines[machine].enter("--net"), "tc", "qdisc", "del", "dev", device, "root"])

    @contextlib.contextmanager
    def wrong_interface(self, device: str = "docker0", address: str = "172.17.0.1/16") -> Iterator[None]:
        """Every host has this interface, up, with the same address: nobody can be reached over it."""
        for name in self.names:
            other_end = f"{device[:10]}-end"  # up as well, so that the interface has a carrier
            pair = f"link add {device} type veth peer name {other_end}"
            up = [f"link set {end} up" for end in (device, other_end)]
            self._ip(name, [pair, f"addr add {address} dev {device}", *up])
        try:
            yield
        finally:
            for name in self._machines_up():
                self._ip(name, [f"link del {device}"])

    @contextlib.contextmanager
    def bound(self, name: str, source: str | os.PathLike, target: str | os.PathLike) -> Iterator[None]:
        """On this host alone ``target`` (a file or folder that exists) shows what is in ``source``."""
        enter = self._machines[name].enter("--mount", "--pid")
        checked([*enter, "mount", "--bind", os.fspath(source), os.fspath(target)])
        try:
            yield
        finally:
            if name in self._machines:
                checked([*enter, "umount", "--lazy", os.fspath(target)])

    @contextlib.contextmanager
    def stub_package(self, name: str, module: str, version: str) -> Iterator[None]:
        """On this host alone ``module`` is a stub that knows nothing but its version, in pip's records too."""
        stubs = self.folder / name / "stubs" / module
        stubs.mkdir(parents=True, exist_ok=True)
        (stubs / "__init__.py").write_text(f"__version__ = {version!r}\n")
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.bound(name, stubs, Path(importlib.util.find_spec(module).origin).parent))
            for distribution in importlib.metadata.packages_distributions()[module]:
                found = importlib.metadata.distribution(distribution)
                record = next(found.locate_file(f) for f in found.files if f.name == "METADATA")
                changed = stubs.parent / f"{distribution}.METADATA"
                changed.write_text(re.sub(r"(?m)^Version: .*$", f"Version: {version}", record.read_text(), count=1))
                stack.enter_context(self.bound(name, changed, record))
            yield

    # Setting up.

    def _prepare(self) -> None:
        """All files: names, accounts, keys and ssh settings. Nothing runs yet."""
        lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback"]
        (self.folder / "hosts").write_text("\n".join(lines + [f"{self.address(n)} {n}" for n in self.names]) + "\n")
        login = _new_key(self.folder / "login_key")
        _new_key(self.folder / "wrong_key")
        (self.folder / "homes").mkdir()
        accounts = [line for line in Path("/etc/passwd").read_text().splitlines() if line.split(":")[0] not in USERS]
        for user, number in USERS.items():
            accounts.append(f"{user}:x:{number}:{number}::{HOMES}/{user}:/bin/bash")
            home = self.folder / "homes" / user
            (home / ".ssh").mkdir(parents=True, mode=0o700)
            shutil.copy(self.folder / "login_key", home / ".ssh" / "id_ed25519")  # keeps mode 0600
            for path in (home, home / ".ssh", home / ".ssh" / "id_ed25519"):
                os.chown(path, number, number)
        (self.folder / "passwd").write_text("\n".join(accounts) + "\n")
        host_keys = {}
        for name in self.names:
            ssh = self.folder / name / "ssh"
            ssh.mkdir(parents=True)
            host_keys[name] = _new_key(ssh / "host_key")
            (ssh / "authorized_keys").write_text(login)
            (ssh / "sshd_config").write_text(
                "Port 22\nHostKey /etc/ssh/host_key\nAuthorizedKeysFile /etc/ssh/authorized_keys\nUsePAM no\n"
                "PermitRootLogin prohibit-password\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"
                "UseDNS no\nPidFile none\nMaxStartups 200\nMaxSessions 200\nPrintMotd no\n"
            )
            (ssh / "ssh_config").write_text("GlobalKnownHostsFile /etc/ssh/known_hosts\nStrictHostKeyChecking yes\n")
        for name in self.names:
            known = [f"{other},{self.address(other)} {' '.join(key.split()[:2])}\n" for other, key in host_keys.items()]
            (self.folder / name / "ssh" / "known_hosts").write_text("".join(known))

    def _start(self) -> None:
        self._prepare()
        self._machines[SWITCH] = Machine(SWITCH, self.folder / "switch.log")
        bridges = [(f"link add br-{i} type bridge", f"link set br-{i} up") for i in self.networks]
        self._ip(SWITCH, [line for pair in bridges for line in pair])
        for name in self.names:
            self.power_on(name)

    def _plug_in(self, name: str) -> None:
        host = self._machines[name].pid
        for interface, port in zip(self.networks, self._ports(name), strict=True):
            pair = f"link add {port} type veth peer name {interface} netns {host}"
            self._ip(SWITCH, [pair, f"link set {port} master br-{interface} up"])
            address = f"addr add {self.address(name, interface)}/24 dev {interface}"
            self._ip(name, ["link set lo up", address, f"link set {interface} up"])
        self._wait_for_links(name)

    def _wait_for_links(self, name: str) -> None:
        """Until the switch passes on what the host sends, and no host remembers that it could not be reached."""
        look = [*self._machines[SWITCH].enter("--net"), "ip", "-o", "-d", "link", "show"]
        until = time.monotonic() + 10
        for port in self._ports(name):
            while (
                "state forwarding"
                not in subprocess.run([*look, port], capture_output=True, text=True, check=False).stdout
            ):
                if time.monotonic() > until:
                    raise RuntimeError(f"the switch's port {port} does not come up")
                time.sleep(0.01)
        for other in self._machines_up():
            self._ip(other, [f"neigh flush dev {interface}" for interface in self.networks])

    def _start_sshd(self, name: str) -> None:
        self.start_daemon(name, "sshd", [find_tool("sshd"), "-D", "-e"], ready="Server listening on 0.0.0.0")

    def _ports(self, name: str) -> list[str]:
        return [f"p{self.names.index(name)}-{interface}"[:15] for interface in self.networks]

    def _ip(self, machine: str, lines: Sequence[str]) -> None:
        checked([*self._machines[machine].enter("--net"), "ip", "-batch", "-"], "\n".join(lines) + "\n")

    def _machines_up(self) -> list[str]:
        return [name for name in self.names if name in self._machines]

    @contextlib.contextmanager
    def _known_hosts(self, change) -> Iterator[None]:
        def rewrite(text: str) -> str:
            lines = [change(line) for line in text.splitlines()]
            return "".join(f"{line}\n" for line in lines if line is not None)

        with contextlib.ExitStack() as stack:
            for name in self.names:
                stack.enter_context(_changed(self.folder / name / "ssh" / "known_hosts", rewrite))
            yield

    def close(self) -> None:
        for machine in reversed(self._machines.values()):
            machine.close()
        self._machines.clear()


@contextlib.contextmanager
def pretended_hosts(
    slots: Mapping[str, int], folder: Path, networks: Mapping[str, str] | None = None, binds: Binds = ()
) -> Iterator[PretendedHosts]:
    """Hosts with these names and slots, up and reachable from each other over ssh, until the block ends.

    ``folder`` takes keys, logs and output. ``networks`` is interface name -> first three numbers of an IPv4 /24,
    the same interface on every host; the names in /etc/hosts belong to the first. ``binds`` are (source, target) pairs:
    on all hosts the target, a file or folder that exists, shows the source.
    """
    folder = folder / "hosts"
    folder.mkdir(parents=True)
    hosts = PretendedHosts(slots, folder, networks or {"eth0": "10.77.0"}, binds)
    try:
        hosts._start()
        yield hosts
    finally:
        hosts.close()


def job_environment(over: Mapping[str, str | None]) -> dict[str, str]:
    """This process's environment with this Python's folder first on PATH, and ``over`` laid over it."""
    folder = os.path.dirname(sys.executable)
    path = os.pathsep.join([folder, *(p for p in os.environ.get("PATH", "").split(os.pathsep) if p != folder)])
    merged = {**os.environ, "PATH": path, **over}
    return {name: value for name, value in merged.items() if value is not None}


def _is_for(known_hosts_line: str, name: str) -> bool:
    return name in known_hosts_line.split()[0].split(",")


@contextlib.contextmanager
def _changed(path: Path, change) -> Iterator[None]:
    before = path.read_text()
    path.write_text(change(before))
    try:
        yield
    finally:
        path.write_text(before)


def _new_key(path: Path) -> str:
    """Make an ed25519 key pair; the public half's line."""
    checked(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", path.stem, "-f", str(path)])
    return path.with_suffix(".pub").read_text()
