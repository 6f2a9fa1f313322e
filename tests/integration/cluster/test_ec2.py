"""Jobs on EC2: moto answers for the API, and its instances are namespaces of this machine with sshd and IMDSv2."""

from __future__ import annotations

import signal
from pathlib import Path

import clusters
import ec2_machines
import fleet as fleets
import places
import pytest
from ec2_server import KEY, SECRET
from holding import held

from estimators import FailurePolicy
from estimators.cli import clean

pytestmark = pytest.mark.skipif(not fleets.possible(), reason="network namespaces need root and iproute2")


@pytest.fixture
def make(ec2: ec2_machines.Machines, tmp_path: Path, home: Path) -> clusters.Make:
    """Makes estimators whose jobs run on instances."""
    return places.on_ec2(ec2, tmp_path, home)


@pytest.mark.landing
def test_a_job_trains_on_spot_instances_and_nothing_is_left_of_them(
    make: clusters.Make, ec2: ec2_machines.Machines, home: Path
) -> None:
    job = make.run(
        """
        import socket
        import aid
        aid.report(address=socket.gethostbyname(socket.gethostname()))
        print("hello", flush=True)
        """,
        hosts=2,
        processes=1,
        use_spot_instances=True,
    )
    assert job.status == "Completed", job.describe().get("FailureReason")
    result = job.result()
    cost = result.cost()
    assert cost is not None and cost.total > 0 and cost.on_demand == pytest.approx(0.2 / 60, rel=0.5)
    assert cost.source == "the hosts' own prices while they ran"
    assert result.billable_s is not None and result.training_s is not None
    assert result.billable_s <= result.training_s
    reports = clusters.reports(job)
    assert {report["address"].rpartition(".")[0] for report in reports.values()} == {ec2.network}
    assert reports[0]["address"] != reports[1]["address"]
    [asked] = [form for name, form in ec2.server.asked if name == "CreateFleet"]
    assert asked["SpotOptions.SingleAvailabilityZone"] == "true" and asked["SpotOptions.MinTargetCapacity"] == "2"
    clusters.until(lambda: not ec2.server.running())
    client = ec2.server.client()
    clusters.until(lambda: not client.describe_launch_templates()["LaunchTemplates"])
    clusters.until(lambda: not client.describe_key_pairs()["KeyPairs"])
    own = [{"Name": "group-name", "Values": ["fleetfit-*"]}]
    clusters.until(lambda: not client.describe_security_groups(Filters=own)["SecurityGroups"])
    written = b"".join(path.read_bytes() for path in home.rglob("*") if path.is_file())
    for secret in (KEY, SECRET, "OPENSSH PRIVATE KEY"):
        assert secret.encode() not in written


@pytest.mark.parametrize(
    "also", [pytest.param((), id="remover"), pytest.param(("remover",), id="timer", marks=pytest.mark.soak)]
)
@pytest.mark.leaves("folders")
def test_no_instance_runs_on_after_the_supervisor_was_killed(
    also: tuple[str, ...], ec2: ec2_machines.Machines, tmp_path: Path, home: Path
) -> None:
    """What removes the fleet may be killed too: then the hosts' own timers end them."""
    make = places.on_ec2(ec2, tmp_path, home, lease=10)
    job = make.start(clusters.WAITS, hosts=2, ready=2)
    assert len(ec2.server.running()) == 2
    assert clean.find(clean.Selection(leftovers=False, regions={"ec2": ""})) == []  # its job runs
    supervisor = clusters.supervisor(job)
    removers = [
        process for process in clusters.below(supervisor.pid) if "estimators.backends.ec2.leftovers" in process.argv
    ]
    assert len(removers) == 1
    if also:
        supervisor.kill(signal.SIGSTOP)  # it would start another one
        removers[0].kill()
    supervisor.kill()
    clusters.until(lambda: not ec2.alive())
    clusters.until(lambda: not ec2.server.running())
    assert ec2.server.count("TerminateInstances") == (0 if also else 1)
    if also:  # the rest waits for who cleans up
        [item] = clean.find(clean.Selection(leftovers=False, regions={"ec2": ""}))
        assert (item.name, item.why.split(",")[0]) == (job.name, "0 instances")
        assert [removal.error for removal in clean.remove([item])] == [None]
        assert clean.find(clean.Selection(leftovers=False, regions={"ec2": ""})) == []


def test_a_notice_has_the_ranks_save_and_the_job_goes_on_elsewhere(
    make: clusters.Make, ec2: ec2_machines.Machines
) -> None:
    job = make.start(
        """
        import signal, sys, time
        import aid

        def save(number, frame):
            aid.mark(f"saved-{aid.RANK}-{time.monotonic()}")
            sys.exit(0)

        signal.signal(signal.SIGTERM, save)
        import os
        if os.path.exists(os.path.join(aid.MARKS, "noticed")):
            print("again", flush=True)
            sys.exit(0)
        aid.mark(f"ready-{aid.RANK}")
        time.sleep(300)
        """,
        hosts=2,
        ready=2,
        use_spot_instances=True,
        options={"failure_policy": FailurePolicy()},
    )
    first = set(ec2.server.running())
    make.mark("noticed")
    ec2.interrupt(sorted(first)[0])
    clusters.await_terminal(job)
    assert job.status == "Completed", job.describe().get("FailureReason")
    assert len([path for path in make.marks.iterdir() if path.name.startswith("saved-")]) == 2
    assert ec2.server.count("CreateFleet") == 2
    assert "is interrupted: the job has 120 s to save" in clusters.all_text(job) or job.result().endings


@pytest.mark.parametrize("how", [pytest.param("killed", marks=pytest.mark.leaves("folders")), "stopped"])
def test_instances_that_were_launched_and_not_noted_yet_are_ended(
    how: str, make: clusters.Make, ec2: ec2_machines.Machines
) -> None:
    with held("ec2.launched") as point:
        job = make.start(clusters.WAITS, hosts=2)
        there = point.await_there()
        supervisor = clusters.supervisor(job)
        assert there == supervisor.pid
        assert len(ec2.server.instances) == 2
        if how == "killed":
            supervisor.kill()
        else:
            job.stop(wait=True)
    assert clusters.await_terminal(job) == {"killed": "Failed", "stopped": "Stopped"}[how]
    clusters.until(lambda: not ec2.server.running())
    clusters.until(lambda: not ec2.alive())
    clusters.until(lambda: not ec2.server.client().describe_launch_templates()["LaunchTemplates"])
