"""What any rank wants, known to all ranks after the same step: votes that ride with the gradients.

A rank may be told to stop (a signal, a file, a clock) or find that it must (a loss that is NaN), and the others know
nothing of it. A collective of its own for that question would cost each step a round trip. So four numbers go along
in the allreduce of the gradients: 0, or 1 where this rank votes for something. What comes back is the same on all
ranks, and whatever is not 0 was wanted by somebody.
"""

from __future__ import annotations

import tensorflow as tf

from hvd_mnist.errors import UsageError
from hvd_mnist.keras.replicas import is_distributed

KINDS = ("save", "stop", "quit", "not finite")


class Votes:
    """The votes of this rank, and what the last exchange of gradients brought back.

    Attributes:
        ride: False where the exchange cannot carry them (Adasum, a process set, no dense gradient); then nobody
            hears a vote, and ``heard`` raises.
        watch_gradients: set before the step is traced: a gradient of this rank's that is not finite is a vote for
            "not finite" in the same step. It costs one sum for each gradient.
    """

    def __init__(self, name: str):
        self.ride = self.watch_gradients = False
        self._watched: list[str] = []
        with tf.init_scope(), tf.device("/CPU:0"):
            self._mine = tf.Variable(tf.zeros(len(KINDS)), trainable=False, name=f"{name}.votes")
            self._heard = tf.Variable(tf.zeros(len(KINDS)), trainable=False, name=f"{name}.heard")
            self._bad = tf.Variable(0, dtype=tf.int64, trainable=False, name=f"{name}.bad_gradient")
        self._name, self._rank = name, None

    def share_figures(self, rank: int, size: int) -> None:
        """From now on a number of each rank's goes along; call it on all ranks, before the step is traced."""
        with tf.init_scope(), tf.device("/CPU:0"):
            self._figure = tf.Variable(tf.zeros(size), trainable=False, name=f"{self._name}.figure")
            self._figures = tf.Variable(tf.zeros(size), trainable=False, name=f"{self._name}.figures")
        self._rank = rank

    def tell(self, figure: float) -> None:
        """This rank's number, from the next exchange on; at least 0."""
        mine = self._figure.numpy() * 0
        mine[self._rank] = figure
        self._figure.assign(mine)

    def told(self) -> list[float]:
        """What all ranks told in the last exchange, in the wire's precision, and all by one and the same factor too
        large or small (the exchange may be a mean): they can be compared with one another, and with nothing else.

        Raises:
            UsageError: no exchange carries votes.
        """
        self._must_ride()
        return self._figures.numpy().tolist()

    def vote(self, kind: str, wanted: bool = True) -> None:
        """From the next exchange on, ask for ``kind`` (or no longer)."""
        mine = self._mine.numpy()
        mine[KINDS.index(kind)] = float(wanted)
        self._mine.assign(mine)

    def heard(self) -> tuple[str, ...]:
        """What somebody asked for in the last exchange, the same on all ranks; () where all is well.

        Raises:
            UsageError: no exchange carries votes.
        """
        self._must_ride()
        # Every step asks: the raw operation costs a third of Variable.numpy().
        heard = tf.raw_ops.ReadVariableOp(resource=self._heard.handle, dtype=tf.float32).numpy().tolist()
        return tuple(kind for kind, share in zip(KINDS, heard, strict=True) if share) if any(heard) else ()

    def _must_ride(self) -> None:
        if not self.ride:
            raise UsageError(
                "no votes ride with these gradients: op=Adasum, a process set, or no dense gradient",
                "op=hvd.Average, for callbacks that stop all ranks together",
            )

    def clear(self) -> None:
        """Forget what was heard: it has been done. Every rank does so after the same step."""
        self._heard.assign(tf.zeros(len(KINDS)))

    def bad_gradient(self) -> str | None:
        """Path of the first variable whose gradient on this rank was not finite in the last step, or None."""
        place = int(self._bad.numpy())
        return self._watched[place] if place < len(self._watched) else None

    # -- inside the training step ------------------------------------------------------------------------------

    def outgoing(self, gradients: list[tf.Tensor], paths: list[str]) -> tf.Tensor:
        """This rank's votes, float32 [len(KINDS)], then its number among those of all ranks, [size], where shared.

        Args:
            gradients: this rank's own, all of them, with the ``paths`` of their variables.
        """
        self.ride = True
        votes = self._mine.read_value()
        if self.watch_gradients:
            self._watched = paths
            sums = tf.stack([tf.reduce_sum(tf.cast(gradient, tf.float32)) for gradient in gradients])
            with tf.device("/CPU:0"):
                bad = tf.logical_not(tf.math.is_finite(sums))
                first = tf.argmax(tf.concat([bad, [True]], axis=0))  # len(paths) where all are finite
                self._bad.assign(first)
                found = tf.cast(first < len(paths), tf.float32)
                votes = tf.maximum(votes, found * tf.one_hot(KINDS.index("not finite"), len(KINDS)))
        if self._rank is not None:
            with tf.device("/CPU:0"):
                votes = tf.concat([votes, self._figure.read_value()], axis=0)
        return votes

    def incoming(self, shares: tf.Tensor) -> None:
        """Keep what the allreduce brought back."""
        with tf.device("/CPU:0"):
            shares = tf.cast(shares, tf.float32)
            self._heard.assign(shares[: len(KINDS)])
            if self._rank is not None:
                self._figures.assign(shares[len(KINDS) :])


def votes_of(optimizer, who: str) -> Votes:
    """The votes of a distributed optimizer.

    Raises:
        UsageError: the optimizer meets no other rank; ``who`` names the callback that needs it.
    """
    if not is_distributed(optimizer):
        raise UsageError(f"{who} needs an optimizer that meets the other ranks", "hvd.DistributedOptimizer(optimizer)")
    return optimizer._exchange.votes
