"""``hvd-mnist build-horovod``: the words, and the one call."""

from __future__ import annotations

import click


@click.command("build-horovod")
@click.option("--gpu", is_flag=True, help="Build with NCCL, for NVIDIA GPUs. Needs TensorFlow with CUDA, and nvcc.")
@click.option("--force", is_flag=True, help="Compile and install even where an equal build is there.")
@click.option(
    "--cuda-home",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False),
    help="CUDA toolkit with bin/nvcc. [default: $CUDA_HOME, nvcc on PATH, /usr/local/cuda]",
)
@click.option(
    "--jobs",
    metavar="N",
    type=click.IntRange(min=1),
    help="Compilers at once. [default: one a core, as long as each has 2 GiB]",
)
@click.option("--verbose", is_flag=True, help="The whole output of the build on the console, not only in its log.")
def build_horovod(gpu: bool, force: bool, cuda_home: str | None, jobs: int | None, verbose: bool) -> None:
    """Build Horovod for the TensorFlow that is installed here, install it and try it.

    A build takes minutes and is kept: the next environment with the same TensorFlow, MPI, Python and
    compiler installs the kept wheel in seconds. Where the installed one fits, nothing is done.
    """
    from pathlib import Path

    from hvd_mnist.horovod_build.build import ensure_horovod

    ensure_horovod(gpu=gpu, force=force, cuda_home=Path(cuda_home) if cuda_home else None, jobs=jobs, verbose=verbose)
