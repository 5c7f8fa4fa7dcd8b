"""An exchange sees what the step computed before it, and what follows sees the exchange.

On a CPU this is easily so. On a GPU both are promises between TensorFlow's stream and Horovod's own, and this build
supplies the function that finds TensorFlow's (docs/building.md); were it the wrong one, old numbers would be summed.
"""

import numpy as np
import tensorflow as tf

import hvd_mnist.keras as hvd

GPU = bool(tf.config.list_physical_devices("GPU"))
SIDE, PRODUCTS, ROUNDS = (4096, 20, 30) if GPU else (128, 5, 4)  # on a GPU: milliseconds of work before each exchange


def test_an_allreduce_waits_for_the_work_before_it_and_the_work_after_it_waits_too():
    unit = tf.eye(SIDE)

    @tf.function(autograph=False)
    def step(tensor):
        for _ in range(PRODUCTS):
            tensor = tf.matmul(tensor, unit) + 1.0
        return hvd_sum(tensor, "order") + 0.0

    for number in range(ROUNDS):
        summed = step(tf.fill([SIDE, SIDE], float(hvd.rank() + number)))
        expected = sum(rank + number + PRODUCTS for rank in range(hvd.size()))
        assert int(tf.math.count_nonzero(summed != float(expected))) == 0, f"round {number}"
        assert not GPU or "GPU" in summed.device


def test_collectives_of_tensors_where_the_model_lives():
    """Each of them where TensorFlow puts a tensor by itself: the GPU where there is one."""
    size, rank = hvd.size(), hvd.rank()
    values = np.arange(12.0).reshape(3, 4)
    for dtype in ("float16", "float32", "float64"):
        summed = hvd_sum(tf.cast(values + rank, dtype), f"order.{dtype}")
        np.testing.assert_array_equal(summed, values * size + size * (size - 1) / 2)
    given = hvd.broadcast(tf.fill([1000], rank + 5.0), root_rank=size - 1, name="order.broadcast")
    np.testing.assert_array_equal(given, np.full(1000, size + 4.0))
    rows = hvd.allgather(tf.fill([rank + 1, 3], float(rank)), name="order.allgather")
    np.testing.assert_array_equal(rows, np.concatenate([np.full((r + 1, 3), float(r)) for r in range(size)]))
    assert not GPU or all("GPU" in tensor.device for tensor in (summed, given, rows))


def hvd_sum(tensor, name):
    import horovod.tensorflow as stock

    return stock.allreduce(tensor, op=hvd.Sum, name=name, ignore_name_scope=True)
