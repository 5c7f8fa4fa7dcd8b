"""Which examples does a rank see? Pure arithmetic: the same numbers on every rank, with nothing said between ranks.

    permutation      one order of all examples, from (seed, epoch), the same on every rank
    global batch s   permutation[s * G : (s + 1) * G], where G = size * batch_size
    rank r's part    the r-th contiguous slice of it, batch_size long

So N ranks with batches of B/N see, step by step, the very examples that one rank with batches of B sees. Every
rank takes the same number of steps because that number depends on nothing that differs between ranks.

When ranks come or go in mid-epoch (docs/elastic.md), the first ``start`` places of the permutation are done, and the
new ranks share what follows by the same rule: global batch s is permutation[start + s * G : start + (s + 1) * G].
"""

from __future__ import annotations

import numpy as np

from hvd_mnist.errors import UsageError

# Philox is keyed by (seed, epoch); the last word of its counter keeps the streams of one key apart.
_ORDER, _SHIFT = 0, 1


def epoch_permutation(examples: int, seed: int, epoch: int) -> np.ndarray:
    """Order of the examples in one epoch, the same on every rank, machine and numpy version.

    Args:
        examples: number of examples, at least 1.
        seed: 0 or more, below 2**64.
        epoch: 0 or more.

    Returns:
        int64 [examples], each of 0..examples-1 once.
    """
    # Ranked random words, and not Generator.permutation: numpy promises a stable stream for the words alone, and
    # hosts with different numpy versions must agree.
    return np.argsort(_words(seed, epoch, _ORDER, 0, examples), kind="stable").astype(np.int64, copy=False)


def epoch_shifts(first: int, stop: int, seed: int, epoch: int, reach: int = 2) -> np.ndarray:
    """Random shift in pixels of the examples at places first..stop-1 of the epoch's order.

    It depends on the place in the epoch alone, so neither the number of ranks nor a resume changes it.

    Returns:
        int64 [stop - first, 2]: (down, right), each in -reach..reach.
    """
    words = _words(seed, epoch, _SHIFT, first, stop)
    width = np.uint64(2 * reach + 1)
    both = np.stack([words % width, (words >> np.uint64(32)) % width], axis=1)
    return both.astype(np.int64) - reach


def _words(seed: int, epoch: int, stream: int, first: int, stop: int) -> np.ndarray:
    """Random words first..stop-1 of one stream: uint64 [stop - first]."""
    if not 0 <= seed < 2**64 or not 0 <= epoch < 2**64:
        raise UsageError(f"seed {seed} and epoch {epoch}: both must be 0 or more and below 2**64")
    block = first // 4  # one count of Philox gives four words
    # As uint64 from the start: a list with a word of 2**63 or more would pass through float64 and lose bits.
    key, counter = np.array([seed, epoch], np.uint64), np.array([block, 0, 0, stream], np.uint64)
    source = np.random.Philox(key=key, counter=counter)
    return source.random_raw(stop - 4 * block)[first - 4 * block :]


def steps_per_epoch(examples: int, global_batch: int) -> int:
    """Whole global batches in one pass; the same for every rank.

    Raises:
        UsageError: the global batch is larger than the data set, or not positive.
    """
    if not 1 <= global_batch <= examples:
        raise UsageError(
            f"a global batch of {global_batch} images (batch size x ranks) does not fit {examples} training examples",
            hint=f"choose a smaller --batch-size, or fewer ranks: at most {examples} images together",
        )
    return examples // global_batch


def steps_left(examples: int, start: int, global_batch: int) -> int:
    """Whole global batches in what is left of an epoch after its first ``start`` places; 0 at its end."""
    if not 0 <= start <= examples or global_batch < 1:
        raise ValueError(f"{start} places of {examples} are done, global batch {global_batch}")
    return (examples - start) // global_batch


def remainder_rule(examples: int, global_batch: int) -> str:
    """The sentence that says which examples an epoch leaves out, and how many."""
    steps = steps_per_epoch(examples, global_batch)
    left_out = examples - steps * global_batch
    start = f"{_spaced(examples)} examples = {_spaced(steps)} steps of {_spaced(global_batch)}"
    if left_out == 0:
        return f"{start}; every example once an epoch"
    return f"{start} and {_spaced(left_out)} left out this epoch; others next epoch"


def _spaced(number: int) -> str:
    return f"{number:,}".replace(",", " ")


def step_span(step: int, rank: int, size: int, batch_size: int, start: int = 0) -> slice:
    """Places in the epoch's order that one rank sees at one step (counted from 0 at place ``start``)."""
    if not 0 <= rank < size:
        raise ValueError(f"rank {rank} of {size}: ranks run from 0 to size - 1")
    first = start + (step * size + rank) * batch_size
    return slice(first, first + batch_size)


def step_indices(
    permutation: np.ndarray, step: int, rank: int, size: int, batch_size: int, start: int = 0
) -> np.ndarray:
    """Examples that one rank sees at one step.

    Args:
        permutation: int64 [examples], from `epoch_permutation`.
        step: 0..steps_left-1, counted from place ``start``.
        rank, size: this rank, and how many there are.
        batch_size: images per rank and step.
        start: places of the epoch that were done before these ranks shared the rest.

    Returns:
        int64 [batch_size].

    Raises:
        IndexError: the step is beyond the last whole global batch.
    """
    steps = steps_left(len(permutation), start, size * batch_size)
    if not 0 <= step < steps:
        raise IndexError(f"step {step} of an epoch of {steps} steps ({size} ranks x {batch_size} images)")
    return permutation[step_span(step, rank, size, batch_size, start)]


def rank_slice(examples: int, rank: int, size: int) -> slice:
    """One rank's part for exact evaluation: contiguous, disjoint, together everything, lengths within one."""
    if not 0 <= rank < size:
        raise ValueError(f"rank {rank} of {size}: ranks run from 0 to size - 1")
    return slice(examples * rank // size, examples * (rank + 1) // size)
