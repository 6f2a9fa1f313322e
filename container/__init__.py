"""Run training on every host of a cluster.

The package contains the toolkit (the process that prepares a host and starts its ranks), the launchers, and the helpers
for training scripts.

This package needs only the standard library, so that it starts fast and runs in any image. The exceptions are the
modules that a training script imports, such as ``container.distributed``. This package never imports ``estimators``.
"""
