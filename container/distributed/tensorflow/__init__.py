"""Implement the scripts' API with TensorFlow, and with Horovod for TensorFlow.

:func:`container.distributed.init` imports this package.
"""
