"""A hundred resizes in one run, some of them kills: no hang, no record lost or counted twice, memory flat.

Spare hosts are kept, so that what joins has imported TensorFlow already.
"""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import clusters
import pytest
from elastic_jobs import ENVIRONMENT, LEDGER, check, sizes, trained, until_size, worker_report

from estimators import ElasticHorovod, TrainingJob
from estimators.client import ipc_client
from estimators.client.resizing import next_size

pytestmark = [pytest.mark.soak, pytest.mark.tensorflow, pytest.mark.horovod]

#: How many changes a worker's memory may take to settle, and how much it may grow from then on, in MB.
SETTLED, GROWTH_MB = 5, 50
#: How long a change may take, in seconds.
TIMEOUT_S = 120


def memory_mb(pid: int) -> float:
    """Resident memory of a process, in MB."""
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS")]
    return round(int(line.split()[1]) / 1024, 1)


class Resizes:
    """Changes a job's membership at random, each time waiting until it trains at the new size.

    Args:
        make: Has the script's marks.
        job: The job, whose first host ``algo-1`` is left alone for as long as it is ``spared``.
        generator: What is random.
        size: Its workers, of one host each.
        most: How many there may be.
    """

    def __init__(
        self, make: clusters.Make, job: TrainingJob, generator: random.Random, *, size: int, most: int
    ) -> None:
        self._make = make
        self._job = job
        self._generator = generator
        self._size = size
        self._most = most
        self._new = 0  # members at most that may not have taken the training's state yet
        self.spared = True
        self.kinds: Counter[str] = Counter()

    @property
    def workers(self) -> list[str]:
        """Of the last membership, by rank."""
        return [event.data["workers"] for event in self._job.record.events("resized")][-1]

    def change(self) -> None:
        """Change it once."""
        may_go = [worker for worker in self.workers if not (self.spared and worker.startswith("algo-1."))]
        if self._size > 1 and self._generator.random() < 0.3:
            self._kill(self._generator.choice(may_go))
            return
        size = next_size(self._size, step=1, least=1, most=self._most, generator=self._generator)
        if size > self._size:
            self.kinds["join"] += 1
            self._new += 1
            self._job.add_hosts(1)
        else:
            self.kinds["leave"] += 1
            self._keep_state()
            self._job.remove_host(self._generator.choice(may_go).partition(".")[0])
        self._size = size
        # A host that leaves counts among those that there may be until it is gone.
        self._await(lambda: len(self.workers) == len(self._job.hosts) == size)

    def _kill(self, worker: str) -> None:
        """A worker comes back by itself, and a host is replaced by a spare one."""
        self._keep_state()
        self._new += 1
        if self._generator.random() < 0.5:
            self.kinds["killed worker"] += 1
            ipc_client.request(self._job.record, {"op": "kill_rank", "rank": self.workers.index(worker)})
        else:
            self.kinds["killed host"] += 1
            clusters.Snapshot(self._job).find("toolkit", worker.partition(".")[0]).kill(signal.SIGKILL)
        self._await(lambda: worker not in self.workers and len(self.workers) == self._size)

    def _keep_state(self) -> None:
        """Changes come while the workers meet, too; but the last that has the state must not be the one that goes."""
        if self._new > self._size - 2:
            before = self._epochs()
            self._await(lambda: self._epochs() > before)
            self._new = 0

    def _epochs(self) -> int:
        return len(list(self._make.marks.glob("epoch-*")))

    def _await(self, condition: Callable[[], object]) -> None:
        clusters.until(condition, check=lambda: check(self._job))


@pytest.mark.parametrize("seed", [1795360728, 1795383069, "new"], indirect=True)
def test_a_hundred_resizes(
    make: clusters.Make, count: Callable[[int], int], record: Callable[..., None], seed: int
) -> None:
    began = time.monotonic()
    job = make.start(
        LEDGER,
        hosts=2,
        distribution=ElasticHorovod(max_hosts=4, spares=1, cooldown=(0.1, 0.2)),
        environment=ENVIRONMENT,
    )
    until_size(job, 2)
    trained(make, job, 2)
    resizes = Resizes(make, job, random.Random(seed), size=2, most=4)
    processes = {
        "supervisor": int(job.record.read_status()["Fleetfit"]["supervisor_pid"]),
        # The host that is left alone, in the first half; in the second any may go, the first one too.
        "worker": next(e.data["pid"] for e in job.record.events("process_started") if e.host == "algo-1"),
    }
    memory: dict[str, list[float]] = {name: [memory_mb(pid)] for name, pid in processes.items()}
    changes = count(100)
    for number in range(changes):
        resizes.spared = number < changes // 2
        resizes.change()
        for name, pid in processes.items():
            if resizes.spared or name == "supervisor":
                memory[name].append(memory_mb(pid))
    make.mark("enough")
    job.wait(logs=False, timeout=TIMEOUT_S)
    said = worker_report(job)
    epochs = max(int(path.name.partition("-")[2]) for path in make.marks.glob("epoch-*")) + 1
    growth = {name: round(values[-1] - values[min(SETTLED, len(values) - 1)], 1) for name, values in memory.items()}
    record(
        "elastic",
        seed=seed,
        changes=dict(resizes.kinds),
        memberships=len(sizes(job)),
        epochs=epochs,
        least_trained=said["least"],
        most_trained=said["most"],
        seconds=round(time.monotonic() - began, 1),
        memory_mb={
            name: {"settled": values[min(SETTLED, len(values) - 1)], "last": values[-1], "changes": len(values) - 1}
            for name, values in memory.items()
        },
        status=str(job.status),
    )
    assert job.status == "Completed"
    assert (said["least"], said["most"]) == (epochs, epochs)
    assert growth["supervisor"] < GROWTH_MB and growth["worker"] < GROWTH_MB, growth
