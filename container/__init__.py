"""Run training on every host of a cluster: the toolkit, the launchers and the script-side helpers.

Apart from the modules that a training script imports (``container.distributed`` and the like), this package needs
the standard library only, so that it starts fast and fits into any image. This package never imports
``estimators``.
"""
