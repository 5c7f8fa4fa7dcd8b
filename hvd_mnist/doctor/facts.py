"""What can be known of one host, as plain values: the doctor's checks and its --json are made from this alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields


@dataclass(frozen=True)
class HostFacts:
    """One host, seen from one Python on it. None, "" and () mean that it is not there or could not be found out.

    Sizes are in bytes. ``docs/doctor.md`` says what each name means; a test holds the two together.
    """

    hostname: str = ""
    platform: str = ""
    python: str = ""
    executable: str = ""
    hvd_mnist: str = ""
    code: str = ""
    missing_packages: tuple[str, ...] = ()
    # From the packages' records, without importing them.
    tensorflow: str | None = None
    tensorflow_package: str | None = None
    keras: str | None = None
    horovod: str | None = None
    horovod_built_for: str | None = None
    horovod_mpi_library: str | None = None
    horovod_build: dict[str, str] | None = None
    nccl: str | None = None
    # From importing them in a child process.
    tensorflow_error: str | None = None
    tensorflow_cuda: bool | None = None
    tensorflow_gpus: int | None = None
    keras_error: str | None = None
    keras_backend: str | None = None
    horovod_error: str | None = None
    mpi_built: bool | None = None
    gloo_built: bool | None = None
    nccl_built: int | None = None
    cuda_built: bool | None = None
    # Launchers.
    mpirun: str | None = None
    mpirun_version: str = ""
    horovodrun: str | None = None
    launcher: str = ""
    launcher_error: str | None = None
    launcher_notes: tuple[str, ...] = ()
    # The machine.
    gpus: tuple[dict, ...] = ()
    gpu_error: str | None = None
    gpu_mask: str | None = None
    driver: str | None = None
    cores: float | None = None
    memory_available: int | None = None
    shm_size: int | None = None
    shm_free: int | None = None
    folder: str = ""
    folder_error: str | None = None
    disk_free: int | None = None
    open_files: int | None = None
    data: str | None = None
    data_error: str | None = None
    interfaces: tuple[dict, ...] = ()

    def as_dict(self) -> dict:
        """For JSON: lists instead of tuples."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}


def facts_from(found: Mapping) -> HostFacts:
    """Facts of ``as_dict``. Names that this version does not know are left out: the host may have other code."""
    known = {field.name for field in fields(HostFacts)}
    return HostFacts(
        **{name: tuple(value) if isinstance(value, list) else value for name, value in found.items() if name in known}
    )
