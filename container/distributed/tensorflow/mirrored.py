"""One process that trains on several devices of its host: TensorFlow's ``MirroredStrategy``."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from container.contract.detection import Surroundings
from container.contract.errors import DistributedError
from container.contract.strategies import Mirrored
from container.distributed.tensorflow.cluster import Cluster
from container.distributed.tensorflow.collectives import TensorsAlone


class MirroredCluster(Cluster):
    """One rank, with a copy of the model on each device.

    Attributes:
        size: 1: one process reads the data, and TensorFlow divides each batch among the devices.
        replicas: The number of devices.
    """

    @property
    def replicas(self) -> int:
        """The number of devices."""
        return int(self.tf_strategy.num_replicas_in_sync)

    def scope(self) -> AbstractContextManager[Any]:
        """Return the context in which variables are made on every device."""
        scope: AbstractContextManager[Any] = self.tf_strategy.scope()
        return scope

    def optimizer(self, optimizer: Any, *, compression: str | None = None, op: str = "average") -> Any:
        """See :meth:`Cluster.optimizer`: TensorFlow's strategy reduces the gradients of the devices."""
        self._refuse_reduction(
            compression,
            op,
            "under mirrored, where TensorFlow itself adds up the gradients of the devices. Use distribution=MPI(…), "
            "which reduces gradients over ranks.",
        )
        return optimizer

    def _evaluation_batch(self, batch_size: int, records: int | None) -> int:
        """See :meth:`Cluster._evaluation_batch`: Keras 3 needs a first batch of equal parts for all devices."""
        most = batch_size if records is None else min(batch_size, records)
        return max(self.replicas, most // self.replicas * self.replicas)


def mirror(surroundings: Surroundings) -> MirroredCluster:
    """Take the host's devices, before anything else has used them.

    Raises:
        DistributedError: there are not as many as the job asks for.
        RuntimeError: TensorFlow has started its devices already.
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
