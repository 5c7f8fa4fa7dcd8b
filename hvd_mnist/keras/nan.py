"""Stop all ranks together when a loss is not finite, and say which rank, step and samples it was.

One rank's NaN is in every rank's weights after the same step, since gradients are averaged. The rank where it began
sees it first, in the loss that Keras brings back anyway; its vote (votes.py) tells the others one step later. With
``gradients=True`` each rank looks at its own gradients before they are averaged, and all hear of it in the same step.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import horovod.tensorflow as hvd
import keras
import numpy as np

from hvd_mnist.errors import NotFinite
from hvd_mnist.keras.replicas import is_distributed
from hvd_mnist.keras.votes import Votes, votes_of
from hvd_mnist.runtime import world

VARIABLE = "a variable"


class TerminateOnNaN(keras.callbacks.Callback):
    """Belongs on every rank, in the place of Keras' own, which would stop one rank and leave the others waiting.

    Args:
        folder: a rank that finds something writes ``FOLDER/nan-rank-R.json`` there at once; None: nowhere.
        sample_ids: given the number of the batch in this ``fit``'s epoch, the ids of the samples in it, for that file.
        hint: what to type, for the error.
        gradients: look at each rank's gradients too, one sum for each of them in the step. Then the rank is known also
            where a gradient is not finite while the loss still is. Has no effect on a step that was traced before, and
            none under loss scaling (mixed_float16), where infinite gradients are normal.

    Raises:
        NotFinite: on every rank after the same step; names the first rank, its host, the step, and what was not
            finite: the loss, or the first such variable.
    """

    def __init__(
        self,
        folder: str | Path | None = None,
        sample_ids: Callable[[int], Iterable[int]] | None = None,
        hint: str | None = "a lower learning rate, or a longer warm-up",
        gradients: bool = False,
    ):
        super().__init__()
        self.gradients = gradients
        self.folder, self.sample_ids, self.hint = None if folder is None else Path(folder), sample_ids, hint
        self.finding: dict[str, Any] | None = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        scaled = isinstance(self.model.optimizer, keras.optimizers.LossScaleOptimizer)
        if self.gradients and self._votes is not None and not scaled:
            self._votes.watch_gradients = True

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        loss = (logs or {}).get("loss", 0.0)
        votes = self._votes
        if self.finding is None and not math.isfinite(loss):  # a running mean: NaN and infinity stay in it
            self._found(f"loss ({loss:g})", batch)
            if votes is not None:
                votes.vote("not finite")
        if votes is None or not votes.ride or "not finite" not in votes.heard():
            return
        if self.finding is None and votes.watch_gradients and votes.bad_gradient() is not None:
            self._found(f"the gradient of '{votes.bad_gradient()}'", batch)
        self.check()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.check()

    def check(self) -> None:
        """Ask all ranks, and look through the variables; every rank must call it."""
        if self.finding is None and self._first_variable() is not None:
            self._found(VARIABLE, None)
        told = world.gather_json(self.finding, "TerminateOnNaN")
        found = [finding for finding in told if finding is not None]
        if found:
            raise NotFinite(in_words(found), self.hint)

    @property
    def _votes(self) -> Votes | None:
        """The votes of the optimizer; None where it meets no other rank."""
        optimizer = self.model.optimizer
        return votes_of(optimizer, "TerminateOnNaN") if is_distributed(optimizer) else None

    def _found(self, what: str, batch: int | None) -> None:
        self.finding = {
            "rank": hvd.rank(),
            "host": world.hostname(),
            "step": self._step(),
            "what": what,
            "first_variable": self._first_variable(),
        }
        if self.folder is None:
            return
        ids = None if batch is None or self.sample_ids is None else [int(i) for i in self.sample_ids(batch)]
        path = self.folder / f"nan-rank-{hvd.rank()}.json"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({**self.finding, "batch": batch, "sample_ids": ids}) + "\n", encoding="utf-8")
            self.finding["file"] = str(path)
        except OSError:
            pass  # the error itself must come out, with or without the file

    def _step(self) -> int:
        """The optimizer step that the last batch belongs to, from 1."""
        optimizer = self.model.optimizer
        step = int(np.asarray(optimizer.iterations))
        exchange = optimizer._exchange if is_distributed(optimizer) else None
        begun = exchange is not None and exchange.passes > 1 and int(exchange._pass) % exchange.passes
        return step + 1 if begun else step

    def _first_variable(self) -> str | None:
        for variable in self.model.trainable_variables:
            if not np.isfinite(np.asarray(variable, np.float32)).all():
                return str(variable.path)
        return None


def in_words(found: list[dict[str, Any]]) -> str:
    """One line of what the ranks found; the earliest step is the cause, what other ranks saw later is not. Pure.

    Args:
        found: of each rank that found something: rank, host, step, what, first_variable, and perhaps file.
    """

    def when(finding: dict[str, Any]) -> tuple[int, bool]:
        return finding["step"], finding["what"] == VARIABLE  # a rank's own loss comes before everybody's variables

    ranks = [finding for finding in found if when(finding) == min(map(when, found))]
    one = ranks[0]
    line = f"{one['what']} is not finite on rank {one['rank']}, {one['host']}, at step {one['step']}"
    if len(ranks) > 1:
        line += f" (and on {len(ranks) - 1} more: the variables were not finite before)"
    if one["first_variable"]:
        line += f"; first variable that is not: '{one['first_variable']}'"
    if one.get("file"):
        line += f"; samples in {one['file']}"
    return line
