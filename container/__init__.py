"""Run training on every host of a cluster: the toolkit, the launchers and the script-side helpers.

This package needs only the standard library, so that it starts fast and runs in any image. The exceptions are the
modules that a training script imports, such as ``container.distributed``. This package never imports ``estimators``.
"""
