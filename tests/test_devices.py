"""Which GPU, how many threads: by table, with pretended devices."""

import pytest

from hvd_mnist.errors import EnvironmentUnfit
from hvd_mnist.runtime.devices import cgroup_cpu_quota, gpu_index, ranks_on_one_gpu, threads_per_rank


@pytest.mark.parametrize(
    "visible, local_rank, local_size, mask, expected",
    [
        (0, 3, 4, None, None),  # no GPU: train on the CPU
        (4, 3, 4, None, 3),
        (8, 3, 4, None, 3),  # more GPUs than ranks
        (4, 1, 4, "4,5,6,7", 1),  # a mask of as many GPUs as ranks
        (1, 3, 4, "3", 0),  # the scheduler gave each rank its own
        (1, 0, 1, None, 0),
        (1, 5, 8, "GPU-5f2c", 0),
    ],
)
def test_gpu_index(visible, local_rank, local_size, mask, expected):
    assert gpu_index(visible, local_rank, local_size, mask, "host1") == expected


@pytest.mark.parametrize(
    "visible, mask, words",
    [
        (2, "0,1", "host host1: 4 ranks but 2 visible GPUs (CUDA_VISIBLE_DEVICES=0,1); local rank 0 has none"),
        (1, None, "host host1: 4 ranks but 1 visible GPU (CUDA_VISIBLE_DEVICES not set)"),
    ],
)
def test_too_few_gpus(visible, mask, words):
    with pytest.raises(EnvironmentUnfit) as error:
        gpu_index(visible, 0, 4, mask, "host1")
    assert str(error.value).startswith(words) and f"-H host1:{visible}" in str(error.value)


def test_ranks_on_one_gpu():
    claims = [(0, "a", "0"), (1, "a", "1"), (2, "b", "0"), (3, "b", "0")]
    assert ranks_on_one_gpu(claims[:3]) is None
    assert ranks_on_one_gpu(claims) == "host b: ranks 2, 3 all claim GPU 0; each needs its own"
    assert ranks_on_one_gpu([]) is None


@pytest.mark.parametrize(
    "mine, launcher, local_size, quota, expected",
    [
        (8, 8, 4, None, 2),
        (8, 8, 1, None, 8),
        (2, 2, 4, None, 1),  # more ranks than cores
        (1, 8, 2, None, 1),  # bound to one core
        (4, 8, 2, None, 4),  # bound to a socket each
        (8, 8, 2, 4.0, 2),  # a container's limit
        (64, 64, 4, 1.5, 1),
        (4, 2, 2, None, 2),  # a parent with fewer cores than its child says nothing
    ],
)
def test_threads_per_rank(mine, launcher, local_size, quota, expected):
    assert threads_per_rank(mine, launcher, local_size, quota) == expected


@pytest.mark.parametrize("text, expected", [("150000 100000", 1.5), ("max 100000", None), ("", None)])
def test_cgroup_quota(text, expected, tmp_path):
    (tmp_path / "cpu.max").write_text(text)
    assert cgroup_cpu_quota(tmp_path) == expected


def test_cgroup_quota_version_1(tmp_path):
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu/cpu.cfs_quota_us").write_text("50000")
    (tmp_path / "cpu/cpu.cfs_period_us").write_text("100000")
    assert cgroup_cpu_quota(tmp_path) == 0.5
    (tmp_path / "cpu/cpu.cfs_quota_us").write_text("-1")
    assert cgroup_cpu_quota(tmp_path) is None


def test_pin_chooses_one_gpu(monkeypatch):
    """With pretended GPUs: only the chosen one is visible, and its memory grows."""
    import tensorflow as tf

    from hvd_mnist.runtime import devices

    gpus = [tf.config.PhysicalDevice(f"/physical_device:GPU:{i}", "GPU") for i in range(4)]
    did = {}
    monkeypatch.setattr(tf.config.threading, "set_intra_op_parallelism_threads", lambda n: did.update(intra=n))
    monkeypatch.setattr(tf.config.threading, "set_inter_op_parallelism_threads", lambda n: did.update(inter=n))
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: gpus)
    monkeypatch.setattr(tf.config, "set_visible_devices", lambda device, kind: did.update(visible=(device, kind)))
    monkeypatch.setattr(tf.config.experimental, "set_memory_growth", lambda device, on: did.update(growth=(device, on)))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert devices.pin(2, 4, "host1", threads=3) == 2
    assert did == {"intra": 3, "inter": 2, "visible": (gpus[2], "GPU"), "growth": (gpus[2], True)}

    def too_late(n):
        raise RuntimeError("Intra op parallelism cannot be modified after initialization.")

    monkeypatch.setattr(tf.config.threading, "set_intra_op_parallelism_threads", too_late)
    with pytest.raises(EnvironmentUnfit, match="used a device before its GPU was chosen"):
        devices.pin(2, 4, "host1", threads=3)
