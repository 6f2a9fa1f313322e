"""All-reduce bandwidth of two ranks: Horovod over MPI and over Gloo, and CollectiveAllReduce, beside the loopback."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import socket
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import harness, steps
from benchmarks.harness import Numbers, Quiet, Row, median_with_interval
from estimators import MPI, CollectiveAllReduce, ElasticHorovod, TensorFlow

_SCRIPT = harness.HERE / "scripts" / "allreduce.py"
RANKS = 2
SIZES = tuple(1 << power for power in (20, 22, 24, 26, 28))
_SECONDS = 0.5

#: Name -> distribution. Horovod's Gloo operations crash under its MPI controller (0.28.1); elastic Horovod has Gloo's.
WAYS: Mapping[str, Any] = {
    "Horovod, MPI": MPI(processes_per_host=RANKS),
    "Horovod, Gloo": ElasticHorovod(processes_per_host=RANKS),
    "CollectiveAllReduce": CollectiveAllReduce(processes_per_host=RANKS, communication="ring"),
}


def bus_bandwidth(size: int, seconds: float, ranks: int = RANKS) -> float:
    """Bytes per second on each rank's link: 2(N−1)/N · S ÷ t, which a ring's bound makes comparable over N. Pure."""
    return 2.0 * (ranks - 1) / ranks * size / seconds


def run(options: argparse.Namespace) -> None:
    """Measure and record."""
    quiet = Quiet(options.patience)
    with harness.own_home(), tempfile.TemporaryDirectory(prefix="bench-") as folder:
        result = Path(folder, "result.json")
        ways = {
            name: lambda name=name: _measure(name, options.seconds or _SECONDS, result)  # type: ignore[misc]
            for name in WAYS
        }
        failures: dict[str, str] = {}
        values = harness.alternate(
            options.alternations or 4, {**ways, "loopback": lambda: loopback(options.seconds or _SECONDS)}, quiet,
            warm_up=0, failures=failures, show=_shown,
        )  # fmt: skip
    if "loopback" in failures:
        raise SystemExit(f"the loopback could not be measured, which all are held against: {failures['loopback']}")
    rows = rows_of(values)
    harness.record("allreduce", rows, values, quiet, dry=options.dry, table=table(values, failures))


def _shown(numbers: Numbers) -> str:
    """What one round of a way gave."""
    return ", ".join(f"{int(size) >> 20} MB {rate / 1e6:,.0f} MB/s" for size, rate in numbers.items())


def _measure(name: str, seconds: float, result: Path) -> Numbers:
    steps.fit_quietly(
        TensorFlow(
            entry_point=_SCRIPT.name,
            source_dir=str(_SCRIPT.parent),
            instance_type="local_process",
            distribution=WAYS[name],
            hyperparameters={"sizes": ",".join(map(str, SIZES)), "seconds": seconds, "result": str(result)},
        )
    )
    found = json.loads(result.read_text())
    result.unlink()
    return {size: bus_bandwidth(int(size), taken) for size, taken in found.items()}


def loopback(seconds: float) -> Numbers:
    """What two processes send each other over TCP on this machine at the same time, in bytes per second and direction.

    It is what a ring of two could reach if adding up cost nothing.
    """
    context = multiprocessing.get_context("spawn")
    with socket.create_server(("127.0.0.1", 0)) as server:
        other = context.Process(target=_exchange_as_client, args=(server.getsockname()[1], seconds))
        other.start()
        connection, _ = server.accept()
        with connection:
            rate = _exchange(connection, seconds)
        other.join()
    other.close()
    return {str(size): rate for size in SIZES}


def _exchange_as_client(port: int, seconds: float) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        _exchange(connection, seconds)


def _exchange(connection: socket.socket, seconds: float) -> float:
    """Send and receive at once for a while; returns the bytes received per second."""
    import threading

    block = bytes(1 << 20)
    connection.settimeout(10 + 2 * seconds)
    until = time.monotonic() + seconds

    def send() -> None:
        while time.monotonic() < until:
            connection.sendall(block)
        connection.shutdown(socket.SHUT_WR)

    sender = threading.Thread(target=send)
    sender.start()
    began, received = time.monotonic(), 0
    buffer = bytearray(1 << 20)
    while count := connection.recv_into(buffer):
        received += count
    taken = time.monotonic() - began
    sender.join()
    connection.close()
    return received / taken


def rows_of(values: Mapping[str, Sequence[Numbers]]) -> list[Row]:
    """A row for each way and size: bus bandwidth, and its share of the loopback's."""
    limit = statistics.median(numbers[str(SIZES[-1])] for numbers in values["loopback"])
    return [
        Row(
            what=f"{way}, {size >> 20} MB",
            estimate=median_with_interval([numbers[str(size)] / 1e6 for numbers in rounds]),
            unit="MB/s",
            beside={"÷ loopback": statistics.median(numbers[str(size)] for numbers in rounds) / limit},
        )
        for way, rounds in values.items()
        if way != "loopback"
        for size in SIZES
    ]


def table(values: Mapping[str, Sequence[Numbers]], failures: Mapping[str, str] | None = None) -> str:
    """Bus bandwidths in MB/s, a row for each way, a column for each size; and why a way has none."""
    lines = [["bus bandwidth, MB/s", *(f"{size >> 20} MB" for size in SIZES)], ["---"] * (1 + len(SIZES))]
    for way, rounds in values.items():
        medians = [statistics.median(numbers[str(size)] for numbers in rounds) / 1e6 for size in SIZES]
        lines.append([way, *(f"{median:,.0f}" for median in medians)])
    for way, reason in (failures or {}).items():
        lines.append([way, f"failed: {reason}", *[""] * (len(SIZES) - 1)])
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
