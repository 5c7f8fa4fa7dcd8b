"""What each rank of ``hvd-mnist bench allreduce`` runs: one backend, all sizes; rank 0 writes a line for each.

    horovodrun --gloo -np 2 python -m hvd_mnist.bench.exchange_ranks '{"backend": "horovod-gloo", ...}'

Correctness comes first: at each size every element of every rank's answer is compared with the exact one. Then the
times, per iteration, of which the slowest rank's counts: on CPUs, for Horovod, from tensors that are there to sums that
are there, by the clock of TensorFlow's own step, since in training an exchange is no call of its own.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable

import numpy as np

from hvd_mnist.errors import UsageError

CYCLE = 251  # of the values in a tensor: prime, so that a block that went astray shows


def main() -> None:
    asked = json.loads(sys.argv[1])
    exchange = BACKENDS[asked["backend"]](asked["op"])
    layouts = [asked["shapes"]] if asked["shapes"] else [_shapes(size, asked) for size in asked["sizes"]]
    for shapes in layouts:
        line = measure(exchange, shapes, asked)
        if exchange.rank == 0:
            with open(asked["out"], "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
    exchange.leave()


def _shapes(size: int, asked: dict) -> list[list[int]]:
    """``tensors`` equal tensors of together about ``size`` bytes, each with one element at least."""
    each = max(1, size // item_size(asked["dtype"]) // asked["tensors"])
    return [[each]] * asked["tensors"]


def item_size(dtype: str) -> int:
    return {"float32": 4, "float16": 2, "bfloat16": 2}[dtype]


def measure(exchange, shapes: list[list[int]], asked: dict) -> dict:
    """Check one size, then time it."""
    op, dtype, ranks, rank = asked["op"], asked["dtype"], exchange.size, exchange.rank
    counts = [math.prod(shape) for shape in shapes]
    arrays = [values(op, count, rank, dtype).reshape(shape) for count, shape in zip(counts, shapes, strict=True)]
    act, read = exchange.prepared(arrays, dtype)
    act()
    wrong = 0
    for count, answer in zip(counts, read(), strict=True):
        expected = exact(op, count, ranks, dtype)
        answer = np.asarray(answer, np.float64).reshape(-1)
        wrong += int(np.sum(answer != expected)) if answer.size == expected.size else expected.size
    for _ in range(asked["warmup"]):
        act()
    seconds = np.empty(asked["iterations"])
    cpu = time.process_time()
    for number in range(asked["iterations"]):
        seconds[number] = act()
    cpu = (time.process_time() - cpu) / asked["iterations"]
    told = exchange.gather(np.array([wrong, cpu, *seconds]))
    size = sum(counts) * item_size(dtype) * (ranks if op == "allgather" else 1)
    return {
        "backend": asked["backend"],
        "op": op,
        "dtype": dtype,
        "tensors": len(shapes),
        "bytes": size,
        "ranks": ranks,
        "seconds": told[:, 2:].max(axis=0).tolist(),
        "cpu_seconds": float(told[:, 1].sum()),
        "wrong": int(told[:, 0].sum()),
        "cycle_ms": exchange.cycle_ms,
    }


def values(op: str, count: int, rank: int, dtype: str) -> np.ndarray:
    """Float64, shape [count]: whole numbers, such that every dtype holds the answer exactly (up to 256 ranks)."""
    index = np.arange(count)
    summed_in_half = op == "allreduce" and dtype != "float32"
    return ((index + rank) % 2 if summed_in_half else (index + 3 * rank) % CYCLE).astype(np.float64)


def exact(op: str, count: int, ranks: int, dtype: str) -> np.ndarray:
    """The right answer, on every rank: float64, shape [count] ([ranks x count] for an allgather)."""
    parts = [values(op, count, rank, dtype) for rank in range(ranks)]
    return {"allreduce": lambda: sum(parts), "broadcast": lambda: parts[0], "allgather": lambda: np.concatenate(parts)}[
        op
    ]()


Prepared = tuple[Callable[[], float], Callable[[], list]]  # exchange once, in how many seconds; read the answers


def clocked(call: Callable[[], object]) -> Callable[[], float]:
    def act() -> float:
        begun = time.perf_counter()
        call()
        return time.perf_counter() - begun

    return act


class Horovod:
    """As a training step does it: inside a tf.function, several tensors as one group, new ones each time."""

    def __init__(self, op: str):
        from hvd_mnist.runtime import devices, world

        here = world.join()
        devices.pin(here.local_rank, here.local_size, here.host, devices.my_threads(here.local_size))
        self.op, self.rank, self.size, self._world = op, here.rank, here.size, world
        woken = os.environ.get("HOROVOD_WAKE_ON_ENQUEUE") == "1"
        self.cycle_ms = 0.0 if woken else float(os.environ.get("HOROVOD_CYCLE_TIME") or 1)

    def prepared(self, arrays, dtype) -> Prepared:
        import horovod.tensorflow as hvd
        import tensorflow as tf

        from hvd_mnist.keras.compression import sum_bfloat16

        tensors = [tf.cast(tf.constant(array), dtype) for array in arrays]
        answers: list = []
        name = f"{self.op}.{sum(array.size for array in arrays)}"  # the same on every rank, another for each size

        def exchanged(made):
            if dtype == "bfloat16":  # Horovod's operations do not take it: summed as in training, else sent as bits
                if self.op == "allreduce":
                    return sum_bfloat16(made, name, hvd.global_process_set)
                made = [tf.bitcast(one, tf.uint16) for one in made]
            elif self.op == "allreduce":
                return hvd.grouped_allreduce(made, op=hvd.Sum, name=name, ignore_name_scope=True)
            act = {"broadcast": lambda *a, **k: hvd.broadcast(*a, root_rank=0, **k), "allgather": hvd.allgather}[
                self.op
            ]
            sent = [act(one, name=f"{name}.{index}", ignore_name_scope=True) for index, one in enumerate(made)]
            return [tf.bitcast(one, dtype) for one in sent]

        @tf.function(autograph=False)
        def step():
            made = [tf.raw_ops.DeepCopy(x=tensor) for tensor in tensors]  # like gradients: nobody else has them
            with tf.control_dependencies(made):
                begun = tf.timestamp()
            with tf.control_dependencies([begun]):
                sums = exchanged(made)
            with tf.control_dependencies(sums):
                return tf.timestamp() - begun, sums

        @tf.function(autograph=False)
        def on_gpus():
            return exchanged(tensors)

        def in_a_step() -> float:
            seconds, answers[:] = step()
            return float(seconds)

        def call():
            answers[:] = on_gpus()
            tf.test.experimental.sync_devices()  # until then it is only promised, and a timestamp would not wait

        act = clocked(call) if tf.config.get_visible_devices("GPU") else in_a_step
        return act, lambda: [tf.cast(answer, tf.float64).numpy() for answer in answers]

    def gather(self, line: np.ndarray) -> np.ndarray:
        return np.array(self._world.gather_json(line.tolist(), "bench"))

    def leave(self) -> None:
        self._world.leave()


class RawMpi:
    """MPI by itself, in a process without TensorFlow: all tensors as one flat buffer."""

    cycle_ms = 0.0

    def __init__(self, op: str):
        from mpi4py import MPI

        self.op, self._mpi, self._world = op, MPI, MPI.COMM_WORLD
        self.rank, self.size = self._world.Get_rank(), self._world.Get_size()

    def prepared(self, arrays, dtype) -> Prepared:
        if dtype != "float32":
            raise UsageError(f"--dtype {dtype} over raw MPI: MPI has no such type", "leave mpi out of --backends")
        flat = np.concatenate([array.reshape(-1) for array in arrays]).astype(np.float32)
        out = np.empty(flat.size * (self.size if self.op == "allgather" else 1), np.float32)
        ends = np.cumsum([array.size for array in arrays])

        def read():
            if self.op == "allgather":
                by_rank = out.reshape(self.size, -1)
                return [by_rank[:, end - array.size : end] for end, array in zip(ends, arrays, strict=True)]
            return np.split(out, ends[:-1])

        return clocked(self._act(flat, out)), read

    def _act(self, flat, out):
        if self.op == "broadcast":
            np.copyto(out, flat)
            return lambda: self._world.Bcast(out, 0)
        call = {"allreduce": self._world.Allreduce, "allgather": self._world.Allgather}[self.op]
        return lambda: call(flat, out)

    def gather(self, line: np.ndarray) -> np.ndarray:
        told = np.empty((self.size, line.size))
        self._world.Allgather(line, told)
        return told

    def leave(self) -> None:
        self._world.Barrier()


class ParameterServer(RawMpi):
    """What the ring replaced: every rank sends its gradients to rank 0, which adds them up and sends the sum back."""

    def _act(self, flat, out):
        if self.op != "allreduce":
            raise UsageError(f"a parameter server does no {self.op}", "leave parameter-server out of --backends")
        came = np.empty_like(flat)

        def serve():
            np.copyto(out, flat)
            for source in range(1, self.size):
                self._world.Recv(came, source)
                np.add(out, came, out)
            for request in [self._world.Isend(out, rank) for rank in range(1, self.size)]:
                request.Wait()

        def work():
            self._world.Send(flat, 0)
            self._world.Recv(out, 0)

        return serve if self.rank == 0 else work


BACKENDS = {"horovod-gloo": Horovod, "horovod-mpi": Horovod, "mpi": RawMpi, "parameter-server": ParameterServer}


if __name__ == "__main__":
    main()
