"""``hvd-mnist bench``: the words after it. Each lives in a module of its own, imported when it is used."""

from __future__ import annotations

import click

from hvd_mnist.commands.lazy import LazyGroup

COMMANDS = {
    # name: (module, attribute, one line of help)
    "allreduce": ("hvd_mnist.commands.bench_exchange", "allreduce", "Latency and bandwidth, as by nccl-tests."),
    "broadcast": ("hvd_mnist.commands.bench_exchange", "broadcast", "The same for a broadcast."),
    "allgather": ("hvd_mnist.commands.bench_exchange", "allgather", "The same for an allgather."),
    "predict": ("hvd_mnist.commands.bench_predict", "predict", "By a cost model: exchange and step on N ranks."),
    "targets": ("hvd_mnist.commands.bench_targets", "targets", "The speed that is wanted, measured here."),
    "scaling": ("hvd_mnist.commands.bench_scaling", "scaling", "The trainer on 1, 2, 4 ... ranks, step by step."),
    "timeline": ("hvd_mnist.commands.bench_timeline", "timeline", "What Horovod's timeline says, and what to change."),
    "compare": ("hvd_mnist.commands.bench_compare", "compare", "The older ways beside the ring, on the same work."),
}


@click.group(cls=LazyGroup, lazy=COMMANDS)
def bench():
    """Measurements; each proves its answer before its speed."""
