"""The cheapest real Horovod job: all ranks meet (Gloo's rendezvous or MPI_Init), each prints who it is.

Horovod's own native library is loaded as it is, without importing TensorFlow's Python, which would cost most of
a test's time. It has no collective on this level: programs/sum_ranks.py adds numbers up.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import socket
from pathlib import Path

from horovod.common import process_sets
from horovod.common.basics import HorovodBasics

tensorflow = Path(importlib.util.find_spec("tensorflow").origin).parent
for library in ("libtensorflow_framework.so.2", "libtensorflow_cc.so.2"):
    ctypes.CDLL(str(tensorflow / library), mode=ctypes.RTLD_GLOBAL)
hvd = HorovodBasics(str(tensorflow.parent / "horovod" / "tensorflow" / "__init__.py"), "mpi_lib")
process_sets._setup(hvd)
hvd.init()
names = ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")
line = {name: getattr(hvd, name)() for name in names}
line |= {"host": socket.gethostname(), "controller": "mpi" if hvd.mpi_enabled() else "gloo", "user": os.getuid()}
# One write, with its own line end: lines of ranks must not mix.
print(json.dumps(line) + "\n", end="", flush=True)
hvd.shutdown()
