"""Devices and threads of one process: its own GPU, and its share of the cores."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping

from container.system.host_machine import cpu_count


@dataclasses.dataclass(frozen=True)
class Share:
    """A process's part of its machine.

    Attributes:
        gpu: The number of its GPU among the visible ones; None for none.
        threads: Threads for the work within an operation; None to leave the user's setting.
    """

    gpu: int | None
    threads: int | None


def share(*, rank: int, size: int, gpus: int, cores: int, environ: Mapping[str, str]) -> Share:
    """Divide a machine among the ranks on it. Pure.

    Args:
        rank: The process's rank on the machine, from 0.
        size: How many ranks the machine has.
        gpus: How many GPUs the process sees.
        cores: How many cores it may use.
        environ: Its environment: a number of threads that the user has set there stays.
    """
    chosen = any(environ.get(name) for name in ("TF_NUM_INTRAOP_THREADS", "OMP_NUM_THREADS"))
    return Share(gpu=rank % gpus if gpus else None, threads=None if chosen else max(1, cores // max(1, size)))


def configure(*, rank: int, size: int) -> Share:
    """Take this process's share of the machine.

    Args:
        rank: The process's rank on the machine, from 0.
        size: How many ranks the machine has.

    Raises:
        RuntimeError: TensorFlow has started its devices already.
    """
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    mine = share(rank=rank, size=size, gpus=len(gpus), cores=cpu_count(), environ=os.environ)
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    if mine.gpu is not None:
        tf.config.set_visible_devices(gpus[mine.gpu], "GPU")
    if mine.threads is not None:
        tf.config.threading.set_intra_op_parallelism_threads(mine.threads)
    return mine
