"""The job behind ``hvd-mnist build-horovod``: a fitting Horovod is installed when this returns.

Installed and fitting -> nothing to do. A wheel of the same key in the cache -> install it. Else fetch the
source, compile it (minutes), keep the wheel. Whatever was installed is tried before it counts.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from importlib import metadata
from pathlib import Path

import click

from hvd_mnist.errors import BuildError, EnvironmentUnfit
from hvd_mnist.horovod_build import recipe, verify
from hvd_mnist.horovod_build.compile import compile_wheel
from hvd_mnist.horovod_build.mends import mended_source
from hvd_mnist.horovod_build.progress import error_lines, likely_cause
from hvd_mnist.horovod_build.stack import COMPILER_HINT, Stack, find_program, first_line, look_at_stack

LOCK_LIMIT = 7200  # seconds to wait for another process that builds the same wheel
PIP_LIMIT = 900
STAMP = "hvd_mnist_build.json"  # beside the installed package's metadata


def cache_folder() -> Path:
    """``$HVD_MNIST_CACHE``, else ``$XDG_CACHE_HOME/hvd_mnist``, else ``~/.cache/hvd_mnist``."""
    if own := os.environ.get("HVD_MNIST_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hvd_mnist"


def ensure_horovod(
    *,
    gpu: bool = False,
    force: bool = False,
    cuda_home: Path | None = None,
    jobs: int | None = None,
    verbose: bool = False,
) -> None:
    """See that the Horovod of this environment is the one built for its TensorFlow, MPI and GPU choice.

    Args:
        gpu: with NCCL.
        force: compile and install even where an equal build is installed or cached.
        cuda_home: CUDA toolkit, where it is not found by itself.
        jobs: compilers at once; by default as many as cores and memory allow.
        verbose: the build's whole output on the console too.

    Raises:
        EnvironmentUnfit: something to build with is missing.
        BuildError: the build, or the try of what it made, failed.
    """
    stack = look_at_stack(gpu, cuda_home)
    parts = recipe.ingredients(stack)
    found = installed_build()
    if not force and found and not (changed := recipe.differences(found, parts)):
        click.echo(f"Horovod {recipe.HOROVOD_VERSION} fits {parts['TensorFlow']}, {parts['MPI']}: nothing to build.")
        return
    if found and not force:
        click.echo(f"The installed Horovod does not fit any more ({'; '.join(changed)}).")
    if not stack.compiler:
        raise EnvironmentUnfit("no C++ compiler (c++) on PATH", hint=COMPILER_HINT)
    if not stack.tensorflow_version.startswith("2.21."):
        click.echo(f"Note: tried with TensorFlow 2.21; {stack.tensorflow_version} is installed.", err=True)

    cache = cache_folder()
    folder = cache / "wheels" / recipe.cache_key(parts)
    folder.mkdir(parents=True, exist_ok=True)
    with held_lock(folder / "lock"):
        wheel = cached_wheel(folder)
        if wheel and not force:
            click.echo(f"Horovod {recipe.HOROVOD_VERSION} was built before: {wheel}")
        else:
            wheel = build_wheel(stack, folder, cache, jobs, verbose)
            (folder / "ingredients.json").write_text(json.dumps(parts, indent=1) + "\n", encoding="utf-8")
        install(wheel)
        try:
            built = verify.check_import(gpu)
        except BuildError:
            wheel.unlink(missing_ok=True)  # the next call builds it anew
            raise
    click.echo(f"It imports: {', '.join(f'{name}={value}' for name, value in built.items())}. Trying an allreduce ...")
    launchers = verify.check_allreduce()
    write_stamp(parts)
    click.echo(f"Two processes agree on a sum under {' and '.join(launchers)}. Horovod is ready.")


def held_lock(path: Path):
    """The lock of one wheel's folder, waited for with a limit and a line that says so."""
    import filelock

    lock = filelock.FileLock(path)
    try:
        return lock.acquire(timeout=0)
    except filelock.Timeout:
        click.echo(f"Another process builds the same wheel ({path}); waiting for it ...")
    try:
        return lock.acquire(timeout=LOCK_LIMIT, poll_interval=1)
    except filelock.Timeout:
        raise BuildError(
            f"{path} was held by another process for {LOCK_LIMIT} s", hint="end that process, then try again"
        ) from None


def cached_wheel(folder: Path) -> Path | None:
    """The finished wheel of a cache folder. Only a whole one ever has this name."""
    return next(iter(sorted(folder.glob(f"horovod-{recipe.HOROVOD_VERSION}-*.whl"))), None)


def fetch_sdist(cache: Path) -> Path:
    """Horovod's source archive, from the cache or through pip, checked by its sha256."""
    kept = cache / "sdist" / recipe.SDIST_NAME
    if kept.is_file() and sha256(kept) == recipe.SDIST_SHA256:
        return kept
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary=horovod"]
        command += ["--no-build-isolation", "--dest", folder, f"horovod=={recipe.HOROVOD_VERSION}"]
        run_pip(command, "fetch Horovod's source")
        fetched = Path(folder) / recipe.SDIST_NAME
        got = sha256(fetched) if fetched.is_file() else "no such file"
        if got != recipe.SDIST_SHA256:
            raise BuildError(
                f"{recipe.SDIST_NAME} from the package index has sha256 {got}, expected {recipe.SDIST_SHA256}",
                hint="check which index pip uses: pip config list",
            )
        os.replace(fetched, kept)
    return kept


def build_wheel(stack: Stack, folder: Path, cache: Path, jobs: int | None, verbose: bool) -> Path:
    """Compile Horovod; the wheel appears in ``folder`` only when it is whole."""
    import psutil

    if any(character.isspace() for character in str(stack.prefix)):
        raise EnvironmentUnfit(
            f"this environment is in '{stack.prefix}', and mpicxx and TensorFlow's compile flags break at the space",
            hint="python -m venv SOMEWHERE-WITHOUT-A-SPACE, or make setup, which sees to it",
        )
    cmake = usable_cmake()
    if not find_program("make"):
        raise EnvironmentUnfit("no make on PATH", hint=COMPILER_HINT)
    sdist = fetch_sdist(cache)
    jobs = jobs or recipe.parallel_jobs(len(os.sched_getaffinity(0)), psutil.virtual_memory().available)
    log = folder / "build.log"
    kind = f"with NCCL {stack.nccl_version} and CUDA {stack.cuda_version}" if stack.gpu else "for CPUs"
    click.echo(
        f"Building Horovod {recipe.HOROVOD_VERSION} {kind} for {stack.tensorflow_package} {stack.tensorflow_version}, "
        f"{stack.mpi}, with {stack.compiler}, {jobs} at a time.\n"
        f"This takes minutes ({'5' if stack.gpu else '3'} on two idle cores), once: the wheel is kept. Log: {log}"
    )
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="hvd-mnist-horovod-") as name:
        work = Path(name)
        wrapper = work / "cmake"
        wrapper.write_text(recipe.cmake_wrapper(cmake, stack), encoding="utf-8")
        wrapper.chmod(0o755)
        source = mended_source(sdist, work)
        links = work / "nccl"
        links.mkdir()
        if stack.gpu:  # the wheel ships libnccl.so.2 alone, and the linker asks for libnccl.so
            (links / "libnccl.so").symlink_to(stack.nccl_home / "lib" / "libnccl.so.2")
        env = recipe.environment(os.environ, stack, jobs, wrapper, links)
        # Without --no-cache-dir pip would hand out a wheel that it built earlier for another TensorFlow.
        command = [sys.executable, "-m", "pip", "wheel", "-v", "--no-deps", "--no-build-isolation", "--no-cache-dir"]
        status = compile_wheel([*command, "-w", str(work / "wheel"), str(source)], env, log, verbose)
        wheel = cached_wheel(work / "wheel") if status == 0 else None
        if wheel is None or not is_whole(wheel):
            raise BuildError(failure(log, status))
        temporary = folder / f".{wheel.name}.{os.getpid()}"
        shutil.copyfile(wheel, temporary)
        for old in folder.glob("*.whl"):
            old.unlink()
        os.replace(temporary, folder / wheel.name)
    minutes, seconds = divmod(round(time.monotonic() - started), 60)
    click.echo(f"Built in {minutes} min {seconds} s: {folder / wheel.name}")
    return folder / wheel.name


def failure(log: Path, status: int) -> str:
    """The message of a failed build: last error lines, likely cause, where the whole log is."""
    text = log.read_text(encoding="utf-8", errors="replace")
    lines = "\n  ".join(error_lines(text))
    cause = likely_cause(text)
    why = f"likely cause: {cause[0]} -> {cause[1]}" if cause else "no known cause: please read the log"
    return f"Horovod did not build (status {status}). Its last errors:\n  {lines}\n{why}\nwhole log: {log}"


def is_whole(wheel: Path) -> bool:
    """Whether the archive reads to its end and holds the compiled library (pip also wraps a build without it)."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            return archive.testzip() is None and any("tensorflow/mpi_lib" in name for name in archive.namelist())
    except (OSError, zipfile.BadZipFile):
        return False


def usable_cmake() -> Path:
    """CMake from 3.13 and below 4: this environment's own, or that of PATH."""
    cmake = find_program("cmake")
    said = first_line(str(cmake), "--version") if cmake else ""
    version = said.removeprefix("cmake version ").split("-")[0]
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if not (3, 13) <= numbers < (4,):
        found = f"CMake {version} ({cmake})" if version else "no CMake"
        raise EnvironmentUnfit(f"{found}; Horovod {recipe.HOROVOD_VERSION} needs 3.13 or newer, below 4",
                               hint='pip install "cmake<4"')  # fmt: skip
    return cmake


def run_pip(command: list[str], purpose: str) -> None:
    """Run pip to its end, or raise with its last error lines."""
    env = {name: value for name, value in os.environ.items() if name not in recipe.NOT_PASSED_ON}
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PIP_LIMIT, env=env, check=False
        )
    except subprocess.TimeoutExpired:
        raise BuildError(f"pip did not {purpose} within {PIP_LIMIT} s") from None
    if done.returncode:
        output = done.stdout + done.stderr
        cause = likely_cause(output)
        lines = "\n  ".join(error_lines(output, 6))
        raise BuildError(f"pip could not {purpose}:\n  {lines}", hint=cause and f"{cause[0]}: {cause[1]}")


def install(wheel: Path) -> None:
    """Put the wheel into this environment, over whatever Horovod is there."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--force-reinstall"]
    run_pip([*command, str(wheel)], f"install {wheel.name}")


def installed_build() -> dict[str, str] | None:
    """The ingredients of the Horovod that is installed, None where there is none of ours, whole and tried."""
    try:
        package = metadata.distribution("horovod")
        stamp = json.loads(package.read_text(STAMP) or "null")
        record = package.read_text("RECORD") or ""
    except (metadata.PackageNotFoundError, OSError, ValueError):
        return None
    libraries = [
        file for file in package.files or [] if "tensorflow/mpi_lib" in str(file) and str(file).endswith(".so")
    ]
    whole = libraries and all(Path(str(file.locate())).is_file() for file in libraries)
    if not stamp or not whole or stamp.get("record") != hashlib.sha256(record.encode()).hexdigest():
        return None
    return stamp["ingredients"]


def write_stamp(parts: dict[str, str]) -> None:
    """Record beside the installed package what it was built from, bound to exactly these installed files."""
    package = metadata.distribution("horovod")
    record = hashlib.sha256((package.read_text("RECORD") or "").encode()).hexdigest()
    place = Path(str(package.locate_file(f"horovod-{package.version}.dist-info"))) / STAMP
    place.write_text(json.dumps({"record": record, "ingredients": parts}, indent=1) + "\n", encoding="utf-8")


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()
