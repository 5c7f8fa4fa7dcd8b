"""Slurm pretended on one machine: munge and slurmd on every pretended host, slurmctld on the first.

    with pretended_slurm({"node1": 4, "node2": 4}, tmp_path) as slurm:
        done = slurm.run(["srun", "-N2", "-n4", "hostname"], timeout=30)

Needs what pretended_hosts.py needs, and Debian's slurm-wlm and munge. As the hosts have their own network, /run,
/etc/slurm and /etc/munge, all ports, sockets and paths are the usual ones: commands need no SLURM_CONF.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pretended_hosts import PretendedHosts, pretended_hosts
from pretended_machine import Done, Job, TimeLimit, find_tool

CONFIG = """\
ClusterName=pretended
SlurmctldHost={first}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
StateSaveLocation=/run/slurm/state
SlurmdSpoolDir=/run/slurm/spool
SlurmctldPidFile=/run/slurm/slurmctld.pid
SlurmdPidFile=/run/slurm/slurmd.pid
# No cgroups: the hosts share those of the machine. No binding: they pretend to more CPUs than there are.
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SlurmdParameters=config_overrides
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=0,sched_interval=1
ReturnToService=2
KillWait=2
{nodes}
PartitionName=main Nodes=ALL Default=YES State=UP MaxTime=10
"""


def missing_for_slurm() -> str | None:
    """Why Slurm cannot be pretended here, with what to type; None where it can. Ask missing_for_hosts first."""
    tools = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "salloc", "sinfo")
    absent = [tool for tool in tools if find_tool(tool) is None]
    return f"{', '.join(absent)} not found: apt-get install slurm-wlm munge" if absent else None


class PretendedSlurm:
    """A Slurm cluster that is up; ``hosts`` are its nodes. Commands run on the first node, as on a login node."""

    def __init__(self, hosts: PretendedHosts):
        self.hosts = hosts
        self.login = hosts.names[0]

    def start(self, argv: Sequence[str | os.PathLike], **how) -> Job:
        """Start a command on the login node; ``how`` as in PretendedHosts.start."""
        return self.hosts.start(self.login, argv, **how)

    def run(self, argv: Sequence[str | os.PathLike], timeout: float, **how) -> Done:
        """Run a command (srun, salloc, sbatch --wait, sinfo …) to its end; past ``timeout`` s all is killed."""
        return self.hosts.run(self.login, argv, timeout, **how)

    def sbatch(self, script: str, folder: Path, timeout: float, **how) -> tuple[str, str]:
        """Submit a script, wait for its end: its status as Slurm writes it ("exit status:signal"), and its output."""
        path, output = folder / "job.sh", folder / "job.out"
        path.write_text(script)
        done = self.run(["sbatch", "--parsable", f"--output={output}", path], 30, **{"cwd": folder, **how}).checked()
        job = done.stdout.strip()
        until = time.monotonic() + timeout
        while True:  # sbatch --wait would look only every ten seconds
            shown = self.run(["scontrol", "--oneliner", "show", "job", job], 20).checked().stdout
            state = re.search(r"JobState=(\w+)", shown)[1]
            if state not in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING"):
                return re.search(r"ExitCode=(\S+)", shown)[1], output.read_text()
            if time.monotonic() > until:
                self.cancel_all()
                raise TimeLimit(f"job {job} is {state} after {timeout} s\n{script}\n{output.read_text()}")
            time.sleep(0.2)

    def cancel_all(self) -> None:
        """Cancel every job and wait until the nodes are idle again."""
        self.run(["scancel", "--state=PENDING", "--user=root"], 20).checked()
        self.run(["scancel", "--state=RUNNING", "--user=root"], 20).checked()
        self.wait_until_idle(30)

    def wait_until_idle(self, limit: float) -> None:
        until = time.monotonic() + limit
        states: list[str] = []
        while time.monotonic() < until:
            states = self.run(["sinfo", "--noheader", "--Node", "--format=%T"], 20).stdout.split()
            if states == ["idle"] * len(self.hosts.names):
                return
            time.sleep(0.2)
        raise RuntimeError(f"Slurm nodes are {states} after {limit} s; logs are in {self.hosts.folder}")


@contextlib.contextmanager
def pretended_slurm(cpus: Mapping[str, int], folder: Path) -> Iterator[PretendedSlurm]:
    """A cluster with these nodes and CPUs, all idle, until the block ends. ``folder`` takes keys, logs and output."""
    settings, secret = folder / "etc-slurm", folder / "etc-munge"
    settings.mkdir(parents=True)
    secret.mkdir(mode=0o700)
    nodes = [f"NodeName={name} CPUs={count} RealMemory=1000 State=UNKNOWN" for name, count in cpus.items()]
    (settings / "slurm.conf").write_text(CONFIG.format(first=next(iter(cpus)), nodes="\n".join(nodes)))
    (secret / "munge.key").touch(mode=0o600)
    (secret / "munge.key").write_bytes(os.urandom(128))
    binds = [(settings, "/etc/slurm"), (secret, "/etc/munge")]
    with pretended_hosts(cpus, folder, binds=binds) as hosts:
        for name in hosts.names:
            munge = ["--foreground", "--key-file=/etc/munge/munge.key", "--num-threads=2"]
            own_files = [f"--{file}-file=/run/munge/{file}" for file in ("pid", "seed")]
            hosts.start_daemon(
                name, "munged", [find_tool("munged"), *munge, *own_files], ready="Created 2 work threads"
            )
        hosts.start_daemon(hosts.names[0], "slurmctld", [find_tool("slurmctld"), "-D"], ready="Running as primary")
        for name in hosts.names:
            hosts.start_daemon(name, "slurmd", [find_tool("slurmd"), "-D"], ready="slurmd started")
        cluster = PretendedSlurm(hosts)
        cluster.wait_until_idle(60)
        yield cluster
