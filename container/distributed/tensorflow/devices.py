"""Configure the devices and threads of one process: the GPU that the process uses, and its number of threads."""

from __future__ import annotations

import os
from collections.abc import Mapping

from container.contract.frozen import dataclass
from container.system.host_machine import cpu_count


@dataclass(frozen=True)
class Share:
    """The devices and threads that a process uses.

    Attributes:
        gpu: Index of the process's GPU among the visible GPUs. None if there are no GPUs.
        threads: Number of threads within an operation. None to keep the user's setting.
    """

    gpu: int | None
    threads: int | None


def share(*, rank: int, size: int, gpus: int, cores: int, environ: Mapping[str, str]) -> Share:
    """Return the GPU and the number of threads for one of the ranks on a machine. Pure.

    Args:
        rank: The process's rank on the machine, from 0.
        size: Number of ranks on the machine.
        gpus: Number of GPUs that the process sees.
        cores: Number of cores that the process may use.
        environ: The process's environment variables. A number of threads that the user has set in these variables is
            kept.
    """
    chosen = any(environ.get(name) for name in ("TF_NUM_INTRAOP_THREADS", "OMP_NUM_THREADS"))
    return Share(gpu=rank % gpus if gpus else None, threads=None if chosen else max(1, cores // max(1, size)))


def configure(*, rank: int, size: int) -> Share:
    """Configure TensorFlow to use only the GPU and the number of threads that are meant for this process.

    Args:
        rank: The process's rank on the machine, from 0.
        size: Number of ranks on the machine.

    Raises:
        RuntimeError: TensorFlow has already initialized its devices.
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
