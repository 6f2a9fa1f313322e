"""Predict the time of a training step under each strategy with a cost model. Pure.

Terms: There are H hosts with P processes each, and N = H · P processes in total. The processes train a model whose
gradients have S bytes. Each process needs ``compute_s`` seconds to compute its part of a step, including the backward
pass. Transfers can overlap with the backward pass. A link carries B bytes/s in each direction.

In *synchronous strategies*, all processes wait for the slowest process in each step. σ is the standard deviation of a
process's step time, divided by the mean step time. The slowest of N processes needs about 1 + σ·√(2 ln N) times the
mean time. In each cycle, *Horovod* reduces the gradients that are ready, in buffers of at most the default size. A ring
moves 2(N−1)/N · S bytes through every link and needs 2(N−1) messages for each buffer. *CollectiveAllReduce* packs all
gradients into a single pack by default, which is complete only after the backward pass.

With *parameter servers*, there is one server on each host, and no worker waits for other workers. A worker reads all
variables before its step, and the workers of a host share the host's link. Sending overlaps with the backward pass. A
variable is never divided among servers. Therefore the server with the largest variable sends and receives at least this
variable for every worker on other hosts. With many hosts, the link of this server limits the speed. The chief schedules
the workers' steps one after another.
"""

from __future__ import annotations

import math

from container.contract.frozen import dataclass
from container.contract.names import suggests_arguments

#: Horovod's default of HOROVOD_FUSION_THRESHOLD, in bytes.
_FUSION_BYTES = 128 << 20


@suggests_arguments
@dataclass(frozen=True, kw_only=True)
class Workload:
    """The size of a model, and the work of one process in a step.

    Attributes:
        compute_s: The seconds that a process needs to compute its part of a step if it runs alone.
        gradient_bytes: The size of all gradients of a step, in bytes.
        largest_bytes: The size of the largest gradient, in bytes.
        tensors: The number of gradients.
        batch_size: The number of records in one process's part of a step.
    """

    compute_s: float
    gradient_bytes: float
    largest_bytes: float = 0.0
    tensors: int = 50
    batch_size: int = 1


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """The number of hosts, and the bandwidths of their links.

    Attributes:
        hosts: The number of hosts.
        processes_per_host: The number of processes (devices) on each host.
        bandwidth: The bandwidth of a host's link, in bytes per second and direction.
        local_bandwidth: The bandwidth between the processes of a host, in bytes per second.
    """

    hosts: int
    processes_per_host: int = 1
    bandwidth: float = 1.25e9
    local_bandwidth: float = 10e9

    @property
    def size(self) -> int:
        """Return the number of processes on all hosts."""
        return self.hosts * self.processes_per_host


@dataclass(frozen=True, kw_only=True)
class Constants:
    """The constants of machines and libraries. :mod:`estimators.results.advice.calibration` measures some of these
    constants.

    Attributes:
        ring_share: The fraction of a link's bandwidth that Horovod's ring reaches.
        collective_share: The fraction of a link's bandwidth that CollectiveAllReduce reaches with gRPC.
        server_share: The fraction of a link's bandwidth that parameter servers reach with gRPC.
        latency_s: The latency of a message between hosts, in seconds.
        local_latency_s: The latency of a message within a host, in seconds.
        cycle_s: The seconds that Horovod's processes need to agree on which gradients are reduced next.
        step_s: The fixed costs of a step of a synchronous strategy, in seconds.
        server_step_s: The fixed costs of a worker's step with parameter servers, in seconds.
        dispatch_s: The seconds that the chief needs to schedule one worker's step.
        apply_bandwidth: The bytes of gradients per second that a server applies.
        jitter: The standard deviation of a process's step time, divided by the mean step time.
        backward_share: The fraction of the computing time that is the backward pass.
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


#: The constants by device. From step to step, the time on the processors of cloud instances varies more than on GPUs.
GPU = Constants()
CPU = Constants(jitter=0.1, latency_s=25e-6)


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The predicted time of a step, and the times of which it consists.

    Attributes:
        strategy: The strategy's name.
        step_s: The seconds of a step of all processes. With parameter servers, the seconds of a worker's step.
        compute_s: The seconds of a step in which a process computes.
        waiting_s: The seconds of a step in which a process waits for the slowest process.
        exchange_s: The seconds of the transfers that do not overlap with computing.
        limit: What limits the speed: ``computing``, ``links``, ``a server's link``, ``the chief`` …
        samples_per_second: The records per second of all processes together.
        efficiency: The speed per process, divided by the speed of a single process.
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
) -> Prediction:
    """Predict the time of a step.

    Args:
        strategy: ``mpi``, ``collective_all_reduce`` or ``parameter_server``. ``none`` for one process.
        workload: The model, and the work of a process in a step.
        fleet: The hosts.
        constants: The constants of machines and libraries.

    Raises:
        ValueError: the strategy is unknown.
    """
    if fleet.size == 1:
        return _prediction(strategy, workload, fleet, waiting_s=0.0, exchange_s=0.0, limit="computing")
    if strategy == "parameter_server":
        return _servers(workload, fleet, constants)
    if strategy not in ("mpi", "collective_all_reduce"):
        raise ValueError(f"there is no cost model of {strategy!r}. Use mpi, collective_all_reduce or parameter_server.")
    waiting_s = workload.compute_s * constants.jitter * math.sqrt(2.0 * math.log(fleet.size))
    latency_s = ring_latency(fleet, constants)
    if strategy == "mpi":
        exchange_s = constants.step_s + _exposed(
            workload.gradient_bytes,
            tensors=workload.tensors,
            window_s=workload.compute_s * constants.backward_share,
            fixed_s=constants.cycle_s + latency_s,
            per_byte_s=ring_seconds(1.0, fleet, constants.ring_share),
        )
    else:
        exchange_s = constants.step_s + latency_s
        exchange_s += ring_seconds(workload.gradient_bytes, fleet, constants.collective_share)
    limit = "links" if exchange_s > max(waiting_s, 0.05 * workload.compute_s) else "computing"
    return _prediction(strategy, workload, fleet, waiting_s=waiting_s, exchange_s=exchange_s, limit=limit)


def ring_seconds(total: float, fleet: Hardware, share: float) -> float:
    """Return the seconds of a ring all-reduce's transfers, on the slowest link of the ring.

    The formula is 2(N−1)/N · S ÷ B, where N is the number of processes, S is ``total``, and B is the bandwidth of the
    slowest link.

    Args:
        total: The bytes of all gradients.
        fleet: The hosts.
        share: The fraction of the bandwidth between hosts that the strategy reaches.
    """
    slowest = fleet.local_bandwidth
    if fleet.hosts > 1:
        slowest = min(slowest, fleet.bandwidth * share)
    return 2.0 * (fleet.size - 1) / fleet.size * total / slowest


def ring_latency(fleet: Hardware, constants: Constants) -> float:
    """Return the total latency of a ring all-reduce's messages, in seconds.

    With H hosts and P processes per host, the formula counts 2(H−1) messages between hosts and 2(P−1) messages within a
    host.
    """
    return (
        2.0 * (fleet.hosts - 1) * constants.latency_s + 2.0 * (fleet.processes_per_host - 1) * constants.local_latency_s
    )


def _exposed(total: float, *, tensors: int, window_s: float, fixed_s: float, per_byte_s: float) -> float:
    """Return the seconds from the end of the backward pass until Horovod has reduced all gradients.

    The model assumes that gradients become ready at even intervals during the backward pass. All gradients that are
    ready are sent together, up to the size of a buffer. Meanwhile, the next gradients are computed.

    Args:
        total: The bytes of all gradients.
        tensors: The number of gradients.
        window_s: The seconds of the backward pass.
        fixed_s: The seconds of each transfer that do not depend on its size.
        per_byte_s: The seconds for each byte of gradients.
    """
    smallest = total / max(1, tensors)
    limit = max(_FUSION_BYTES, smallest)
    now = sent = 0.0
    while sent < total * (1.0 - 1e-9):
        wanted = min(smallest, total - sent)
        ready_at = window_s * (sent + wanted) / total
        now = max(now, ready_at)
        ready = total * (min(1.0, now / window_s) if window_s > 0 else 1.0) - sent
        bucket = min(limit, max(wanted, ready), total - sent)
        now += fixed_s + bucket * per_byte_s
        sent += bucket
    return max(0.0, now - window_s)


def _servers(workload: Workload, fleet: Hardware, constants: Constants) -> Prediction:
    """Predict the time of a worker's step with one parameter server on each host.

    A variable is never divided among servers.
    """
    hosts, workers, per_host = fleet.hosts, fleet.size, fleet.processes_per_host
    rate = fleet.bandwidth * constants.server_share if hosts > 1 else fleet.local_bandwidth
    elsewhere = (hosts - 1) / hosts if hosts > 1 else 1.0
    # The bytes on the server with the most data, and the number of workers that reach this server through the link of
    # the server's host.
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
