"""Train in one process on several devices of its host, with TensorFlow's ``MirroredStrategy``."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from container.contract.detection import Surroundings
from container.contract.errors import DistributedError
from container.contract.strategies import Mirrored
from container.distributed.tensorflow.cluster import Cluster
from container.distributed.tensorflow.collectives import TensorsAlone


class MirroredCluster(Cluster):
    """A cluster of one rank, which has a copy of the model on each device of its host.

    Attributes:
        size: Always 1, because one process reads the data. TensorFlow divides each batch among the devices.
        replicas: Number of devices.
    """

    @property
    def replicas(self) -> int:
        """Return the number of devices."""
        return int(self.tf_strategy.num_replicas_in_sync)

    def scope(self) -> AbstractContextManager[Any]:
        """Return the context manager in which variables are created on every device."""
        scope: AbstractContextManager[Any] = self.tf_strategy.scope()
        return scope

    def optimizer(self, optimizer: Any, *, compression: str | None = None, op: str = "average") -> Any:
        """Return the optimizer unchanged: TensorFlow's strategy already reduces the devices' gradients.

        See :meth:`Cluster.optimizer`.

        Raises:
            RefusedError: ``compression`` or ``op`` is not the default.
        """
        self._refuse_reduction(
            compression,
            op,
            "under mirrored, where TensorFlow itself adds up the gradients of the devices. Use distribution=MPI(…), "
            "which reduces gradients over ranks.",
        )
        return optimizer

    def _evaluation_batch(self, batch_size: int, records: int | None) -> int:
        """Return the number of records in a batch for an evaluation.

        The number is a multiple of the number of devices, because Keras 3 needs a first batch that can be divided
        evenly.
        """
        most = batch_size if records is None else min(batch_size, records)
        return max(self.replicas, most // self.replicas * self.replicas)


def mirror(surroundings: Surroundings) -> MirroredCluster:
    """Configure the host's devices, and return the cluster. Call this function before other code uses the devices.

    Raises:
        DistributedError: the host has fewer GPUs than ``Mirrored(devices=…)`` requires.
        RuntimeError: TensorFlow has already initialized its devices.
    """
    import tensorflow as tf

    options = surroundings.strategy
    assert isinstance(options, Mirrored)
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        wanted = options.devices if options.devices is not None else len(gpus)
        if wanted > len(gpus):
            raise DistributedError(f"Mirrored(devices={wanted}) is more than the {len(gpus)} GPUs of this process.")
        for gpu in gpus:
            tf.config.experimental.set_memory_growth(gpu, True)
        tf.config.set_visible_devices(gpus[:wanted], "GPU")
    else:
        wanted = options.devices or 1
        part = tf.config.LogicalDeviceConfiguration()
        tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], [part] * wanted)
    names = [f"{'GPU' if gpus else 'CPU'}:{number}" for number in range(wanted)]
    strategy = tf.distribute.MirroredStrategy(names, cross_device_ops=_communication(options.communication))
    return MirroredCluster(surroundings, TensorsAlone(), tf_strategy=strategy)


def _communication(name: str) -> Any:
    import tensorflow as tf

    kinds = {
        "nccl": tf.distribute.NcclAllReduce,
        "hierarchical_copy": tf.distribute.HierarchicalCopyAllReduce,
        "one_device": tf.distribute.ReductionToOneDevice,
    }
    return kinds[name]() if name in kinds else None
