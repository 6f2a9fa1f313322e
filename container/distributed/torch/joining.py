"""Join the cluster that this process belongs to, in a PyTorch script."""

from __future__ import annotations

import datetime
import os
from typing import Any

from container.contract import events
from container.contract.detection import ClusterKind, Surroundings, detect
from container.contract.errors import DistributedError, RefusedError
from container.distributed.core.collectives import Alone, Collectives
from container.distributed.core.deadline import deadline
from container.distributed.core.elastic_place import take_place
from container.distributed.torch import threads
from container.distributed.torch.cluster import TorchCluster
from container.distributed.torch.collectives import TorchCollectives
from container.distributed.torch.elastic import ElasticTorchCluster
from container.distributed.torch.horovod import HorovodCollectives, load_horovod

_KINDS = (ClusterKind.NONE, ClusterKind.TORCH, ClusterKind.HOROVOD, ClusterKind.ELASTIC)


def join(timeout: float) -> TorchCluster:
    """Join the cluster. See :func:`container.distributed.init`."""
    take_place(_import_torch, load_horovod)
    surroundings = detect(os.environ)
    if surroundings.kind not in _KINDS:
        raise RefusedError(
            f"container.distributed does not support PyTorch under the job's strategy, {surroundings.kind.value}. "
            "Use TorchDistributed(…), ElasticTorchDistributed(…), MPI(…) or ElasticHorovod(…)."
        )
    torch = _import_torch()
    events.emit("phase", name="imported")
    if surroundings.machine_size > 1:
        threads.divide(surroundings.machine_size)
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", surroundings.machine_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    collectives: Collectives = Alone()
    if surroundings.kind is ClusterKind.TORCH:
        collectives = _meet(surroundings, device, timeout)
    elif surroundings.kind in (ClusterKind.HOROVOD, ClusterKind.ELASTIC):
        with deadline(timeout, lambda: f"{surroundings.size} ranks were expected in hvd.init()"):
            collectives = HorovodCollectives()
    events.emit("phase", name="rendezvous")
    if surroundings.kind is ClusterKind.ELASTIC:
        assert isinstance(collectives, HorovodCollectives)
        return ElasticTorchCluster(surroundings, collectives, device)
    return TorchCluster(surroundings, collectives, device)


def _import_torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise DistributedError(f"PyTorch cannot be imported: {error}. `fleetfit install torch` installs it.") from error
    return torch


def _meet(surroundings: Surroundings, device: object, timeout: float) -> TorchCollectives:
    import torch
    import torch.distributed as dist

    if not dist.is_initialized():
        address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        try:
            # This limit is for the rendezvous only: a limit of the group would also apply to each collective operation.
            store, rank, size = next(dist.rendezvous("env://", timeout=datetime.timedelta(seconds=timeout)))
            store.set_timeout(datetime.timedelta(seconds=timeout))
            dist.init_process_group(store=dist.PrefixStore("default_pg", store), rank=rank, world_size=size)
        except (dist.DistError, RuntimeError) as error:
            raise DistributedError(
                f"the {surroundings.size} ranks did not meet within {timeout:g} s: rank {surroundings.rank} failed at "
                f"the store of rank 0, {address}: {error}"
            ) from error
    backend = str(dist.get_backend())
    return TorchCollectives(device if backend == "nccl" else torch.device("cpu"))
