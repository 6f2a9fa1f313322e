"""Elastic jobs on machines that ssh reaches, which a script names."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import clusters
import fleet as fleets
import places
import pytest
from elastic_jobs import MEETING, check, until_size

from estimators import ElasticHorovod

pytestmark = [
    pytest.mark.horovod,
    pytest.mark.skipif(not fleets.possible(), reason="network namespaces need root and iproute2"),
]

#: Tells where it is, then keeps its place.
THERE = "import socket\nprint('at ' + socket.gethostname(), flush=True)\n" + MEETING


@pytest.fixture
def make(fleet: fleets.Fleet, tmp_path: Path, home: Path) -> clusters.Make:
    """Makes estimators whose jobs reach the machines by ssh; which, a script says."""
    return places.on_ssh(fleet, tmp_path, home, hosts=None)


def on(fleet: fleets.Fleet) -> list[int]:
    """The numbers of the machines on which a toolkit runs."""
    return [
        number
        for number, machine in enumerate(fleet.machines)
        if any(" train " in f"{line} " for line in machine.processes())
    ]


def test_hosts_are_the_machines_that_a_script_names(make: clusters.Make, fleet: fleets.Fleet) -> None:
    addresses = [machine.address for machine in fleet.machines]
    named = make.folder / "named"
    script = make.folder / "discover_hosts.sh"
    script.write_text(f"#!/bin/sh\ncat '{named}'\n")
    script.chmod(0o755)

    def name(*numbers: int) -> None:
        (make.folder / "new").write_text("".join(f"{addresses[number]}:1\n" for number in numbers))
        os.replace(make.folder / "new", named)

    def until_on(*numbers: int) -> None:
        clusters.until(lambda: on(fleet) == sorted(numbers), check=lambda: check(job))

    name(2)
    strategy = ElasticHorovod(
        max_hosts=3, workers=1, min_hosts=1, warm=False, discovery=str(script), cooldown=(0.2, 1.0)
    )
    job = make.start(THERE, hosts=2, distribution=strategy)
    until_size(job, 1)
    until_on(2)
    assert job.hosts == ["algo-1"]
    name(2, 0)
    until_size(job, 1, 2)
    until_on(0, 2)
    clusters.until(lambda: "at machine-10" in clusters.all_text(job))
    # One that is lost is excluded for a while, and taken back, as it is still named.
    victim = fleet.machines[0]
    agent = int(next(line for line in victim.processes() if line.endswith("agent host ")).split()[0])
    os.kill(agent, signal.SIGKILL)
    until_size(job, 1, 2, 1, 2)
    until_on(0, 2)
    # Who is named no more leaves; who cannot be reached is told and holds nobody up.
    name(0)
    until_size(job, 1, 2, 1, 2, 1)
    until_on(0)
    (make.folder / "new").write_text(f"{addresses[0]}:1\nno-such-host.invalid:1\n")
    os.replace(make.folder / "new", named)
    clusters.until(lambda: "the name cannot be resolved" in clusters.all_text(job), check=lambda: check(job))
    name(0, 1)
    until_size(job, 1, 2, 1, 2, 1, 2)
    until_on(0, 1)
    make.mark("enough")
    job.wait(logs=False, timeout=60)
    assert job.status == "Completed", json.dumps(job.describe(), default=str)
    assert {line for line in clusters.all_text(job).split() if line.startswith("machine-")} == {
        "machine-10",
        "machine-11",
        "machine-12",
    }
    victim.tidy()


def test_a_host_that_is_named_later_gets_its_data_while_the_first_waits_for_it(
    make: clusters.Make, fleet: fleets.Fleet
) -> None:
    data = make.folder / "data"
    data.mkdir()
    (data / "part-1").write_text("for each host")
    named = make.folder / "named"
    named.write_text(f"{fleet.machines[2].address}:1\n")
    job = make.start(
        THERE,
        hosts=2,
        inputs={"more": str(data)},
        distribution=ElasticHorovod(max_hosts=2, warm=False, discovery=str(named)),
    )
    clusters.until(lambda: on(fleet) == [2], check=lambda: check(job))
    with named.open("a") as file:
        file.write(f"{fleet.machines[0].address}:1\n")
    until_size(job, 2)
    make.mark("enough")
    job.wait(logs=False, timeout=60)
    assert job.status == "Completed"
