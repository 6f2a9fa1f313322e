"""Provide one API for training scripts. The same script trains under every distribution strategy, and in one process.

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

The API is only a thin layer above Horovod and TensorFlow. The table shows which strategies are supported with which
version of Keras:

=======================  =========================================  ==========================================
strategy                 tf_keras (``TF_USE_LEGACY_KERAS=1``)       Keras 3
=======================  =========================================  ==========================================
none                     works                                      works
mpi (Horovod)            works                                      works, without XLA (``jit_compile``)
collective_all_reduce    works                                      works, without XLA (``jit_compile``)
mirrored                 works                                      works
parameter_server         works with ``fit``                         refused: ``fit`` does not support parameter
                                                                    servers, and optimizers lose updates of
                                                                    their iteration counter
=======================  =========================================  ==========================================

For PyTorch, :func:`init` returns a :class:`container.distributed.torch.cluster.TorchCluster`.

Importing this package imports neither TensorFlow nor PyTorch. :func:`init` imports the framework that the job uses.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Literal, overload

from container.contract import detection
from container.contract.errors import DistributedError, RefusedError, WeightsDifferError
from container.contract.names import unknown
from container.distributed.tensorflow.data import vectorized

if TYPE_CHECKING:
    from container.distributed.tensorflow.cluster import Cluster
    from container.distributed.torch.cluster import TorchCluster

__all__ = ["Cluster", "DistributedError", "RefusedError", "TorchCluster", "WeightsDifferError", "init", "vectorized"]

#: How many seconds :func:`init` waits for the other processes.
RENDEZVOUS_TIMEOUT = 300.0

_cluster: Any = None

#: Strategies that only TensorFlow has.
_TENSORFLOWS = (
    detection.ClusterKind.COLLECTIVE,
    detection.ClusterKind.MIRRORED,
    detection.ClusterKind.PARAMETER_SERVER,
)


@overload
def init(*, timeout: float = ..., framework: Literal["tensorflow"] | None = ...) -> Cluster: ...


@overload
def init(*, timeout: float = ..., framework: Literal["torch"]) -> TorchCluster: ...


def init(*, timeout: float = RENDEZVOUS_TIMEOUT, framework: str | None = None) -> Any:
    """Join the cluster that this process belongs to. Call this function before any other code uses TensorFlow.

    The cluster is detected from environment variables: the job's strategy (``SM_FRAMEWORK_PARAMS``), ``TF_CONFIG``, and
    the variables that mpirun or horovodrun set for their processes. If none of these variables is set, the script
    trains in one process. In a worker of a cluster with parameter servers, this function executes the steps that the
    chief assigns to the worker. When the chief has finished, this function exits the process.

    Args:
        timeout: Maximum number of seconds to wait for the other processes.
        framework: ``"tensorflow"`` or ``"torch"``. If None, the framework of the job's strategy is used. If the
            strategy supports both frameworks, PyTorch is used for a script that has imported torch but not TensorFlow.
            For any other script, TensorFlow is used.

    Returns:
        The cluster. Later calls return the same object.

    Raises:
        DistributedError: the environment variables contradict each other, a library is missing, or other processes did
            not respond in time. The message names the cause and the remedy.
        SystemExit: in a worker of a cluster with parameter servers, when the chief has finished. The exit code is 0.
    """
    global _cluster
    if framework not in (None, "tensorflow", "torch"):
        raise ValueError(unknown("framework", framework, ("tensorflow", "torch")))
    if _cluster is None and (framework or _framework()) == "torch":
        from container.distributed.torch import joining

        _cluster = joining.join(timeout)
    elif _cluster is None:
        from container.distributed.tensorflow.joining import join

        _cluster = join(timeout)
    return _cluster


def _framework() -> str:
    """Return the framework of the job's strategy: ``"tensorflow"`` or ``"torch"``.

    If the strategy supports both frameworks, return ``"torch"`` for a script that has imported torch but not
    TensorFlow. For any other script, return ``"tensorflow"``.
    """
    import os

    try:
        kind = detection.detect(os.environ).kind
    except DistributedError:  # an elastic worker, of either framework, has no rank yet; join() reports any other error
        kind = detection.ClusterKind.ELASTIC
    if kind is detection.ClusterKind.TORCH:
        return "torch"
    only_torch = "torch" in sys.modules and "tensorflow" not in sys.modules
    return "torch" if only_torch and kind not in _TENSORFLOWS else "tensorflow"


def __getattr__(name: str) -> object:
    if name == "Cluster":
        from container.distributed.tensorflow.cluster import Cluster

        return Cluster
    if name == "TorchCluster":
        from container.distributed.torch.cluster import TorchCluster

        return TorchCluster
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
