"""Checkpoints that can be trusted.

A :class:`Checkpointer` saves weights, optimizer state, progress and data position while a model trains, and restores
them on every rank after whatever ended the training::

    from container.checkpoint import Checkpointer

    checkpointer = Checkpointer(keep=3, best="val_accuracy")
    model.fit(dataset, epochs=20, callbacks=[checkpointer.callback()])  # goes on where it was killed

It guarantees:

* A checkpoint is whole or not there: it is staged beside its final name with a manifest of sizes and checksums,
  brought to the disk, and renamed at once.
* What is restored has been verified, byte by byte, in the very memory that is then used. A damaged checkpoint is
  skipped for the one before it, and it is said which one, which file and why.
* Once a save has been completed, no restore gives an older step, except where a newer one is damaged.
* One process writes. A second one is refused; a killed one leaves nothing in the way.
* The newest, the best and whatever something still refers to are not deleted.

The modules: ``store`` (the folder), ``manifest``, ``tensors``, ``lock``, ``writer`` (the thread), ``interval`` and
``retention`` (pure decisions) know nothing of TensorFlow; ``state`` reads and assigns variables, ``callback`` is for
Keras, ``publishing`` writes snapshots and ``sharing`` is about the ranks; ``checkpointer`` puts them together.
Importing this package imports none of them.
"""

from __future__ import annotations

from container.contract.public import exports

__all__, __getattr__, __dir__ = exports(__name__, __file__)
