"""For training scripts: one API over every strategy, and over none.

::

    from container import distributed

    cluster = distributed.init()  # Horovod, CollectiveAllReduce, parameter servers, or one process
    with cluster.scope():
        model = build_model()
        model.compile(optimizer=cluster.optimizer(SGD(cluster.scale(0.01))), loss=..., metrics=...)
    model.fit(
        cluster.dataset(make_dataset, global_batch_size=256),
        steps_per_epoch=cluster.steps_per_epoch(make_dataset, global_batch_size=256),
        epochs=4,
        callbacks=cluster.callbacks(),
    )
    cluster.export(model)

It is thin: what Horovod and TensorFlow do, they do. What works with which Keras:

=======================  =========================================  ==========================================
strategy                 tf_keras (``TF_USE_LEGACY_KERAS=1``)       Keras 3
=======================  =========================================  ==========================================
none                     works                                      works
mpi (Horovod)            works                                      works, without XLA (``jit_compile``)
collective_all_reduce    works                                      works, without XLA (``jit_compile``)
mirrored                 works                                      works
parameter_server         works with ``fit``                         refused: its ``fit`` takes no parameter
                                                                    servers, and its optimizers lose updates of
                                                                    their iteration counter
=======================  =========================================  ==========================================

TensorFlow is imported by :func:`init`, not by this package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from container.contract.errors import DistributedError, RefusedError, WeightsDifferError
from container.distributed.tensorflow.data import vectorized

if TYPE_CHECKING:
    from container.distributed.tensorflow.cluster import Cluster

__all__ = ["Cluster", "DistributedError", "RefusedError", "WeightsDifferError", "init", "vectorized"]

#: How long :func:`init` waits for the other processes, in seconds.
RENDEZVOUS_TIMEOUT = 300.0

_cluster: Cluster | None = None


def init(*, timeout: float = RENDEZVOUS_TIMEOUT) -> Cluster:
    """Join the cluster that this process was started in; call it before anything else uses TensorFlow.

    The cluster is found from the environment: the job's strategy (``SM_FRAMEWORK_PARAMS``), ``TF_CONFIG``, and what
    mpirun or horovodrun tell the processes they start. Without any of these the script trains in one process.

    A worker of a cluster with parameter servers serves in here until the chief has finished, and then ends the script.

    Args:
        timeout: Seconds to wait for the other processes.

    Returns:
        The cluster; the same one when it is called again.

    Raises:
        DistributedError: the environment contradicts itself, a library is missing, or processes did not answer; the
            message says which, and the remedy.
        SystemExit: with 0, on workers of a cluster with parameter servers, when the chief has finished.
    """
    global _cluster
    if _cluster is None:
        from container.distributed.tensorflow.joining import join

        _cluster = join(timeout)
    return _cluster


def __getattr__(name: str) -> object:
    if name == "Cluster":
        from container.distributed.tensorflow.cluster import Cluster

        return Cluster
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
