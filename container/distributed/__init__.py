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

For PyTorch, :func:`init` returns a :class:`container.distributed.torch.cluster.TorchCluster`.

TensorFlow and PyTorch are imported by :func:`init`, not by this package.
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

#: How long :func:`init` waits for the other processes, in seconds.
RENDEZVOUS_TIMEOUT = 300.0

_cluster: Any = None

#: Strategies of TensorFlow's alone.
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
    """Join the cluster that this process was started in; call it before anything else uses TensorFlow.

    The cluster is found from the environment: the job's strategy (``SM_FRAMEWORK_PARAMS``), ``TF_CONFIG``, and what
    mpirun or horovodrun tell the processes they start. Without any of these the script trains in one process.

    A worker of a cluster with parameter servers serves in here until the chief has finished, and then ends the script.

    Args:
        timeout: Seconds to wait for the other processes.
        framework: ``"tensorflow"`` or ``"torch"``. None: that of the job's strategy; where it does not tell, PyTorch if
            the script has imported torch and not TensorFlow.

    Returns:
        The cluster; the same one when it is called again.

    Raises:
        DistributedError: the environment contradicts itself, a library is missing, or processes did not answer; the
            message says which, and the remedy.
        SystemExit: with 0, on workers of a cluster with parameter servers, when the chief has finished.
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
    """Return the framework of the job's strategy, or of the script."""
    import os

    try:
        kind = detection.detect(os.environ).kind
    except DistributedError:  # a worker of an elastic job learns its rank as it joins; what is wrong is said there
        return "tensorflow"
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
