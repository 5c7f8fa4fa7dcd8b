"""Checkpoints of a run: written whole or not at all, checked before they are believed.

::

    RUN/.lock                             one job a run folder (``lock``)
    RUN/checkpoints/step-00000469/        one complete checkpoint
        model.keras                       the model with its optimizer, in Keras's own format
        state.json                        what the trainer needs to go on, free-form
        manifest.json                     sizes, hashes, variables; written last
    RUN/checkpoints/best.json             which one is best, for people and scripts
    RUN/checkpoints/.tmp-*                a save that did not finish; never taken for a checkpoint

Rank 0 alone calls this package. It knows nothing of Horovod: broadcasting what was read is the trainer's business.
Importing it loads neither Keras nor TensorFlow.
"""

from __future__ import annotations

from hvd_mnist.checkpoint.manifest import Manifest, Verdict, verify
from hvd_mnist.checkpoint.read import Candidate, Found, best, candidates, find, latest, load_state
from hvd_mnist.checkpoint.restore import load_model, restore_into
from hvd_mnist.checkpoint.run_lock import RunLock, lock
from hvd_mnist.checkpoint.serving import export
from hvd_mnist.checkpoint.variables import Fingerprint, Variable, fingerprint
from hvd_mnist.checkpoint.write import Saved, save

__all__ = [
    "Candidate",
    "Fingerprint",
    "Found",
    "Manifest",
    "RunLock",
    "Saved",
    "Variable",
    "Verdict",
    "best",
    "candidates",
    "export",
    "find",
    "fingerprint",
    "latest",
    "load_model",
    "load_state",
    "lock",
    "restore_into",
    "save",
    "verify",
]
