"""What the time of a step is made of, under each strategy: a cost model. Pure.

Words: N processes on H hosts, P on each, train a model whose gradients are S bytes; each needs ``compute_s`` for its
own part of a step, of which the backward pass is a share that transfers can hide behind. A link carries B bytes/s in
each direction.

*Synchronous strategies* wait for the slowest process: of N whose times vary by a factor σ around their mean, the
slowest takes about σ·√(2 ln N) longer. *Horovod* reduces what is ready in cycles, in buffers of at most the fusion
threshold; a ring moves 2(N−1)/N · S through every link and needs 2(N−1) messages for each buffer.
*CollectiveAllReduce* packs gradients into packs of ``bytes_per_pack``; with 0, which is its default, into one, which
is complete only after the backward pass.

*Parameter servers*, one beside each host's workers, wait for nobody. A worker reads all variables before its step,
and the workers of a host share its link; what it sends hides behind the backward pass. Variables are not divided: the
server with the largest one sends and receives at least that for every worker of the other hosts, so with many hosts
its link is what limits all. The chief schedules the workers' steps one after another.
"""

from __future__ import annotations

import dataclasses
import math

#: Horovod's default of HOROVOD_FUSION_THRESHOLD, in bytes.
FUSION_BYTES = 128 << 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workload:
    """A model, and the work of one process in a step.

    Attributes:
        compute_s: Seconds that one process needs to compute its part of a step, if nothing else runs.
        gradient_bytes: Size of all gradients of a step.
        largest_bytes: Size of the largest gradient.
        tensors: Number of gradients.
        batch_size: Number of records in one process's part of a step.
    """

    compute_s: float
    gradient_bytes: float
    largest_bytes: float = 0.0
    tensors: int = 50
    batch_size: int = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hardware:
    """Where it runs.

    Attributes:
        hosts: How many.
        processes_per_host: Processes (devices) on each.
        bandwidth: Of a host's link, in bytes per second and direction.
        local_bandwidth: Between the processes of a host, in bytes per second.
    """

    hosts: int
    processes_per_host: int = 1
    bandwidth: float = 1.25e9
    local_bandwidth: float = 10e9

    @property
    def size(self) -> int:
        """All processes."""
        return self.hosts * self.processes_per_host


@dataclasses.dataclass(frozen=True, kw_only=True)
class Constants:
    """What the machines and libraries are like; :mod:`estimators.results.advice.calibration` measures some of it.

    Attributes:
        ring_share: The share of a link's bandwidth that Horovod's ring gets out of it.
        collective_share: The same for CollectiveAllReduce (gRPC, unless it has NCCL).
        server_share: The same for parameter servers (gRPC).
        latency_s: Of a message between hosts.
        local_latency_s: Of a message within a host.
        cycle_s: Until Horovod has agreed on what to reduce next.
        step_s: Fixed costs of a step of a synchronous strategy.
        server_step_s: Those of a worker's step with parameter servers.
        dispatch_s: The chief's own time to schedule one worker's step.
        apply_bandwidth: Bytes of gradients per second that a server applies.
        jitter: How much a process's step varies from step to step, relative to its mean (one standard deviation).
        backward_share: The share of computing that is the backward pass.
    """

    ring_share: float = 0.8
    collective_share: float = 0.6
    server_share: float = 0.5
    latency_s: float = 10e-6
    local_latency_s: float = 5e-6
    cycle_s: float = 1e-3
    step_s: float = 0.0
    server_step_s: float = 1e-3
    dispatch_s: float = 1e-3
    apply_bandwidth: float = 4e9
    jitter: float = 0.025
    backward_share: float = 2.0 / 3.0


#: Processors of cloud instances vary more from step to step than GPUs do.
GPU = Constants()
CPU = Constants(jitter=0.1, latency_s=25e-6)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prediction:
    """A step, and what it is made of, in seconds.

    Attributes:
        strategy: The strategy's name.
        step_s: One step of all processes; with parameter servers, of a worker.
        compute_s: Of it, a process's own computing.
        waiting_s: Waiting for the slowest process.
        exchange_s: Transfers that nothing hides.
        limit: What bounds the step: ``computing``, ``links``, ``a server's link``, ``the chief`` …
        samples_per_second: Of all processes.
        efficiency: Speed per process, ÷ that of one alone.
    """

    strategy: str
    step_s: float
    compute_s: float
    waiting_s: float
    exchange_s: float
    limit: str
    samples_per_second: float
    efficiency: float


def predict(
    strategy: str,
    workload: Workload,
    fleet: Hardware,
    constants: Constants = GPU,
    *,
    fusion_bytes: float = FUSION_BYTES,
    bytes_per_pack: float = 0.0,
    compression: bool = False,
) -> Prediction:
    """Return what a step will take.

    Args:
        strategy: ``mpi``, ``collective_all_reduce`` or ``parameter_server``; ``none`` for one process.
        workload: What is trained.
        fleet: Where.
        constants: What the machines are like.
        fusion_bytes: Horovod's fusion threshold; 0 sends each gradient by itself.
        bytes_per_pack: CollectiveAllReduce's; 0 for one pack.
        compression: Whether gradients travel as 16-bit floats (synchronous strategies).

    Raises:
        ValueError: there is no such strategy.
    """
    if fleet.size == 1:
        return _prediction(strategy, workload, fleet, waiting_s=0.0, exchange_s=0.0, limit="computing")
    if strategy == "parameter_server":
        return _servers(workload, fleet, constants)
    if strategy not in ("mpi", "collective_all_reduce"):
        raise ValueError(f"there is no cost model of {strategy!r}. Use mpi, collective_all_reduce or parameter_server.")
    waiting_s = workload.compute_s * constants.jitter * math.sqrt(2.0 * math.log(fleet.size))
    total = workload.gradient_bytes / (2 if compression else 1)
    if strategy == "mpi":
        share, buffer_bytes, cycle_s = constants.ring_share, fusion_bytes, constants.cycle_s
    else:
        share, buffer_bytes, cycle_s = constants.collective_share, bytes_per_pack or total, 0.0
    exchange_s = constants.step_s + _exposed(
        total,
        tensors=workload.tensors,
        window_s=workload.compute_s * constants.backward_share,
        buffer_bytes=buffer_bytes,
        fixed_s=cycle_s + ring_latency(fleet, constants),
        per_byte_s=ring_seconds(1.0, fleet, constants, share),
        whole=strategy == "collective_all_reduce",
    )
    limit = "links" if exchange_s > max(waiting_s, 0.05 * workload.compute_s) else "computing"
    return _prediction(strategy, workload, fleet, waiting_s=waiting_s, exchange_s=exchange_s, limit=limit)


def ring_seconds(total: float, fleet: Hardware, constants: Constants, share: float) -> float:
    """Seconds of moving the data of a ring all-reduce: 2(N−1)/N · S ÷ B, at the slowest of its links."""
    slowest = fleet.local_bandwidth
    if fleet.hosts > 1:
        slowest = min(slowest, fleet.bandwidth * share)
    return 2.0 * (fleet.size - 1) / fleet.size * total / slowest


def ring_latency(fleet: Hardware, constants: Constants) -> float:
    """Seconds of latency of one ring all-reduce: 2(H−1) messages between hosts, and 2(P−1) within one."""
    return (
        2.0 * (fleet.hosts - 1) * constants.latency_s + 2.0 * (fleet.processes_per_host - 1) * constants.local_latency_s
    )


def _exposed(
    total: float, *, tensors: int, window_s: float, buffer_bytes: float, fixed_s: float, per_byte_s: float, whole: bool
) -> float:
    """Seconds after the backward pass until everything is reduced.

    Gradients become ready evenly over the backward pass. Whatever is ready goes next, up to a buffer's size, while
    the following ones are still being computed.

    Args:
        total: Bytes of all gradients.
        tensors: How many there are.
        window_s: Seconds of the backward pass.
        buffer_bytes: The most that goes at once; 0 for one gradient.
        fixed_s: Seconds of each act, however little it moves.
        per_byte_s: Seconds of each byte of gradients.
        whole: Whether only full buffers go (packs are cut beforehand).
    """
    smallest = total / max(1, tensors)
    limit = max(buffer_bytes, smallest)
    now = sent = 0.0
    while sent < total * (1.0 - 1e-9):
        wanted = min(limit if whole else smallest, total - sent)
        ready_at = window_s * (sent + wanted) / total
        now = max(now, ready_at)
        ready = total * (min(1.0, now / window_s) if window_s > 0 else 1.0) - sent
        bucket = min(limit, max(wanted, ready), total - sent)
        now += fixed_s + bucket * per_byte_s
        sent += bucket
    return max(0.0, now - window_s)


def _servers(workload: Workload, fleet: Hardware, constants: Constants) -> Prediction:
    """Return a worker's step, with one server on each host; the largest variable stays on one of them."""
    hosts, workers, per_host = fleet.hosts, fleet.size, fleet.processes_per_host
    rate = fleet.bandwidth * constants.server_share if hosts > 1 else fleet.local_bandwidth
    elsewhere = (hosts - 1) / hosts if hosts > 1 else 1.0
    # What the fullest server holds, and what its host's link carries for all workers that are not beside it.
    fullest = max(workload.largest_bytes, workload.gradient_bytes / hosts)
    away = workers - per_host if hosts > 1 else workers
    read_s = per_host * workload.gradient_bytes * elsewhere / rate
    hidden_s = workload.compute_s * constants.backward_share
    path_s = workload.compute_s + constants.server_step_s + read_s + max(0.0, read_s - hidden_s)
    bounds = {
        "computing": path_s if read_s < 0.05 * workload.compute_s else 0.0,
        "reading the variables": path_s,
        "a server's link": (away * fullest + per_host * workload.gradient_bytes * elsewhere) / rate,
        "the chief": workers * constants.dispatch_s,
        "applying gradients": workers * fullest / constants.apply_bandwidth,
    }
    limit = max(bounds, key=lambda name: bounds[name])
    step_s = bounds[limit]
    return _prediction(
        "parameter_server", workload, fleet, waiting_s=0.0, exchange_s=step_s - workload.compute_s, limit=limit
    )


def _prediction(
    strategy: str, workload: Workload, fleet: Hardware, *, waiting_s: float, exchange_s: float, limit: str
) -> Prediction:
    step_s = workload.compute_s + waiting_s + exchange_s
    return Prediction(
        strategy=strategy,
        step_s=step_s,
        compute_s=workload.compute_s,
        waiting_s=waiting_s,
        exchange_s=exchange_s,
        limit=limit,
        samples_per_second=fleet.size * workload.batch_size / step_s,
        efficiency=workload.compute_s / step_s,
    )
