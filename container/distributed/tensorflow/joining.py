"""Join the cluster that this process belongs to, in a TensorFlow script."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator, Mapping

from container.contract import events, variables
from container.contract.detection import ClusterKind, Surroundings, detect
from container.contract.errors import DistributedError
from container.contract.strategies import CollectiveAllReduce
from container.distributed.core.deadline import deadline
from container.distributed.core.elastic_place import take_place
from container.distributed.core.rendezvous import listens, meet, names, wait_for
from container.distributed.tensorflow import devices
from container.distributed.tensorflow.cluster import Cluster
from container.distributed.tensorflow.collectives import (
    HorovodTensors,
    TensorCollectives,
    TensorFlowCollectives,
    TensorsAlone,
)


def join(timeout: float) -> Cluster:
    """Join the cluster, and return it. See :func:`container.distributed.init`.

    In a cluster with parameter servers, the function returns only on the chief. The servers and workers serve the chief
    until it has finished, and then exit.
    """
    take_place(_import_tensorflow, _try_horovod)
    surroundings = detect(os.environ)
    if surroundings.kind is ClusterKind.PARAMETER_SERVER and surroundings.task != "chief":
        from container.distributed.tensorflow import server

        server.serve_task(surroundings, timeout=timeout)
        raise SystemExit(0)
    _import_tensorflow()
    events.emit("phase", name="imported")
    if surroundings.kind in (ClusterKind.HOROVOD, ClusterKind.ELASTIC):
        cluster = _join_horovod(surroundings, timeout)
    elif surroundings.kind is ClusterKind.COLLECTIVE:
        cluster = _join_collective(surroundings, timeout)
    elif surroundings.kind is ClusterKind.PARAMETER_SERVER:
        cluster = _coordinate(surroundings, timeout)
    elif surroundings.kind is ClusterKind.MIRRORED:
        cluster = _mirror(surroundings)
    else:
        _take_share(0, 1)
        cluster = Cluster(surroundings, TensorsAlone())
    events.emit("phase", name="rendezvous")
    return cluster


def _try_horovod() -> None:
    with contextlib.suppress(ImportError):  # _join_horovod() reports a missing Horovod
        import horovod.tensorflow  # noqa: F401


def _import_tensorflow() -> None:
    try:
        import tensorflow  # noqa: F401
    except ImportError as error:
        raise DistributedError(
            f"TensorFlow cannot be imported: {error}. distributed.init() needs TensorFlow, or PyTorch with "
            "framework='torch'. A script that uses neither must connect its ranks itself, for example with mpi4py."
        ) from error


def _join_horovod(surroundings: Surroundings, timeout: float) -> Cluster:
    try:
        import horovod.tensorflow as hvd
    except ImportError as error:
        raise DistributedError(
            f"this process was started as rank {surroundings.rank} of {surroundings.size} by mpirun, but Horovod "
            f"cannot be imported: {error}. Run `fleetfit install horovod`, or use CollectiveAllReduce, which needs "
            "no Horovod."
        ) from error
    with deadline(timeout, lambda: f"{surroundings.size} ranks were expected in hvd.init()"):
        hvd.init()
    _take_share(surroundings.machine_rank, surroundings.machine_size)
    collectives = HorovodTensors(hvd, host_updates=surroundings.kind is ClusterKind.ELASTIC)
    if surroundings.kind is ClusterKind.ELASTIC:
        from container.distributed.tensorflow.elastic import ElasticCluster, planned_size

        return ElasticCluster(
            surroundings,
            collectives,
            planned=planned_size(os.environ, surroundings.size),
            late=variables.ELASTIC_LATE in os.environ,
        )
    return Cluster(surroundings, collectives)


def _join_collective(surroundings: Surroundings, timeout: float) -> Cluster:
    import tensorflow as tf

    from container.distributed.tensorflow.collectives import communication_options

    _take_share(surroundings.machine_rank, surroundings.machine_size)
    options = surroundings.strategy
    assert isinstance(options, CollectiveAllReduce)
    if surroundings.size == 1:
        return Cluster(surroundings, TensorsAlone())
    ranks = [*surroundings.addresses.get("chief", ()), *surroundings.addresses.get("worker", ())]
    others = {f"rank {rank}": address for rank, address in enumerate(ranks) if rank != surroundings.rank}
    leader = None if surroundings.rank == 0 else "rank 0"
    meet(ranks[surroundings.rank], others, leader=leader, timeout=timeout)
    with _sigterm_kept(), deadline(timeout, lambda: _who_is_missing(others)):
        strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=communication_options(options))
    collectives: TensorCollectives = TensorFlowCollectives(
        strategy, options, rank=surroundings.rank, size=surroundings.size
    )
    return Cluster(surroundings, collectives, tf_strategy=strategy)


def _coordinate(surroundings: Surroundings, timeout: float) -> Cluster:
    import tensorflow as tf

    _take_share(0, surroundings.machine_size + 1)
    others = {
        f"{task} {index}": address
        for task in ("ps", "worker")
        for index, address in enumerate(surroundings.addresses[task])
    }
    wait_for(others, timeout)
    with deadline(timeout, lambda: _who_is_missing(others)):
        # The cluster is not read from TF_CONFIG, because SageMaker's TF_CONFIG calls the chief "master".
        cluster = tf.train.ClusterSpec({task: list(found) for task, found in surroundings.addresses.items()})
        strategy = tf.distribute.ParameterServerStrategy(
            tf.distribute.cluster_resolver.SimpleClusterResolver(
                cluster, task_type="chief", task_id=0, rpc_layer="grpc"
            )
        )
    from container.distributed.tensorflow.parameter_servers import ParameterServerCluster

    return ParameterServerCluster(surroundings, TensorsAlone(), tf_strategy=strategy)


def _mirror(surroundings: Surroundings) -> Cluster:
    from container.distributed.tensorflow.mirrored import mirror

    try:
        return mirror(surroundings)
    except RuntimeError as error:
        raise error if isinstance(error, DistributedError) else _too_late(error) from error


def _take_share(rank: int, size: int) -> None:
    try:
        devices.configure(rank=rank, size=size)
    except RuntimeError as error:
        raise _too_late(error) from error


def _too_late(error: RuntimeError) -> DistributedError:
    return DistributedError(
        f"TensorFlow has started its devices already ({error}). Call distributed.init() before anything else that uses "
        "TensorFlow."
    )


def _who_is_missing(addresses: Mapping[str, str]) -> str:
    missing = {name: address for name, address in addresses.items() if not listens(address)}
    return f"no answer from {names(missing)}" if missing else "every process listens, but they did not connect"


@contextlib.contextmanager
def _sigterm_kept() -> Iterator[None]:
    """Restore the handler of SIGTERM when the block ends.

    TensorFlow's coordination service replaces the handler, and ignores SIGTERM. Without the restored handler, a stopped
    job would run until its grace period ends, and the script's own handler would never be called.
    """
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)
