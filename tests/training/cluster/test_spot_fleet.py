"""A training on spot hosts from its beginning to its end: a dispatcher apart, hosts that a script finds and loses."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import clusters
import fleet as fleets
import places
import pytest
from elastic_jobs import ENVIRONMENT, LEDGER, check, sizes, trained, until_size, worker_report

from estimators import ElasticHorovod, TrainingJob

pytestmark = [
    pytest.mark.soak,  # each of its chapters is a test of its own elsewhere
    pytest.mark.horovod,
    pytest.mark.skipif(not fleets.possible(), reason="network namespaces need root and iproute2"),
]

#: The ledger of records, with a learning rate that follows the hosts: what a record adds to its weight does not.
STORY = (
    LEDGER.replace("keras.optimizers.SGD(1.0)", "keras.optimizers.SGD(cluster.scale(1.0))")
    .replace("-tf.reduce_sum(y_pred, axis=-1)", "-tf.reduce_sum(y_pred, axis=-1) / model.optimizer.learning_rate")
    .replace('on_resize="keep_global_batch"', 'on_resize="scale_rate"')
    .replace(
        "        if cluster.is_chief:\n",
        "        if cluster.is_chief:\n"
        "            rate = float(model.optimizer.learning_rate.numpy())\n"
        "            print(f'epoch {epoch} rate {rate:g} size {cluster.size}', flush=True)\n",
        1,
    )
)
COOLDOWN_S = 0.5


def test_a_training_on_a_spot_fleet(fleet: fleets.Fleet, tmp_path: Path, home: Path) -> None:
    dispatcher, addresses = fleet.machines[3], [machine.address for machine in fleet.machines]
    make = places.on_ssh(fleet, tmp_path, home, hosts=None)
    assert fleet.keys is not None
    make._options |= {
        "dispatcher": dispatcher.address,
        "dispatcher_options": {"python": sys.executable, "ssh_config": str(fleet.keys.client())},
    }
    make._environment = {}
    named = make.marks / "named"  # what EC2 would say, and what the dispatcher sees
    script = tmp_path / "discover_hosts.sh"
    script.write_text(f"#!/bin/sh\ncat '{named}'\n")
    script.chmod(0o755)

    def name(*numbers: int) -> None:
        (make.marks / ".new").write_text("".join(f"{addresses[number]}:1\n" for number in numbers))
        os.replace(make.marks / ".new", named)

    name(0, 1)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "part-1").write_text("brought to each host, whenever it comes")
    job = make.start(
        STORY,
        inputs={"more": str(tmp_path / "data")},
        hosts=2,
        distribution=ElasticHorovod(min_hosts=1, max_hosts=3, discovery=str(script), cooldown=(COOLDOWN_S, 2.0)),
        environment=ENVIRONMENT,
    )
    until_size(job, 2)
    trained(make, job, 2)
    name(0, 1, 2)  # a third is found
    until_size(job, 2, 3)
    trained(make, job, 3)
    victim = host_on(job, fleet.machines[1])
    job.interrupt(victim, notice_s=20.0)  # one is interrupted, with notice
    name(0, 2)
    until_size(job, 2, 3, 2)
    trained(make, job, 2)
    name(0, 1, 2)  # and replaced
    until_size(job, 2, 3, 2, 3)
    trained(make, job, 3)
    lost = fleet.machines[2]
    for pid in lost.pids():  # one is lost without
        os.kill(pid, signal.SIGKILL)
    until_size(job, 2, 3, 2, 3, 2, 3)  # left out for its cooldown, and taken back
    trained(make, job, 3)
    assert not any(" train " in f"{line} " for line in dispatcher.processes())  # it has no slots of its own
    make.mark("enough")
    job.wait(logs=False, timeout=120)
    assert job.status == "Completed"
    told = [
        (int(epoch), float(rate), int(size))
        for epoch, rate, size in re.findall(r"epoch (\d+) rate ([\d.]+) size (\d)", clusters.all_text(job))
    ]
    assert all(rate == size for _, rate, size in told)
    # No epoch was begun again: the loss of a host took back three steps at most, which may have been an epoch's last.
    epochs = sorted({epoch for epoch, _, _ in told})
    assert epochs == list(range(len(epochs)))
    restored = [event.data["steps_lost"] for event in job.record.events() if event.kind == "restored"]
    assert restored and all(0 <= steps <= 3 for steps in restored)
    assert [epoch for epoch, _, _ in told] == sorted(epoch for epoch, _, _ in told)
    said = worker_report(job)
    assert (said["least"], said["most"]) == (len(epochs), len(epochs))
    events = list(job.record.events())
    assert {"notice", "host_left", "host_lost"} <= {event.kind for event in events}
    [gone] = [event for event in events if event.kind == "host_lost"]
    back = next(event for event in events if event.kind == "host_added" and event.time_ns > gone.time_ns)
    # The loss is told of a moment after the cooldown has begun.
    assert back.time_ns - gone.time_ns >= 0.9 * COOLDOWN_S * 1e9
    assert sizes(job) == [2, 3, 2, 3, 2, 3]
    lost.tidy()
    dispatcher.tidy()


def host_on(job: TrainingJob, machine: fleets.Machine) -> str:
    """The job's host on a machine."""
    check(job)
    for pid in machine.pids():
        environment = Path(f"/proc/{pid}/environ").read_bytes()
        found = re.search(rb"SM_CURRENT_HOST=(algo-\d+)", environment)
        if found is not None:
            return found[1].decode()
    raise AssertionError(f"no host on {machine.address}")
