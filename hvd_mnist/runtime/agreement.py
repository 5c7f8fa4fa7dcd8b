"""Before the first step: do all ranks mean the same job? A difference is a table and one error on every rank.

Ranks with other code, another model, other data, settings or numbers of steps train apart or wait for each other in
the wrong place. Each rank says what it has; a short digest while all is well, everything where something differs.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hvd_mnist.console import ranks_named
from hvd_mnist.errors import DataError, EnvironmentUnfit, HvdMnistError, ReplicasDiffer, UsageError
from hvd_mnist.runtime import world

# What ranks compare -> the error where it differs, and what to do. The first aspect that differs gives the status.
ASPECTS: dict[str, tuple[type[HvdMnistError], str]] = {
    "version": (EnvironmentUnfit, "install the same packages on every host"),
    "code": (EnvironmentUnfit, "the same files on every host"),
    "setting": (UsageError, "give every rank the same command, HVD_MNIST_* variables and config file"),
    "data": (DataError, "the same data on every host"),
    "model": (ReplicasDiffer, "start the same script with the same options on every rank"),
    "steps": (UsageError, "give every rank the same number of batches and epochs"),
}
Facts = Mapping[str, Mapping[str, object]]  # aspect -> name -> value
CODE_OF_A_RANK = ("*.py", "keras/*.py", "runtime/*.py", "data/*.py", "checkpoint/*.py")
MOST_ROWS, MOST_CHARACTERS = 12, 60


@dataclass(frozen=True)
class Difference:
    """One thing that not all ranks have alike: ``told[rank]`` is what that rank has, as text."""

    aspect: str
    name: str
    told: tuple[str, ...]

    def groups(self) -> list[tuple[str, list[int]]]:
        """(value, ranks that have it), rank 0's value first."""
        found: dict[str, list[int]] = {}
        for rank, value in enumerate(self.told):
            found.setdefault(value, []).append(rank)
        return list(found.items())


def differences(told: Sequence[Facts]) -> list[Difference]:
    """What differs between the facts of the ranks (in rank order), in the order of ASPECTS. Pure."""
    found = []
    for aspect in ASPECTS:
        parts = [facts.get(aspect, {}) for facts in told]
        for name in dict.fromkeys(name for part in parts for name in part):
            values = tuple(str(part[name]) if name in part else "nothing" for part in parts)
            if len(set(values)) > 1:
                found.append(Difference(aspect, name, values))
    return found


def agree(facts: Facts) -> None:
    """Compare over all ranks; every rank must call it with the same aspects, and every rank raises or none does.

    Args:
        facts: {aspect: {name: value}}; the aspects are those of ASPECTS, the values anything that has a text.

    Raises:
        The error of the first aspect that differs; rank 0 has written a table of all differences to stderr.
    """
    unknown = [aspect for aspect in facts if aspect not in ASPECTS]
    if unknown:
        raise UsageError(f"agree({unknown[0]}=...): expected {', '.join(ASPECTS)}")
    plain = {aspect: {str(name): str(value) for name, value in part.items()} for aspect, part in facts.items()}
    digest = hashlib.sha256(json.dumps(plain).encode()).hexdigest()
    summaries = world.gather_json([digest, world.hostname()], "agreement")
    if len({summary for summary, _ in summaries}) == 1:
        return
    found = differences(world.gather_json(plain, "agreement.facts"))
    hosts = [host for _, host in summaries]
    if not found:
        return  # the same facts in another order
    if world.rank() == 0:
        sys.stderr.write(table(found, hosts))
        sys.stderr.flush()
    kind, hint = ASPECTS[found[0].aspect]
    raise kind(in_one_line(found, hosts), hint)


def in_one_line(found: Sequence[Difference], hosts: Sequence[str]) -> str:
    """The first difference: ``rank 1 on h2 has seed=1, rank 0 has seed=0 (and 2 more differences)``. Pure."""
    first = found[0]
    expected = first.told[0]
    rank = next(rank for rank, value in enumerate(first.told) if value != expected)
    more = f" (and {len(found) - 1} more differences, in rank 0's table)" if len(found) > 1 else ""
    return (
        f"{first.aspect}: rank {rank} on {hosts[rank]} has {first.name}={_short(first.told[rank])}, "
        f"rank 0 has {first.name}={_short(expected)}{more}"
    )


def table(found: Sequence[Difference], hosts: Sequence[str]) -> str:
    """What differs where: one row for each value of each thing, with the ranks and hosts that have it. Pure."""
    rows = [("what", "value", "where")]
    for difference in found[:MOST_ROWS]:
        for number, (value, ranks) in enumerate(difference.groups()):
            on = ", ".join(list(dict.fromkeys(hosts[rank] for rank in ranks))[:4])
            what = f"{difference.aspect} {difference.name}" if number == 0 else ""
            rows.append((what, _short(value), f"{ranks_named(ranks)} on {on}"))
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    lines = [f"  {what:<{widths[0]}}  {value:<{widths[1]}}  {where}" for what, value, where in rows]
    left = len(found) - MOST_ROWS
    return "\n".join(["ranks differ:", *lines, *([f"  and {left} more"] if left > 0 else [])]) + "\n"


def _short(value: str) -> str:
    return value if len(value) <= MOST_CHARACTERS else value[: MOST_CHARACTERS - 3] + "..."


def software(script: bool = False) -> dict[str, dict[str, str]]:
    """The aspects "version" and "code" of this process.

    Args:
        script: digest the main script too.
    """
    names = ("tensorflow", "tensorflow-cpu", "keras", "horovod", "numpy")
    versions = {"python": ".".join(platform.python_version_tuple()[:2])}
    for name in names:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    if "tensorflow-cpu" in versions:  # the same code without its GPU part: hosts may have either
        versions.setdefault("tensorflow", versions["tensorflow-cpu"])
        del versions["tensorflow-cpu"]
    package = Path(__file__).parents[1]
    files = [file for pattern in CODE_OF_A_RANK for file in sorted(package.glob(pattern))]
    code = {f"hvd_mnist/{file.relative_to(package)}": _digest(file) for file in files}
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    if script and main and Path(main).is_file():
        code[Path(main).name] = _digest(Path(main))
    return {"version": versions, "code": code}


def own_code(files: dict[str, str]) -> dict[str, dict[str, str]]:
    """The aspect "code" of modules of the user's: {module: its file}."""
    return {"code": {name: _digest(Path(file)) for name, file in files.items()}}


def _digest(file: Path) -> str:
    text = file.read_bytes()
    if text.startswith(b"#!"):  # an installed script names its Python, which may lie elsewhere on each host
        text = text.partition(b"\n")[2]
    return hashlib.sha256(text).hexdigest()[:12]
