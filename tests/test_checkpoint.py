"""Checkpoints under attack: killed, cut, flipped, full disk, two jobs, another model, code in the file.

HVD_MNIST_SLOW=1 makes it 100 kills instead of 10.
"""

from __future__ import annotations

import errno
import json
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
keras = pytest.importorskip("keras")
np = pytest.importorskip("numpy")

from hvd_mnist import checkpoint  # noqa: E402
from hvd_mnist.checkpoint import manifest as manifests  # noqa: E402
from hvd_mnist.checkpoint import serving, write  # noqa: E402
from hvd_mnist.commands.checkpoint import checkpoint as command  # noqa: E402
from hvd_mnist.errors import CheckpointError  # noqa: E402

ROOT = Path(__file__).parent.parent
KILLS = 100 if os.environ.get("HVD_MNIST_SLOW") == "1" else 10


def small_model(optimizer=None, *, seed=1, units=4, compiled=True):
    """Six numbers in, two out; dropout and batch norm for the variables that are easily forgotten."""
    keras.utils.set_random_seed(seed)
    model = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(units),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(2),
        ]
    )
    if compiled:
        model.compile(
            optimizer or keras.optimizers.Adam(0.01, use_ema=True), loss="mse", run_eagerly=True
        )  # no tracing: three steps a test
        model.optimizer.build(model.trainable_variables)
    return model


def fit(model, steps=3):
    """Steps that move every kind of variable: weights, slots, batch statistics, the dropout's seed."""
    for _ in range(steps):
        random_ = np.random.default_rng(int(model.optimizer.iterations))
        out = float(keras.ops.sum(model(random_.random((8, 6), "float32"), training=True)))
        gradients = [out * random_.random(v.shape, "float32") for v in model.trainable_variables]
        model.optimizer.apply([keras.ops.convert_to_tensor(g) for g in gradients], model.trainable_variables)


def values(model):
    return [v.numpy() for v in [*model.variables, *model.optimizer.variables]]


@pytest.fixture(scope="module")
def trained():
    model = small_model()
    fit(model)
    return model


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run" / "checkpoints"


def names(folder):
    return sorted(path.name for path in folder.iterdir())


# ---------------------------------------------------------------- save, restore


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: keras.optimizers.Adam(0.01, use_ema=True),
        lambda: keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.1, 50), momentum=0.9),
        lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01)),
    ],
    ids=["adam-ema", "sgd-schedule", "loss-scale"],
)
def test_every_variable_comes_back_bit_for_bit_and_training_goes_on_the_same(folder, optimizer):
    model = small_model(optimizer())
    fit(model)
    state = {"step": 3, "seed": np.int64(7), "best": float("-inf"), "early_stop": {"wait": np.float32(0.5)}}
    checkpoint.save(folder, model, state, step=3)
    expected = values(model)
    other = small_model(optimizer(), seed=2)
    restored = checkpoint.restore_into(other, checkpoint.latest(folder))
    assert restored == {"step": 3, "seed": 7, "best": float("-inf"), "early_stop": {"wait": 0.5}}
    for here, there in zip(values(other), expected, strict=True):
        assert here.dtype == there.dtype and np.array_equal(here, there)
    fit(model), fit(other)
    for here, there in zip(values(other), values(model), strict=True):
        assert np.array_equal(here, there)


def test_bfloat16_weights_come_back(folder):
    keras.config.set_dtype_policy("bfloat16")
    try:
        model, other = small_model(), small_model(seed=2)
        checkpoint.save(folder, model, {}, step=1)
        checkpoint.restore_into(other, checkpoint.latest(folder))
    finally:
        keras.config.set_dtype_policy("float32")
    assert str(model.weights[0].dtype) == "bfloat16"
    for here, there in zip(values(other), values(model), strict=True):
        assert np.array_equal(here, there)


def test_keras_alone_forgets_seed_generators_and_this_is_why_we_keep_them(folder, trained, tmp_path):
    """When this fails Keras has learned to write them: seeds can go from the manifest."""
    trained.save(tmp_path / "plain.keras")
    other = small_model(seed=2)
    other.load_weights(tmp_path / "plain.keras")
    (seed,) = checkpoint.fingerprint(trained, digests=True).seeds
    (forgotten,) = checkpoint.fingerprint(other, digests=True).seeds
    assert seed.digest != forgotten.digest


def test_an_optimizer_that_is_not_built_is_built(folder, trained):
    checkpoint.save(folder, trained, {}, step=3)
    other = small_model(compiled=False)
    other.compile(keras.optimizers.Adam(0.01, use_ema=True), loss="mse")
    assert not other.optimizer.built
    checkpoint.restore_into(other, checkpoint.latest(folder))
    for here, there in zip(values(other), values(trained), strict=True):
        assert np.array_equal(here, there)


@pytest.mark.parametrize(
    "other, message",
    [
        (lambda: small_model(units=5), r"found sequential\w*/dense\w*/kernel \(6, 4\) float32, expected .*\(6, 5\)"),
        (lambda: small_model(keras.optimizers.SGD(0.1)), "optimizer: found Adam, expected SGD"),
        (lambda: small_model(keras.optimizers.Adam(0.1)), "found sequential.*kernel_average .*, expected .*_momentum"),
        (lambda: small_model(compiled=False), "optimizer: found Adam, expected none"),
    ],
    ids=["shape", "optimizer", "slots", "not compiled"],
)
def test_a_checkpoint_of_another_model_is_refused_in_one_line_before_anything_is_loaded(
    folder, trained, other, message
):
    checkpoint.save(folder, trained, {}, step=3)
    model = other()
    before = [v.numpy() for v in model.variables]
    with pytest.raises(CheckpointError, match=message) as refused:
        checkpoint.restore_into(model, checkpoint.latest(folder))
    assert "\n" not in str(refused.value)
    for here, there in zip(model.variables, before, strict=True):
        assert np.array_equal(here.numpy(), there)


def test_what_keras_passes_over_in_silence_is_an_error(folder, trained, monkeypatch):
    checkpoint.save(folder, trained, {}, step=3)
    other = small_model(seed=2)
    monkeypatch.setattr(other.optimizer, "load_own_variables", lambda store: None)
    with pytest.raises(CheckpointError, match="iteration did not come back as it was saved"):
        checkpoint.restore_into(other, checkpoint.latest(folder))


def test_a_distributed_optimizer_saves_as_the_plain_one(folder):
    """Saved in a process with Horovod, loaded and continued here without it."""
    pytest.importorskip("horovod", reason="Horovod is not built here")
    script = f"""
import sys
sys.path.insert(0, {str(ROOT)!r}); sys.path.insert(0, {str(ROOT / "tests")!r})
import hvd_mnist.keras as hvd, keras
from hvd_mnist import checkpoint
from test_checkpoint import small_model, fit
hvd.init()
model = small_model(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01, use_ema=True)))
fit(model)
checkpoint.save(sys.argv[1], model, {{}}, step=3)
"""
    gloo = {"HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo"}
    run = [sys.executable, "-c", script, str(folder)]
    done = subprocess.run(run, env={**os.environ, **gloo}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    found = checkpoint.latest(folder)
    assert found.manifest.fingerprint.optimizer == "Adam"
    other = small_model(seed=2)
    checkpoint.restore_into(other, found)
    assert int(other.optimizer.iterations) == 3
    plain = keras.saving.load_model(found.path / "model.keras")
    assert type(plain.optimizer) is keras.optimizers.Adam and int(plain.optimizer.iterations) == 3


# ---------------------------------------------------------------- what is kept


def test_the_last_k_and_the_best_are_kept(folder, trained):
    for step, accuracy in enumerate([0.1, 0.9, 0.3, 0.9, float("nan"), 0.2, 0.1], start=1):
        saved = checkpoint.save(folder, trained, {}, step=step, keep=2, metric=accuracy)
        assert saved.path.is_dir() and saved.bytes > 0 and saved.seconds > 0
    assert names(folder) == ["best.json", "step-00000002", "step-00000006", "step-00000007"]
    assert json.loads((folder / "best.json").read_text()) == {
        "checkpoint": "step-00000002",
        "step": 2,
        "metric": {"name": "test_accuracy", "mode": "max", "value": 0.9},
    }
    assert checkpoint.best(folder).step == 2


def test_best_of_a_loss_is_the_smallest(folder, trained):
    for step, loss in enumerate([0.5, 0.1, 0.3], start=1):
        checkpoint.save(folder, trained, {}, step=step, keep=1, metric=loss, metric_name="loss", mode="min")
    assert names(folder) == ["best.json", "step-00000002", "step-00000003"]


def test_a_broken_checkpoint_does_not_take_the_place_of_a_good_one(folder, trained):
    for step in (1, 2, 3):
        checkpoint.save(folder, trained, {}, step=step, keep=3)
    for step in (2, 3):
        (folder / f"step-0000000{step}" / "manifest.json").unlink()
    checkpoint.save(folder, trained, {}, step=4, keep=2)
    assert [c.step for c in checkpoint.candidates(folder) if checkpoint.verify(c.path).ok] == [4, 1]


def test_the_same_step_again_replaces_it(folder, trained):
    checkpoint.save(folder, trained, {"try": 1}, step=5)
    saved = checkpoint.save(folder, trained, {"try": 2}, step=5)
    assert names(folder) == ["step-00000005"]
    assert checkpoint.load_state(saved.path) == {"try": 2}


def test_a_replaced_step_counts_until_its_successor_is_in_place(folder, trained):
    """The state between the two renames of a save that was killed there."""
    saved = checkpoint.save(folder, trained, {"try": 1}, step=5)
    saved.path.rename(folder / "step-00000005.old")
    assert checkpoint.load_state(checkpoint.latest(folder).path) == {"try": 1}
    checkpoint.save(folder, trained, {"try": 2}, step=6)  # another step must not take it away
    assert [c.path.name for c in checkpoint.candidates(folder)] == ["step-00000006", "step-00000005.old"]
    checkpoint.save(folder, trained, {"try": 3}, step=5)
    assert names(folder) == ["step-00000005", "step-00000006"]


def test_leftovers_of_dead_saves_are_swept_and_those_of_living_ones_are_not(folder, trained):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    host = write._host()
    folder.mkdir(parents=True)
    for name in (f".tmp-step-00000001-{host}-{dead.pid}", f".tmp-step-00000002-{host}-{os.getppid()}", ".tmp-other"):
        (folder / name).mkdir()
        (folder / name / "model.keras").write_bytes(b"x")
    checkpoint.save(folder, trained, {}, step=3)
    assert names(folder) == [".tmp-other", f".tmp-step-00000002-{host}-{os.getppid()}", "step-00000003"]
    assert [c.step for c in checkpoint.candidates(folder)] == [3]


def test_a_state_that_is_no_json_is_refused_before_anything_is_written(folder, trained):
    with pytest.raises(CheckpointError, match="JSON cannot: a set"):
        checkpoint.save(folder, trained, {"ranks": {1, 2}}, step=1)
    assert not folder.exists()


# ---------------------------------------------------------------- damage


def damage_cut(path):
    path.write_bytes(path.read_bytes()[:-1])


def damage_empty(path):
    path.write_bytes(b"")


def damage_flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def damage_remove(path):
    path.unlink()


def damage_pipe(path):
    path.unlink()
    os.mkfifo(path)


def damage_folder(path):
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("file", ["model.keras", "state.json", "manifest.json"])
@pytest.mark.parametrize(
    "damage",
    [damage_cut, damage_empty, damage_flip, damage_remove, damage_pipe, damage_folder],
    ids=lambda f: f.__name__,
)
def test_a_damaged_newest_is_skipped_with_a_reason(folder, trained, file, damage):
    checkpoint.save(folder, trained, {"good": True}, step=1)
    newest = checkpoint.save(folder, trained, {}, step=2).path
    damage(newest / file)
    lines = []
    found = checkpoint.latest(folder, lines.append)
    assert found.step == 1 and checkpoint.load_state(found.path) == {"good": True}
    (line,) = lines
    assert str(newest) in line and ("manifest" in line or file in line) and "\n" not in line
    for use in (lambda: checkpoint.restore_into(trained, newest), lambda: checkpoint.load_model(newest)):
        with pytest.raises(CheckpointError, match="step-00000002"):
            use()


def test_any_flipped_bit_is_found(folder, trained):
    path = checkpoint.save(folder, trained, {"step": 1}, step=1).path
    chance = random.Random(0)
    for file in ("model.keras", "state.json", "manifest.json"):
        content = (path / file).read_bytes()
        for _ in range(100):
            flipped = bytearray(content)
            flipped[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
            (path / file).write_bytes(flipped)
            assert not checkpoint.verify(path).ok
        (path / file).write_bytes(content)
    assert checkpoint.verify(path).ok


def test_a_bare_keras_file_with_a_flipped_bit_never_gives_wrong_weights(tmp_path, trained):
    whole = tmp_path / "whole.keras"
    trained.save(whole)
    content = whole.read_bytes()
    chance, refused = random.Random(0), 0
    for _ in range(30):
        flipped = bytearray(content)
        flipped[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        (tmp_path / "flipped.keras").write_bytes(flipped)
        try:
            model = checkpoint.load_model(tmp_path / "flipped.keras")
        except CheckpointError:
            refused += 1
            continue
        for here, there in zip(model.weights, trained.weights, strict=True):
            assert np.array_equal(here.numpy(), there.numpy())
    assert refused > 15


def rewrite(path, **changes):
    """Change a manifest and give it a right digest: what a newer version, or an attacker, would write."""
    body = {**json.loads(path.read_bytes()), **changes}
    body.pop("digest")
    path.write_text(json.dumps({**body, "digest": manifests._digest(body)}))


def test_a_newer_format_is_skipped_and_alone_it_is_an_error_not_a_new_beginning(folder, trained):
    checkpoint.save(folder, trained, {}, step=1)
    newest = checkpoint.save(folder, trained, {}, step=2).path
    rewrite(newest / "manifest.json", format=manifests.FORMAT + 1, something={"new": 1})
    lines = []
    assert checkpoint.latest(folder, lines.append).step == 1
    assert "newer hvd_mnist (manifest format 2, this one reads up to 1)" in lines[0]
    (folder / "step-00000001" / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match="none of 2 checkpoints.*newer hvd_mnist"):
        checkpoint.latest(folder, lines.append)


def test_another_models_checkpoint_is_skipped_when_a_fingerprint_is_given(folder, trained):
    checkpoint.save(folder, trained, {}, step=1)
    checkpoint.save(folder, small_model(units=5), {}, step=2)
    lines = []
    assert checkpoint.latest(folder, lines.append, checkpoint.fingerprint(trained)).step == 1
    assert "another model, first differing variable: found" in lines[0] and "(6, 5)" in lines[0]


def test_nothing_there_is_none(tmp_path):
    assert checkpoint.latest(tmp_path / "absent") is None
    (tmp_path / ".tmp-step-00000001-host-1").mkdir()
    (tmp_path / "step-1").mkdir()
    assert checkpoint.latest(tmp_path) is None


def test_a_step_folder_that_was_renamed_is_found_out(folder, trained):
    path = checkpoint.save(folder, trained, {}, step=1).path
    path.rename(folder / "step-00000009")
    assert "manifest.json is of step 1" in checkpoint.verify(folder / "step-00000009").reason


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


@pytest.fixture(scope="module")
def written(tmp_path_factory, trained):
    """One good checkpoint, the bytes of its manifest, and a copy to damage."""
    path = checkpoint.save(tmp_path_factory.mktemp("fuzz"), trained, {}, step=1).path
    return path, (path / "manifest.json").read_bytes()


def refused_or_right(path, content, good):
    """The reader's two answers to any manifest: not ok with one line, or exactly what was written."""
    (path / "manifest.json").write_bytes(content)
    verdict = checkpoint.verify(path)
    assert verdict.ok == (not verdict.reason) and "\n" not in verdict.reason and len(verdict.reason) < 500
    return verdict


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=200) | anything.map(lambda value: json.dumps(value).encode()))
def test_fuzz_any_bytes_as_a_manifest(written, content):
    path, good = written
    assert not refused_or_right(path, content, good).ok


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_fuzz_a_manifest_with_one_part_replaced_and_a_right_digest(written, data):
    path, good = written
    body = json.loads(good)
    body.pop("digest")
    holder = body
    while True:  # walk to a random place, as deep as chance has it
        keys = sorted(holder) if isinstance(holder, dict) else list(range(len(holder)))
        key = data.draw(st.sampled_from(keys))
        if isinstance(holder[key], dict | list) and holder[key] and data.draw(st.booleans()):
            holder = holder[key]
            continue
        holder[key] = data.draw(anything)
        break
    content = json.dumps({**body, "digest": manifests._digest(body)}).encode()
    refused_or_right(path, content, good)
    checkpoint.best(path.parent)
    if data.draw(st.integers(0, 9)) == 0:
        assert CliRunner().invoke(command, ["list", str(path.parent)]).exit_code == 0


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 200_000,
        b'{"format":' + b"9" * 10_000 + b"}",
        b"\xff\xfe",
        b'{"format": NaN}',
        b'{"a": "\\ud800"}',
        b"null",
    ],
    ids=["deep", "huge number", "utf-16", "nan", "surrogate", "null"],
)
def test_hostile_manifests_are_one_line(written, content):
    path, good = written
    assert not refused_or_right(path, content, good).ok


def test_a_manifest_without_end_is_not_read_to_its_end(written):
    path, good = written
    with open(path / "manifest.json", "wb") as file:
        file.truncate(1 << 40)  # sparse: a terabyte of zeros
    started = time.process_time()
    assert "longer than" in checkpoint.verify(path).reason
    assert time.process_time() - started < 5
    (path / "manifest.json").write_bytes(good)


def test_a_manifest_cannot_name_files_elsewhere(written):
    path, good = written
    body = json.loads(good)
    (path / "manifest.json").write_bytes(good)
    rewrite(path / "manifest.json", files={"../../etc/passwd": body["files"]["model.keras"]})
    assert "names the files" in checkpoint.verify(path).reason
    (path / "manifest.json").write_bytes(good)


# ---------------------------------------------------------------- the disk says no


@pytest.fixture
def tmpfs(tmp_path):
    """A file system of 64 kB, mounted for this test."""
    if os.geteuid() != 0:
        pytest.skip("mounting a tmpfs needs root")
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", place], capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"tmpfs cannot be mounted here: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", place], check=True)


def test_a_full_disk_is_one_line_and_leaves_the_older_checkpoints(tmpfs, trained, capfd):
    folder = tmpfs / "checkpoints"
    with pytest.raises(CheckpointError, match=r"step-\d+: No space left on device \(ENOSPC\) -> free space") as full:
        for step in range(1, 50):
            checkpoint.save(folder, trained, {}, step=step, keep=50)
    assert "\n" not in str(full.value) and step > 1
    assert names(folder) == [f"step-{n:08d}" for n in range(1, step)]
    assert all(checkpoint.verify(c.path).ok for c in checkpoint.candidates(folder))
    (tmpfs / "checkpoints" / "filler").write_bytes(b"")  # the folder can still be written
    checkpoint.save(folder, trained, {}, step=step - 1, keep=1) if step > 2 else None
    assert "Exception ignored" not in capfd.readouterr().err


def test_a_limit_on_file_size_is_one_line(folder, trained):
    checkpoint.save(folder, trained, {}, step=1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(CheckpointError, match=r"File too large \(EFBIG\)"):
            checkpoint.save(folder, trained, {}, step=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert names(folder) == ["step-00000001"]


def test_a_read_only_file_system_is_one_line(tmpfs, trained):
    folder = tmpfs / "checkpoints"
    checkpoint.save(folder, trained, {}, step=1)
    subprocess.run(["mount", "-o", "remount,ro", tmpfs], check=True)
    with pytest.raises(CheckpointError, match=r"Read-only file system \(EROFS\) -> use a --run-dir"):
        checkpoint.save(folder, trained, {}, step=2)
    with pytest.raises(CheckpointError, match="cannot lock run folder .*Read-only file system"):
        checkpoint.lock(tmpfs)
    assert checkpoint.latest(folder).step == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write where modes forbid it; the read-only mount covers it")
def test_a_folder_without_permission_is_one_line(tmp_path, trained):
    tmp_path.chmod(0o555)
    with pytest.raises(CheckpointError, match=r"Permission denied \(EACCES\)"):
        checkpoint.save(tmp_path / "checkpoints", trained, {}, step=1)
    tmp_path.chmod(0o755)


def test_a_file_in_the_place_of_the_folder_is_one_line(tmp_path, trained):
    (tmp_path / "checkpoints").write_text("not a folder")
    with pytest.raises(CheckpointError, match="File exists|Not a directory"):
        checkpoint.save(tmp_path / "checkpoints", trained, {}, step=1)


def test_interrupted_by_the_keyboard_nothing_is_left(folder, trained, monkeypatch):
    monkeypatch.setattr(write, "_into_place", lambda *_: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        checkpoint.save(folder, trained, {}, step=1)
    assert names(folder) == []


def test_the_error_number_is_found_however_deep_it_lies():
    inner = OSError(errno.ENOSPC, "x")
    try:
        try:
            raise inner
        except OSError:
            raise ValueError("Can't close the ZIP file")  # noqa: B904  as zipfile does
    except ValueError as outer:
        assert write._errno(outer) == errno.ENOSPC
    assert write._errno(RuntimeError("write failed: errno = 28, error message = 'x'")) == errno.ENOSPC


# ---------------------------------------------------------------- kill -9

SAVER = """
import os, sys, time
sys.path.insert(0, sys.argv[1]); sys.path.insert(0, sys.argv[1] + "/tests")
from test_checkpoint import small_model, np
from hvd_mnist import checkpoint
model = small_model()
started = time.perf_counter()
checkpoint.save(sys.argv[2], model, {}, step=1)
print("ready", time.perf_counter() - started, flush=True)
for line in sys.stdin:                  # one line a victim: "FOLDER FIRST_STEP"
    folder, step = line.split()
    step = int(step)
    child = os.fork()                   # TensorFlow is loaded once for all victims
    if child == 0:
        print("victim", os.getpid(), flush=True)
        while True:
            for variable in model.weights:
                variable.assign(np.full(variable.shape, float(step)))
            checkpoint.save(folder, model, {"value": step}, step=step, keep=2, metric=-abs(step % 7 - 3))
            print("saved", step, flush=True)
            step += step % 3 != 0 or os.urandom(1)[0] > 127   # some steps are saved twice
    os.waitpid(child, 0)
    print("dead", flush=True)
"""


@pytest.mark.timeout(900)
def test_kill_9_at_random_moments_always_leaves_the_newest_complete_checkpoint(folder, tmp_path):
    saver = subprocess.Popen(
        [sys.executable, "-c", SAVER, str(ROOT), str(tmp_path / "timed")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    limit = threading.Timer(800, saver.kill)
    limit.start()
    chance = random.Random()
    model = small_model(seed=2)
    acknowledged, cut_short, next_step = 0, 0, 1
    try:
        save_seconds = float(saver.stdout.readline().split()[1])
        for _ in range(KILLS):
            print(folder, next_step, file=saver.stdin, flush=True)
            victim = int(saver.stdout.readline().split()[1])
            for _ in range(chance.randrange(3)):  # after so many saves, in the middle of the next one
                acknowledged = int(saver.stdout.readline().split()[1])
            time.sleep(chance.uniform(0, 1.2 * save_seconds))
            os.kill(victim, signal.SIGKILL)
            while (line := saver.stdout.readline()) != "dead\n":
                assert line.startswith("saved"), line
                acknowledged = int(line.split()[1])
            skipped = []
            found = checkpoint.latest(folder, skipped.append)
            assert not skipped, f"a half-written folder was visible: {skipped}"
            assert (found.step if found else 0) >= acknowledged, "a finished save is gone"
            if found:
                state = checkpoint.restore_into(model, found)
                assert state["value"] == found.step
                assert all(np.all(v.numpy() == found.step) for v in model.weights), "weights of another step"
                assert all(checkpoint.verify(c.path).ok for c in checkpoint.candidates(folder))
                next_step = found.step + chance.randrange(2)  # sometimes the same step again
            strangers = [n for n in names(folder) if not n.startswith((".tmp-", "step-")) and n != "best.json"]
            assert not strangers
            cut_short += any(n.startswith(".tmp-") for n in names(folder))
    finally:
        limit.cancel()
        saver.stdin.close()
        saver.kill()
        saver.wait()
    assert acknowledged > 0 and cut_short > 0, (acknowledged, cut_short)
    print(f"{KILLS} kills, {cut_short} in the middle of a save, {acknowledged} steps saved")
    checkpoint.save(folder, model, {}, step=next_step + 1, keep=2)
    assert not [n for n in names(folder) if n.startswith(".tmp-")], "leftovers stay"


# ---------------------------------------------------------------- two jobs


def test_a_second_job_on_the_folder_is_told_whose_it_is(tmp_path, monkeypatch):
    script = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); from hvd_mnist import checkpoint\n"
        "held = checkpoint.lock(sys.argv[1]); print('held', flush=True); sys.stdin.read()"
    )
    run = tmp_path / "run"
    environment = {**os.environ, "SLURM_JOB_ID": "4711"}
    other = subprocess.Popen(
        [sys.executable, "-c", script, run], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    try:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(CheckpointError, match=rf"in use by pid {other.pid} on .* \(job 4711\) since 20\d\d-"):
            checkpoint.lock(run)
    finally:
        other.kill()  # SIGKILL: nothing is cleaned up
        other.wait()
        other.stdin.close(), other.stdout.close()
    with checkpoint.lock(run):
        with pytest.raises(CheckpointError, match=f"in use by pid {os.getpid()}"):
            checkpoint.lock(run)
    checkpoint.lock(run).release()


# ---------------------------------------------------------------- load, export, command line


class Own(keras.layers.Layer):
    def call(self, x):
        return x


def with_layer(layer):
    return keras.Sequential([keras.Input((2,)), layer])


def test_load_model_takes_the_best_of_a_run_else_the_newest(folder, trained):
    checkpoint.save(folder, trained, {}, step=1)
    better = small_model(seed=5)
    checkpoint.save(folder, better, {}, step=2, metric=0.9)
    checkpoint.save(folder, trained, {}, step=3, metric=0.1)
    x = np.ones((1, 6), "float32")
    assert np.array_equal(checkpoint.load_model(folder.parent)(x), better(x))
    damage_flip(folder / "step-00000002" / "model.keras")
    lines = []
    assert np.array_equal(checkpoint.load_model(folder.parent, notify=lines.append)(x), trained(x))
    assert "skipped the best checkpoint" in lines[0]
    compiled = checkpoint.load_model(folder / "step-00000001", compile=True)
    assert int(compiled.optimizer.iterations) == int(trained.optimizer.iterations)
    with pytest.raises(CheckpointError, match="no such folder"):
        checkpoint.load_model(folder / "absent")


def test_no_code_from_a_file_is_run(folder, tmp_path):
    with_layer(keras.layers.Lambda(lambda x: x * 2)).save(tmp_path / "lambda.keras")
    with pytest.raises(CheckpointError, match="asks for a Lambda with Python code"):
        checkpoint.load_model(tmp_path / "lambda.keras")
    with_layer(Own()).save(tmp_path / "own.keras")
    with pytest.raises(CheckpointError, match=r"asks for .*Own, which is not registered here; nothing was run"):
        checkpoint.load_model(tmp_path / "own.keras")
    with keras.saving.custom_object_scope({"Own": Own}):
        assert checkpoint.load_model(tmp_path / "own.keras")(np.ones((1, 2))).shape == (1, 2)


@pytest.mark.parametrize(
    "part",
    [
        {"class_name": "function", "module": "os", "config": "system", "registered_name": "system"},
        {"class_name": "Popen", "module": "subprocess", "config": {"args": "true"}, "registered_name": "Popen"},
        {"class_name": "function", "module": "keras.utils", "config": "get_file", "registered_name": "get_file"},
    ],
    ids=["os.system", "Popen", "get_file"],
)
def test_a_crafted_configuration_reaches_nothing(tmp_path, part):
    plain, crafted = tmp_path / "plain.keras", tmp_path / "crafted.keras"
    with_layer(keras.layers.Dense(1)).save(plain)
    with zipfile.ZipFile(plain) as source, zipfile.ZipFile(crafted, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            if name == "config.json":
                config = json.loads(content)
                config["config"]["layers"][1]["config"]["activation"] = part
                content = json.dumps(config).encode()
            target.writestr(name, content)
    with pytest.raises(CheckpointError) as refused:
        checkpoint.load_model(crafted)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["serving.keras", "serving"])
def test_export_has_no_optimizer_and_loads_without_horovod(folder, trained, tmp_path, name):
    checkpoint.save(folder, trained, {}, step=1)
    done = checkpoint.export(folder.parent, tmp_path / name)
    assert done.path.exists() and done.bytes > 0 and done.difference < 1e-5
    if name.endswith(".keras"):
        with zipfile.ZipFile(done.path) as archive:
            config = archive.read("config.json")
        assert b"horovod" not in config and b"Adam" not in config
    assert not list(tmp_path.glob(".tmp-*"))
    with pytest.raises(CheckpointError, match="exists -> choose another name"):
        checkpoint.export(folder.parent, tmp_path / name)


@pytest.mark.parametrize(
    "child, message",
    [
        (serving._CHECK.split("import numpy")[0] + "import hvd_mnist.keras", "absent: ModuleNotFoundError.*hvd_mnist"),
        (serving._CHECK.split("import numpy")[0] + "import horovod.tensorflow", "absent: ModuleNotFoundError.*horovod"),
        ("import sys, numpy; numpy.savez(sys.argv[3], numpy.zeros((4, 2), 'float32'))", "answers differently"),
    ],
    ids=["needs hvd_mnist", "needs horovod", "other outputs"],
)
def test_an_export_that_fails_its_check_is_refused_and_leaves_nothing(
    folder, trained, tmp_path, monkeypatch, child, message
):
    checkpoint.save(folder, trained, {}, step=1)
    monkeypatch.setattr(serving, "_CHECK", child)
    with pytest.raises(CheckpointError, match=message):
        checkpoint.export(folder, tmp_path / "out" / "out.keras")
    assert not list((tmp_path / "out").iterdir())


def test_the_command_line(folder, trained):
    run = CliRunner().invoke
    checkpoint.save(folder, trained, {"epoch": 1, "world_size": 2}, step=1, metric=0.5)
    checkpoint.save(folder, trained, {}, step=2, metric=0.25)
    listed = run(command, ["list", str(folder.parent)])
    assert listed.exit_code == 0 and "step-00000001" in listed.output and "0.5 (best)" in listed.output
    rows = json.loads(run(command, ["list", "--json", str(folder)]).output)
    assert [(row["step"], row["best"], row["complete"]) for row in rows] == [(2, False, True), (1, True, True)]
    shown = run(command, ["show", str(folder.parent)])
    assert "step 1" in shown.output and "world_size: 2" in shown.output and "(6, 4) float32" in shown.output
    assert json.loads(run(command, ["show", "--json", str(folder.parent)]).output)["state"]["epoch"] == 1
    assert run(command, ["verify", str(folder.parent)]).exit_code == 0
    damage_flip(folder / "step-00000002" / "model.keras")
    broken = run(command, ["verify", str(folder.parent)])
    assert isinstance(broken.exception, CheckpointError) and "1 of 2" in str(broken.exception)
    assert "BROKEN" in broken.output and "sha256 does not match" in broken.output
    missing = run(command, ["list", str(folder / "absent")])
    assert isinstance(missing.exception, CheckpointError)


def test_looking_at_checkpoints_loads_neither_keras_nor_tensorflow(folder, trained):
    checkpoint.save(folder, trained, {}, step=1)
    script = (
        "import sys; sys.modules['tensorflow'] = sys.modules['keras'] = sys.modules['horovod'] = None\n"
        "from hvd_mnist.cli import cli\n"
        "for word in ('list', 'verify', 'show'):\n"
        "    cli.main(['checkpoint', word, sys.argv[1]], standalone_mode=False)"
    )
    done = subprocess.run([sys.executable, "-c", script, folder], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
