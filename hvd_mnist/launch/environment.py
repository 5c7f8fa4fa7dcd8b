"""Which environment variables a job gets: an allow-list, plus ``-x NAME``. Pure.

horovodrun writes every variable of its own environment on the command lines that ssh carries, where ``ps`` shows
them on all hosts; ranks beside mpirun inherit all of its environment while those on other hosts get none. So
every launcher is started with exactly these variables, and ranks are alike on all hosts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from hvd_mnist.errors import UsageError

ALLOWED = (
    # where programs and files are
    *("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX", "HOME", "TMPDIR"),
    *("XDG_CACHE_HOME", "CUDA_HOME", "CUDA_PATH", "CUDA_CACHE_PATH"),
    # who and in which language
    *("USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_*", "TZ"),
    # how Python, TensorFlow and mathematics behave
    *("PYTHONUNBUFFERED", "PYTHONHASHSEED", "PYTHONFAULTHANDLER", "PYTHONWARNINGS", "KERAS_*", "TF_*", "XLA_FLAGS"),
    *("OMP_*", "KMP_*", "MKL_*", "OPENBLAS_*", "MALLOC_*"),
    # how ranks talk
    *("HOROVOD_*", "HVD_MNIST_*", "NCCL_*", "OPAL_PREFIX", "OMPI_MCA_*", "PMIX_MCA_*", "PRTE_MCA_*", "UCX_*"),
    *("FI_*", "I_MPI_*", "MPICH_*"),
)
LAUNCHER_ALONE = ("SSH_AUTH_SOCK", "KRB5CCNAME")  # what ssh itself needs

# Never, whatever the list above says: secrets (TF_VAR_* and TF_CLI_* are Terraform's), GPU masks of this host, and
# who one process of another job is.
SECRET = ("*TOKEN*", "*KEY*", "*PASSWORD*", "*PASSWD*", "*_PASS", "*SECRET*", "*CREDENTIAL*", "TF_VAR_*", "TF_CLI_*")
_MASKS = ("*_VISIBLE_DEVICES",)
_IDENTITY = re.compile(
    r"HOROVOD_(RANK|SIZE|(LOCAL|CROSS)_(RANK|SIZE)|HOSTNAME|ELASTIC|GLOO_RENDEZVOUS_\w+|GLOO_IFACE|CONTROLLER"
    r"|CPU_OPERATIONS)|OMPI_COMM_WORLD_\w+|PMI_\w+|PMIX_(?!MCA)\w+"
)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Forwarded:
    """Variables for the ranks, those that the launcher alone needs, names to be shown without value, and notes."""

    ranks: Mapping[str, str]
    launcher: Mapping[str, str]
    by_name: frozenset[str]
    notes: tuple[str, ...]


def forwarded(environ: Mapping[str, str], exports: Iterable[str] = (), several_hosts: bool = False) -> Forwarded:
    """The part of ``environ`` that a job gets.

    Args:
        exports: ``NAME`` (its value is taken from ``environ``) or ``NAME=VALUE``, as after -x.
        several_hosts: then a GPU mask such as CUDA_VISIBLE_DEVICES is left out, since it is true for one host.

    Raises:
        UsageError: -x with a bad name, or a name that is not set.
    """
    ranks = {name: value for name, value in environ.items() if _allowed(name, several_hosts)}
    notes, by_name = [], set()
    for word in exports:
        name, given, value = word.partition("=")
        if not _NAME.fullmatch(name):
            raise UsageError(f"-x {word!r}: {name!r} is not a name of a variable", "write -x NAME or -x NAME=VALUE")
        if not given and name not in environ:
            raise UsageError(f"-x {name}: no such variable is set", f"export it first, or write -x {name}=VALUE")
        ranks[name] = value if given else environ[name]
        if _matches(name, SECRET):
            notes.append(f"environment: {name} looks like a secret; on the hosts, `ps` may show it to other users")
            if not given:
                by_name.add(name)
    asked = {word.partition("=")[0] for word in exports}
    masks = [n for n in environ if _matches(n, _MASKS) and several_hosts and n not in asked]
    if masks:
        notes.append(f"environment: {', '.join(sorted(masks))} stays here: a GPU mask is true for one host")
    notes.insert(0, f"environment: {len(ranks)} of {len(environ)} variables, by the allow-list; -x NAME adds one")
    launcher = {name: environ[name] for name in LAUNCHER_ALONE if name in environ}
    return Forwarded(dict(sorted(ranks.items())), launcher, frozenset(by_name), tuple(notes))


def _allowed(name: str, several_hosts: bool) -> bool:
    if not _NAME.fullmatch(name) or _matches(name, SECRET) or _IDENTITY.fullmatch(name):
        return False
    if _matches(name, _MASKS):
        return not several_hosts
    return _matches(name, ALLOWED)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name.upper(), pattern) for pattern in patterns)
