"""The package as a newcomer meets it: light imports, one version, locked requirements, set-up scripts that speak."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import hvd_mnist

ROOT = Path(__file__).parent.parent
HEAVY = ("tensorflow", "keras", "horovod", "numpy", "matplotlib", "mpi4py", "rich", "h5py")
REQUIREMENTS = ROOT / "requirements"


def python(code: str, **env) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **env}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=environment)


@pytest.mark.parametrize(
    "module", ["hvd_mnist", "hvd_mnist.cli", "hvd_mnist.commands.build_horovod", "hvd_mnist.errors"]
)
def test_import_loads_nothing_heavy(module):
    said = python(f"import sys, {module}; print([m for m in {HEAVY!r} if m in sys.modules])")
    assert said.stdout.strip() == "[]", said.stdout + said.stderr


@pytest.mark.parametrize("module", ["hvd_mnist.horovod_build.build", "hvd_mnist.horovod_build.verify"])
def test_build_job_imports_neither_tensorflow_nor_horovod(module):
    said = python(f"import sys, {module}; print([m for m in ('tensorflow', 'horovod', 'keras') if m in sys.modules])")
    assert said.stdout.strip() == "[]", said.stdout + said.stderr


def test_help_works_without_tensorflow_and_horovod():
    said = python(
        "import sys\n"
        "for name in ('tensorflow', 'horovod', 'keras', 'numpy'): sys.modules[name] = None\n"
        "sys.argv = ['hvd-mnist', '--help']\n"
        "from hvd_mnist.cli import main\n"
        "main()\n"
    )
    assert said.returncode == 0 and "build-horovod" in said.stdout, said.stderr


def test_setup_py_and_the_package_say_one_version():
    said = subprocess.run(
        [sys.executable, "setup.py", "--quiet", "--version"], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert said.stdout.split()[-1:] == [hvd_mnist.__version__], said.stdout + said.stderr


def test_changelog_begins_with_this_version_and_keeps_its_form():
    """Keep a Changelog, and semantic versions, newest first; the newest may be unreleased."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    form = r"\[?(\d+)\.(\d+)\.(\d+)\]?(?:(?:,| -) unreleased| - \d{4}-\d\d-\d\d)"
    read = [re.fullmatch(form, heading) for heading in headings]
    assert read and all(read), headings
    versions = [tuple(map(int, match.groups())) for match in read]
    assert versions == sorted(set(versions), reverse=True)
    assert ".".join(map(str, versions[0])) == hvd_mnist.__version__
    assert not [heading for heading in headings[1:] if "unreleased" in heading]
    kinds = set(re.findall(r"^### (.*)$", text, re.MULTILINE))
    assert kinds and kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


# --- requirements ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cpu", "gpu", "test", "docs"])
def test_lock_pins_every_package_with_a_hash(name):
    entries = re.split(r"\n(?=[a-z0-9])", (REQUIREMENTS / f"{name}.txt").read_text())[1:]
    assert entries
    for entry in entries:
        assert re.match(r"[a-z0-9._-]+(\[.+\])?==\S+", entry) and "--hash=sha256:" in entry, entry.splitlines()[0]


@pytest.mark.parametrize("name", ["cpu", "gpu", "test", "docs"])
def test_lock_has_what_is_asked_for(name):
    def asked(file: Path) -> set[str]:
        lines = [line.split("#")[0].strip() for line in file.read_text().splitlines()]
        below = {word for line in lines if line.startswith("-r") for word in asked(file.parent / line.split()[1])}
        return below | {re.split(r"[\[<>=~]", line)[0].lower() for line in lines if line and not line.startswith("-")}

    locked = set(re.findall(r"^([a-z0-9._-]+)(?:\[.+\])?==", (REQUIREMENTS / f"{name}.txt").read_text(), re.MULTILINE))
    assert asked(REQUIREMENTS / f"{name}.in") <= locked


def test_no_lock_has_horovod_and_no_two_locks_disagree():
    pins: dict[tuple[str, str], str] = {}
    for name in ("cpu", "gpu", "test", "docs"):
        found = re.findall(
            r"^([a-z0-9._-]+)(?:\[.+\])?==(\S+) ?(;[^\\]+)?", (REQUIREMENTS / f"{name}.txt").read_text(), re.M
        )
        for package, version, marker in found:
            assert package != "horovod"
            assert pins.setdefault((package, marker.strip()), version) == version, package


def test_setup_asks_for_nothing_that_is_not_locked():
    text = (ROOT / "setup.py").read_text()
    wanted = re.search(r"install_requires=\[(.*?)\]", text, re.DOTALL).group(1)
    locked = (REQUIREMENTS / "cpu.txt").read_text()
    for name in re.findall(r'"([a-z0-9-]+)', wanted):
        assert re.search(rf"^{name}==", locked, re.MULTILINE), name
    assert "horovod" not in re.sub(r"#.*", "", wanted)


# --- scripts and Makefile ----------------------------------------------------------------------------------


@pytest.fixture
def bare_machine(tmp_path):
    """A PATH with the shell's tools and whatever a test puts beside them, and no compiler."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in ("bash", "env", "head", "df", "awk", "cat", "grep"):
        (folder / tool).symlink_to(shutil.which(tool))

    def put(name: str, text: str | None = None):
        if text is None:
            (folder / name).symlink_to(shutil.which(name))
        else:
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)

    def preflight(**env):
        return subprocess.run(
            [folder / "bash", ROOT / "scripts/preflight.sh"], capture_output=True, text=True, timeout=60, cwd=ROOT,
            env={"PATH": str(folder), **env},
        )  # fmt: skip

    preflight.put = put
    return preflight


def test_preflight_names_everything_that_is_missing_at_once(bare_machine):
    said = bare_machine()
    assert said.returncode == 3 and said.stdout == ""
    for part in ("Python 3.10 to 3.13", "C++ compiler", "make", "apt-get install g++", "dnf install gcc-c++"):
        assert part in said.stderr


def test_preflight_refuses_an_old_python_and_says_which(bare_machine):
    bare_machine.put("python3", '#!/bin/sh\n[ "$1" = --version ] && echo Python 3.9.2 && exit 0\nexit 1\n')
    said = bare_machine()
    assert said.returncode == 3 and "python3: Python 3.9.2" in said.stderr


def test_preflight_names_the_venv_package_of_this_python(bare_machine):
    stand_in = f'#!/bin/sh\ncase "$2" in *ensurepip*) exit 1 ;; esac\nexec "{sys.executable}" "$@"\n'
    bare_machine.put("python3", stand_in)
    said = bare_machine()
    assert f"apt-get install python3.{sys.version_info.minor}-venv" in said.stderr


def test_preflight_finds_a_broken_compiler(bare_machine):
    bare_machine.put("c++", "#!/bin/sh\nexit 1\n")
    assert "a C++ compiler that works (c++)" in bare_machine().stderr


def test_preflight_prints_the_python_that_fits(bare_machine):
    bare_machine.put("python3.12", f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    bare_machine.put("make")
    compiler = "#!/bin/sh\ncat >/dev/null\nexit 0\n"
    bare_machine.put("c++", compiler)
    bare_machine.put("cc", compiler)
    said = bare_machine()
    assert said.returncode == 0 and said.stdout.strip().endswith("/bin/python3.12"), said.stderr


@pytest.mark.parametrize(
    ("smi", "device", "ranks"),
    [(None, "", "2"), ("echo GPU 0: A; echo GPU 1: B; echo GPU 2: C", "", "3"), ("echo GPU 0: A", "cpu", "2"),
     ("echo no devices; exit 9", "", "2")],
)  # fmt: skip
def test_ranks_are_gpus_or_two(tmp_path, smi, device, ranks):
    if smi:
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{smi}\n")
        (tmp_path / "nvidia-smi").chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "DEVICE": device}
    said = subprocess.run([ROOT / "scripts/ranks.sh"], capture_output=True, text=True, timeout=20, env=env)
    assert said.stdout.strip() == ranks


def test_make_help_lists_every_target():
    said = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, timeout=60).stdout
    targets = re.search(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE).group(1).split()
    assert all(f"make {target}" in said for target in targets)


def test_scripts_parse_and_those_of_make_can_be_run():
    for script in [*(ROOT / "scripts").glob("*.sh"), ROOT / ".ci" / "run"]:
        assert subprocess.run(["bash", "-n", script], capture_output=True, timeout=20).returncode == 0, script
    for name in (
        "scripts/setup.sh",
        "scripts/preflight.sh",
        "scripts/ranks.sh",
        "scripts/lock.sh",
        "scripts/docs.sh",
        ".ci/run",
    ):
        assert (ROOT / name).stat().st_mode & stat.S_IXUSR, f"{name} is not executable"


# --- the arrows of the house -------------------------------------------------------------------------------

LINT = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()", "--no-cache"]


def lint(folder: Path) -> subprocess.CompletedProcess:
    env = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run(LINT, cwd=folder, capture_output=True, text=True, timeout=200, env=env)


@pytest.fixture
def house(tmp_path):
    shutil.copytree(ROOT / "hvd_mnist", tmp_path / "hvd_mnist", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_imports_only_go_down(house):
    done = lint(house)
    assert done.returncode == 0, done.stdout


PLANTED = [  # (file, import that the house forbids, how the linter writes it)
    ("cluster/identity.py", "hvd_mnist.runtime.world", "hvd_mnist.cluster.identity -> hvd_mnist.runtime.world"),
    ("runtime/world.py", "hvd_mnist.keras.optimizer", "hvd_mnist.runtime.world -> hvd_mnist.keras.optimizer"),
    ("keras/optimizer.py", "hvd_mnist.data.shard", "hvd_mnist.keras.optimizer -> hvd_mnist.data.shard"),
    ("keras/xla.py", "hvd_mnist.config", "hvd_mnist.keras.xla -> hvd_mnist.config"),
    ("data/shard.py", "hvd_mnist.commands.build_horovod", "hvd_mnist.data.shard -> hvd_mnist.commands.build_horovod"),
    ("launch/job.py", "tensorflow", "hvd_mnist.launch.job -> tensorflow"),
    ("launch/mpirun.py", "hvd_mnist.runtime.world", "hvd_mnist.launch.mpirun -> hvd_mnist.runtime.world"),
    ("doctor/__init__.py", "horovod", "hvd_mnist.doctor -> horovod"),
    ("horovod_build/build.py", "keras", "hvd_mnist.horovod_build.build -> keras"),
    ("config.py", "tensorflow", "hvd_mnist.config -> tensorflow"),
]


def test_linter_catches_each_planted_import(house):
    for module, name, _ in PLANTED:
        file = house / "hvd_mnist" / module
        file.write_text(f"{file.read_text()}\n\ndef planted():\n    import {name}  # noqa\n")
    done = lint(house)
    said = " ".join(done.stdout.split())
    assert done.returncode != 0 and "0 kept, 4 broken" in said, said
    missed = [arrow for _, _, arrow in PLANTED if arrow not in said]
    assert not missed, f"{missed}\n{done.stdout}"


# --- the suite's own rules (conftest.py) -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("folder", "ci", "failed"), [("parallel", "true", 2), ("cluster", "true", 2), ("parallel", "", 0)]
)
def test_skip_of_a_parallel_test_is_a_failure_in_ci(tmp_path, folder, ci, failed):
    shutil.copy(ROOT / "tests/conftest.py", tmp_path)
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "test_a.py").write_text("import pytest\ndef test_a(): pytest.skip('no hosts here')\n")
    (tmp_path / folder / "test_b.py").write_text("import pytest\npytest.importorskip('no_such_module')\n")
    (tmp_path / "test_single.py").write_text("import pytest\ndef test_c(): pytest.skip('fine')\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--continue-on-collection-errors", "."]
    env = {name: value for name, value in os.environ.items() if name != "CI"} | ({"CI": ci} if ci else {})
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, env=env)
    assert (done.returncode != 0) == bool(failed), done.stdout
    if failed:
        assert "no hosts here" in done.stdout and "1 failed" in done.stdout and "1 error" in done.stdout
        assert "1 skipped" in done.stdout  # the single-process one stays a skip


def test_leaked_job_variable_fails_its_test_and_not_the_next(tmp_path):
    shutil.copy(ROOT / "tests/conftest.py", tmp_path)
    (tmp_path / "test_leak.py").write_text(
        "import os\n"
        "def test_leaks(): os.environ['HOROVOD_RANK'] = '1'\n"
        "def test_next(): assert 'HOROVOD_RANK' not in os.environ\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert "2 passed, 1 error" in done.stdout and "HOROVOD_RANK" in done.stdout, done.stdout


# --- set-up, with the slow parts replaced ------------------------------------------------------------------


@pytest.fixture
def clone(tmp_path):
    """A clone in a folder with a space, whose Python is a stand-in that records what it is asked to do."""
    folder = tmp_path / "my clone"
    for name in ("scripts", "requirements"):
        shutil.copytree(ROOT / name, folder / name)
    shutil.copy(ROOT / "setup.py", folder)
    log = tmp_path / "asked"
    log.touch()
    stand_in = tmp_path / "python3.12"
    stand_in.write_text(
        f'#!/bin/sh\necho "$*" >> "{log}"\n'
        f'[ "$1 $2" = "-m venv" ] && mkdir -p "$3/bin" && cp "{stand_in}" "$3/bin/python"\n'
        '[ -z "$FAIL_ON" ] || case "$*" in *"$FAIL_ON"*) exit 1 ;; esac\n'
        "exit 0\n"
    )
    stand_in.chmod(0o755)

    def setup(wanted="run", **env):
        log.write_text("")
        environment = {
            **os.environ,
            "PYTHON": str(stand_in),
            "DEVICE": "cpu",
            "HVD_MNIST_CACHE": str(tmp_path / "c"),
            **env,
        }
        done = subprocess.run(
            [folder / "scripts/setup.sh", wanted], capture_output=True, text=True, timeout=60, env=environment
        )
        return done, log.read_text()

    setup.folder = folder
    return setup


def test_second_setup_installs_nothing(clone):
    done, asked = clone()
    assert done.returncode == 0, done.stderr
    assert "--require-hashes -r requirements/cpu.txt" in asked and "build-horovod" in asked
    done, asked = clone()
    assert done.returncode == 0 and "build-horovod" in asked
    assert "pip" not in asked and "venv" not in asked


def test_test_setup_adds_only_the_test_tools(clone):
    clone()
    _, asked = clone("test")
    assert "requirements/test.txt" in asked and "requirements/cpu.txt" not in asked


def test_changed_lock_is_installed_and_another_device_is_another_venv(clone):
    clone()
    lock = clone.folder / "requirements/cpu.txt"
    lock.write_text(lock.read_text() + "# changed\n")
    _, asked = clone()
    assert "requirements/cpu.txt" in asked and "-m venv" not in asked
    _, asked = clone(DEVICE="gpu")
    assert "-m venv" in asked and "requirements/gpu.txt" in asked and "build-horovod --gpu" in asked


def test_interrupted_setup_is_taken_up_again(clone):
    done, _ = clone(FAIL_ON="--require-hashes")
    assert done.returncode != 0
    done, asked = clone()
    assert done.returncode == 0 and "--require-hashes" in asked


def test_environment_of_a_clone_with_a_space_is_elsewhere(clone):
    clone()
    venv = clone.folder / ".venv"
    assert venv.is_symlink() and " " not in str(venv.resolve())


def test_foreign_venv_is_not_removed(clone):
    (clone.folder / ".venv").mkdir()
    (clone.folder / ".venv" / "mine").touch()
    done, _ = clone()
    assert done.returncode == 3 and "not made by make setup" in done.stderr
    assert (clone.folder / ".venv" / "mine").exists()


def test_wrong_device_is_named(clone):
    done, _ = clone(DEVICE="tpu")
    assert done.returncode == 2 and "DEVICE is 'tpu'; it can be cpu or gpu" in done.stderr
