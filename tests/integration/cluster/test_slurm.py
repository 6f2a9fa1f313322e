"""Jobs on a Slurm cluster: what only Slurm has. What all clusters hold, they hold here too (:mod:`places`)."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import clusters
import documents
import places
import pytest
import slurm
from run_documents import project_of, run_document

from estimators import FailurePolicy, UnsupportedError
from estimators.backends.slurm.provider import SlurmProvider
from estimators.cli import clean

pytestmark = pytest.mark.skipif(not slurm.possible(), reason="Slurm needs root and Debian's slurm-wlm and munge")

#: Saves at SIGTERM in its first attempt, and ends well in the second.
SAVES = """
import os, signal, sys, time
import aid
if os.environ["FLEETFIT_ATTEMPT"] != "0":
    sys.exit(0)
def save(*_):
    aid.mark(f"saved-{aid.HOST}")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
aid.mark(f"ready-{aid.RANK}")
time.sleep(300)
"""


@pytest.fixture
def make(slurm_cluster: slurm.Cluster, tmp_path: Path, home: Path) -> clusters.Make:
    """Makes estimators whose jobs run on the cluster."""
    return places.on_slurm(slurm_cluster, tmp_path, home)


def allocations(cluster: slurm.Cluster) -> list[str]:
    """The numbers of what is in the queue."""
    return [line.split()[0] for line in cluster.queue()]


def is_empty(cluster: slurm.Cluster) -> bool:
    """Whether nothing is in the queue, and nothing of a job on a node."""
    return not cluster.queue() and not any(node.machine.processes() for node in cluster.nodes)


def test_a_job_runs_in_one_allocation_which_ends_with_it(
    make: clusters.Make, slurm_cluster: slurm.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SBATCH_WAIT", "1")  # of the caller's, who means own commands
    monkeypatch.setenv("SBATCH_ARRAY_INX", "0-1")
    job = make.start(
        """
        import os, socket
        import aid
        aid.report(host=socket.gethostname(), slurm=[name for name in os.environ if name.startswith("SLURM")],
                   secret=os.environ.get("OF_THE_CALLER"))
        aid.mark(f"ready-{aid.RANK}")
        aid.wait_for("go")
        """,
        hosts=2,
        ready=2,
        options=make.changed(time=10),
    )
    [line] = slurm_cluster.queue()
    assert line.split()[1:] == ["RUNNING", f"fleetfit-{job.name}"]
    make.mark("go")
    clusters.await_terminal(job)
    assert job.status == "Completed"
    said = clusters.reports(job)
    assert said[0]["host"] != said[1]["host"]
    # Open MPI and others would take them for their own allocation.
    assert said[0]["slurm"] == said[1]["slurm"] == []
    clusters.until(lambda: is_empty(slurm_cluster))


@pytest.mark.parametrize(
    "victim", ["supervisor", *(pytest.param(name, marks=pytest.mark.soak) for name in ("everything", "srun", "agent"))]
)
def test_nothing_is_left_in_the_queue_or_on_a_node_when_something_is_killed(
    victim: str, make: clusters.Make, slurm_cluster: slurm.Cluster
) -> None:
    job = make.start(
        clusters.LEAVES_A_CHILD,
        hosts=2,
        processes=2,
        ready=4,
    )
    supervisor = clusters.supervisor(job)
    below = clusters.below(supervisor.pid)
    if victim == "supervisor":
        supervisor.kill()
    elif victim == "everything":  # nobody is left to cancel it: the allocation ends by itself
        for process in (supervisor, *below):
            process.kill_if_alive()
    elif victim == "srun":
        next(process for process in below if process.argv[0] == "srun").kill()
    else:
        lines = [line for node in slurm_cluster.nodes for line in node.machine.processes()]
        agent = next(line for line in lines if line.endswith(" agent host "))
        os.kill(int(agent.split()[0]), signal.SIGKILL)
    try:
        clusters.until(lambda: is_empty(slurm_cluster))
        clusters.await_terminal(job)
        assert job.status == "Failed"
    finally:
        for node in slurm_cluster.nodes if victim != "supervisor" else ():
            node.machine.tidy()  # Slurm has killed the agent, so nobody is left to remove its folder


def test_what_waits_in_the_queue_says_why_and_goes_with_its_supervisor_or_by_clean(
    make: clusters.Make, slurm_cluster: slurm.Cluster
) -> None:
    first = make.start(clusters.WAITS, hosts=places.MACHINES, ready=places.MACHINES)
    second = make(clusters.WAITS).fit(wait=False)
    clusters.until(lambda: len(slurm_cluster.queue()) == 2)  # or their supervisors might overtake each other
    third = make(clusters.WAITS).fit(wait=False)

    def said(job: object) -> str:
        return str(job.describe()["SecondaryStatusTransitions"][-1]["StatusMessage"])  # type: ignore[attr-defined]

    clusters.until(lambda: "it waits for nodes to become free (Resources)" in said(second))
    clusters.until(lambda: "at place 2 of its partition's queue" in said(third))
    assert second.describe()["SecondaryStatus"] == "Pending"
    clusters.supervisor(second).kill()
    clusters.until(lambda: len(slurm_cluster.queue()) == 2)
    supervisor = clusters.supervisor(third)
    supervisor.kill(signal.SIGSTOP)  # or it would replace what would cancel the job once it is gone
    for process in (*clusters.below(supervisor.pid), supervisor):
        process.kill_if_alive()
    clusters.until(lambda: not third.record.is_supervised())
    [found] = [item for item in clean.left_by_backends() if item.kind is clean.ItemKind.HOST]
    assert found.leftover is not None and found.leftover.job == third.name  # and not what runs
    [removal] = clean.remove([found])
    assert removal.error is None
    clusters.until(lambda: len(slurm_cluster.queue()) == 1)
    slurm_cluster.ask("scancel", allocations(slurm_cluster)[0])
    assert clusters.await_terminal(first) == "Failed"
    assert "the allocation was cancelled (scancel)" in str(first.describe()["FailureReason"])
    clusters.until(lambda: is_empty(slurm_cluster))


@pytest.mark.parametrize("requeue", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_a_job_of_higher_priority_interrupts_one_which_saves_and_goes_on_later(
    requeue: bool, make: clusters.Make, slurm_cluster: slurm.Cluster
) -> None:
    job = make.start(SAVES, hosts=2, ready=2, options=make.changed(requeue=requeue))
    [number] = allocations(slurm_cluster)
    urgent = make.start(
        clusters.WAITS.replace("ready", "urgent"), hosts=places.MACHINES, options=make.changed(partition="urgent")
    )
    for host in ("algo-1", "algo-2"):
        make.marked(f"saved-{host}")
    clusters.until(lambda: job.describe()["SecondaryStatus"] == "Pending")
    make.marked("urgent-0")
    told = [event for event in job.record.events() if event.kind == "interrupted"]
    # Whoever has saved by then, because the other one was told first, has no notice of its own any more.
    assert told and {event.data["target"] for event in told} <= {"algo-1", "algo-2"}
    notices = [event.data["notice_s"] for event in told]
    # What is left of the partition's GraceTime; now and then Slurm does not say it (and then the log has what it said).
    unsaid = "Slurm does not say when" in (job.record.path / "supervisor.log").read_text()
    assert all(0 < notice < 20 for notice in notices) or unsaid, notices
    assert (f"{number} PENDING fleetfit-{job.name}" in slurm_cluster.queue()) == requeue
    urgent.stop()
    clusters.await_terminal(urgent)
    if requeue:
        slurm_cluster.ask("scontrol", "update", f"jobid={number}", "starttime=now")  # else Slurm waits two minutes
    clusters.await_terminal(job)
    assert job.status == "Completed"
    clusters.until(lambda: is_empty(slurm_cluster))


@pytest.mark.soak
@pytest.mark.parametrize("what", ["down", "cut", "slurmd"])
def test_a_node_that_fails_is_replaced(what: str, make: clusters.Make, slurm_cluster: slurm.Cluster) -> None:
    job = make.start(
        """
        import os, sys, time
        import aid
        if os.environ["FLEETFIT_ATTEMPT"] != "0":
            sys.exit(0)
        aid.mark(f"ready-{aid.RANK}")
        time.sleep(300)
        """,
        hosts=2,
        ready=2,
        options={**make.changed(silence=3), "failure_policy": FailurePolicy(max_failures=1)},
    )
    nodes = slurm_cluster.ask("squeue", "-h", "-o", "%N")
    names = slurm_cluster.ask("scontrol", "show", "hostnames", nodes).split()
    node = next(node for node in slurm_cluster.nodes if node.name == names[1])
    if what == "down":
        slurm_cluster.ask("scontrol", "update", f"nodename={node.name}", "state=down", "reason=test")
    elif what == "cut":
        node.machine.cut()
    else:
        node.kill()  # what runs there goes on until Slurm gives the node up
    clusters.await_terminal(job)
    assert job.status == "Completed", job.describe().get("FailureReason")
    node.machine.mend()
    if what == "down":
        node.machine.tidy()  # Slurm kills the agent on a node that is set down, so nobody is left to remove its folder
    assert job.describe()["SecondaryStatusTransitions"]


@pytest.mark.soak
def test_the_limit_of_an_allocation_is_a_notice(make: clusters.Make, slurm_cluster: slurm.Cluster) -> None:
    job = make.start(SAVES, ready=1, options=make.changed(time="1:00", signal="USR1@50"))
    make.marked("saved-algo-1")
    clusters.await_terminal(job)
    assert job.status == "Completed"
    [told] = [event for event in job.record.events() if event.kind == "interrupted"]
    assert told.data["notice_s"] > 5


def test_what_slurm_would_not_start_is_refused_by_name(
    make: clusters.Make, monkeypatch: pytest.MonkeyPatch, slurm_cluster: slurm.Cluster, tmp_path: Path
) -> None:
    for options, hosts, said in (
        ({"partition": "trian"}, 1, "Did you mean 'train'"),
        ({"partition": "short"}, 2, "partition 'short' gives a job at most 1 nodes. Ask for fewer"),
        ({"partition": "short", "time": "2:00:00"}, 1, "allows at most 00:05:00"),
        ({"partition": "closed"}, 1, "accepts no jobs now"),
        ({"gres": "gpu:1"}, 1, "sbatch refuses such an allocation: Invalid generic resource"),
        ({"constraint": "fast"}, 1, "Invalid feature specification"),
    ):
        with pytest.raises(UnsupportedError, match=said):
            make("pass", hosts=hosts, options=make.changed(**options)).fit(wait=False)
    [found] = SlurmProvider.diagnose()
    assert found.ok and f"train (default): {places.MACHINES} nodes" in found.text
    with monkeypatch.context() as patched:
        patched.setenv("PATH", os.path.dirname(sys.executable))
        with pytest.raises(
            UnsupportedError, match=r"sbatch, srun, .* cannot be found in PATH. Run fit\(\) where sbatch"
        ):
            make("pass").fit(wait=False)
        [found] = SlurmProvider.diagnose()
        assert found.ok is None and "to no Slurm cluster" in found.text
    with monkeypatch.context() as patched:
        wrong = tmp_path / "slurm.conf"
        wrong.write_text("Nonsense=1\n")
        patched.setenv("SLURM_CONF", str(wrong))
        with pytest.raises(UnsupportedError, match="Slurm does not answer"):
            make("pass").fit(wait=False)
        [found] = SlurmProvider.diagnose()
        assert not found.ok and "scontrol ping" in found.remedy
    assert not slurm_cluster.queue()
    # What a node lacks is known when the job is there.
    job = make("pass", options=make.changed(python="/usr/bin/python3")).fit(wait=False)
    assert clusters.await_terminal(job) == "Failed"
    text = str(job.describe()["FailureReason"])
    assert "/usr/bin/python3 has no fleetfit" in text
    assert "Name the interpreter of this environment with backend_options={'python': …}" in text


@pytest.mark.tensorflow
@pytest.mark.usefixtures("slurm_cluster")
@pytest.mark.parametrize("document", documents.that_need("slurm"), ids=project_of)
def test_the_blocks_that_need_slurm_do_what_the_document_says(
    document: Path, tmp_path: Path, prepared_digits: Path
) -> None:
    run_document(document, tmp_path, "slurm", digits=prepared_digits)
