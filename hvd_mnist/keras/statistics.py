"""Moving statistics of batch normalization: each rank gathers those of its own batches; these make them one.

While ranks train, the statistics differ, and that is right: none enters the training step's arithmetic. They matter
where a model predicts, so they are put together before an evaluation or a save.
"""

from __future__ import annotations

from typing import Any

import horovod.tensorflow as hvd
import keras
import numpy as np

from hvd_mnist.keras.sync_batch_normalization import SyncBatchNormalization


def average_moving_statistics(model: keras.Model) -> int:
    """Give every rank the moving mean and variance of all ranks' batches together; every rank must call it.

    The ranks have seen equally many batches, so with E the mean over ranks:
    mean = E[mean_r], variance = E[variance_r + mean_r^2] - mean^2 (the law of total variance).

    Returns:
        How many layers had statistics of their own rank.
    """
    layers = [
        layer
        for layer in model._flatten_layers()
        if isinstance(layer, keras.layers.BatchNormalization)
        and not isinstance(layer, SyncBatchNormalization)  # whose ranks have the same already
    ]
    if not layers:
        return 0
    told = [
        (np.asarray(layer.moving_mean, np.float64), np.asarray(layer.moving_variance, np.float64)) for layer in layers
    ]
    moments = [array for mean, variance in told for array in (mean, variance + mean**2)]
    averaged = [each.numpy() for each in hvd.grouped_allreduce(moments, op=hvd.Average, name="moving_statistics")]
    for layer, mean, square in zip(layers, averaged[::2], averaged[1::2], strict=True):
        layer.moving_mean.assign(mean)
        layer.moving_variance.assign(np.maximum(square - mean**2, 0.0))
    return len(layers)


class MovingStatisticsCallback(keras.callbacks.Callback):
    """``average_moving_statistics`` at the end of every epoch. Put it before the callback that saves.

    Validation inside ``fit`` runs before the end of an epoch, with each rank's own statistics.
    """

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        average_moving_statistics(self.model)
