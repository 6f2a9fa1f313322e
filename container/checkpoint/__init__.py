"""Save and restore checkpoints, with checksums.

A :class:`Checkpointer` saves weights, optimizer state, progress and data position while a model trains. After an
interruption, it restores them on every rank::

    from container.checkpoint import Checkpointer

    checkpointer = Checkpointer(keep=3, best="val_accuracy")
    model.fit(dataset, epochs=20, callbacks=[checkpointer.callback()])  # continues after an interruption

Guarantees:

* A checkpoint is complete or does not exist. It is written under a temporary name, with a manifest of sizes and
  checksums, flushed to the disk, and then renamed atomically.
* A restore reads a checkpoint into memory, verifies every byte there, and uses the data from the same memory. If a
  checkpoint is damaged, the previous one is used, and a message names the checkpoint, the file and the reason.
* Once a save is complete, no restore returns an older step, unless the newer checkpoint is damaged.
* Only one process can write into a folder. A second process gets an error. A killed process does not block later
  processes.
* The newest checkpoints, the best checkpoints and the checkpoints that have a label (``pin``) are not deleted.

The modules: ``store`` (the folder), ``manifest``, ``tensors``, ``lock``, ``writer`` (the thread), ``interval`` and
``retention`` (pure decisions) do not depend on TensorFlow. ``state`` reads and assigns variables, ``callback`` is the
Keras callback, ``publishing`` writes snapshots, and ``sharing`` sends checkpoints from rank 0 to the other ranks.
``checkpointer`` combines these modules. Importing this package imports none of them.
"""

from __future__ import annotations

from container.contract.public import exports

__all__, __getattr__, __dir__ = exports(__name__, __file__)
