"""The smallest Horovod job: all ranks add up their ranks, each prints one line of JSON on who it is."""

from __future__ import annotations

import json
import socket

import horovod.tensorflow as hvd
import tensorflow as tf

hvd.init()
total = hvd.allreduce(tf.constant(float(hvd.rank())), op=hvd.Sum, name="sum_of_ranks")
line = {
    "rank": hvd.rank(),
    "size": hvd.size(),
    "local_rank": hvd.local_rank(),
    "local_size": hvd.local_size(),
    "cross_rank": hvd.cross_rank(),
    "cross_size": hvd.cross_size(),
    "host": socket.gethostname(),
    "sum": float(total),
    "controller": "mpi" if hvd.mpi_enabled() else "gloo",
}
# One write, with its own line end: lines of ranks must not mix.
print(json.dumps(line) + "\n", end="", flush=True)
hvd.shutdown()
