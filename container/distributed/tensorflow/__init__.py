"""The script's API on TensorFlow, and Horovod for it. It is imported when :func:`container.distributed.init` is
called."""
