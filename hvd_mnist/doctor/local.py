"""All checks of one host, from its facts. Arithmetic and words only: nothing here looks at a machine."""

from __future__ import annotations

from hvd_mnist.doctor import machine, software
from hvd_mnist.doctor.check import Check
from hvd_mnist.doctor.facts import HostFacts

SOFTWARE = (
    software.python,
    software.packages,
    software.tensorflow,
    software.keras,
    software.horovod,
    software.horovod_build,
    software.controllers,
    software.mpirun,
    software.horovodrun,
    software.launcher_variables,
)
MACHINE = (
    machine.gpus,
    machine.nccl,
    machine.cores,
    machine.memory,
    machine.shared_memory,
    machine.folder,
    machine.open_files,
    machine.data,
)
LAUNCHING = (software.python, software.mpirun, software.horovodrun, software.launcher_variables)


def checks_of(facts: HostFacts, ranks: int, host: str = "") -> list[Check]:
    """All checks of one host.

    Args:
        facts: what was found there.
        ranks: how many ranks are to run there.
        host: its name in the checks; empty for this machine alone.
    """
    found = [check for look in SOFTWARE for check in look(facts)]
    found += [check for look in MACHINE for check in look(facts, ranks)]
    return [Check(check.name, check.state, check.found, check.do, host) for check in found]


def launching_checks(facts: HostFacts) -> list[Check]:
    """Those that matter on a machine that starts a job and takes no part in it."""
    return [check for look in LAUNCHING for check in look(facts)]
