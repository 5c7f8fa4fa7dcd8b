"""The ring: this toolkit's trainer, unchanged, under the interface of the older ways.

    hvd-mnist baseline ring -np 2 --epochs 1

is ``horovodrun --gloo -np 2 hvd-mnist train --epochs 1``, started by ``hvd-mnist launch``. No task is special: every
rank has the variables, computes its batch, and sends 2 (N - 1) / N of the model a step to one neighbour.
"""

from __future__ import annotations

import dataclasses

from hvd_mnist.baselines import KNOBS, tasks
from hvd_mnist.config import TrainConfig


def launch_words(config: TrainConfig, ranks: int, hosts: list[str]) -> list[str]:
    """The words of ``hvd-mnist`` that train with ``ranks`` ranks, one after the other on ``hosts`` or all here."""
    names = [spec.name for spec in dataclasses.fields(TrainConfig) if spec.name in KNOBS]
    where = ["-H", slots(ranks, hosts)] if hosts else []
    return ["launch", "-np", str(ranks), *where, "--", "train", *tasks.knob_words(config, names)]


def slots(ranks: int, hosts: list[str]) -> str:
    """``-H`` for that many ranks dealt out over the hosts.

    >>> slots(3, ["a", "b"])
    'a:2,b:1'
    """
    counts = {host: ranks // len(hosts) + (place < ranks % len(hosts)) for place, host in enumerate(hosts)}
    return ",".join(f"{host}:{number}" for host, number in counts.items() if number)
