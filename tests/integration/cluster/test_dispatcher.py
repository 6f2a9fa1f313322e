"""A job's supervisor on another machine: it needs the caller no more, and is seen from here and from elsewhere."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import clusters
import fleet as fleets
import places
import pytest
from dispatched import LOSS, STEPS, follower

from estimators import Estimator, TrainingJob
from estimators.cli import Exit
from estimators.cli import main as cli

pytestmark = pytest.mark.skipif(not fleets.possible(), reason="network namespaces need root and iproute2")


@pytest.fixture
def dispatcher(fleet: fleets.Fleet) -> Iterator[fleets.Machine]:
    """The machine that the supervisor runs on, which is none of the job's hosts."""
    machine = fleet.machines[3]
    yield machine
    for pid in machine.pids():
        with contextlib.suppress(ProcessLookupError):  # it was ending by itself
            os.kill(pid, signal.SIGKILL)
    machine.tidy()  # its record, and what a supervisor that was killed has left


@pytest.fixture
def make(fleet: fleets.Fleet, dispatcher: fleets.Machine, tmp_path: Path, home: Path) -> clusters.Make:
    """Makes estimators of jobs that the dispatcher runs on three other machines."""
    made = places.on_ssh(fleet, tmp_path, home, hosts=[machine.address for machine in fleet.machines[:3]])
    made._options = {**made._options, **reach(fleet, dispatcher)}
    made._environment = {}
    return made


def reach(fleet: fleets.Fleet, dispatcher: fleets.Machine) -> dict[str, Any]:
    """The options that name the dispatcher."""
    assert fleet.keys is not None
    options = {"python": sys.executable, "ssh_config": str(fleet.keys.client())}
    return {"dispatcher": dispatcher.address, "dispatcher_options": options}


@pytest.mark.landing
@pytest.mark.leaves("folders")
def test_the_job_goes_on_without_its_caller_and_all_of_it_comes_here(
    make: clusters.Make, dispatcher: fleets.Machine
) -> None:
    job = make.start(STEPS, hosts=2, ready=2, metric_definitions=LOSS)
    assert job.dispatcher == dispatcher.address
    there = dispatcher.processes()
    assert any(re.search(r"--record /tmp/home-\d+/\.fleetfit/jobs/", line) for line in there), there
    here = clusters.below(follower(job))
    assert here and all("ssh" in process.argv[0] for process in here), here
    next(process for process in here if "ControlMaster=yes" in process.argv).kill()  # the link is cut for a while
    clusters.until(lambda: (job.record.stored_status() or {})["Fleetfit"].get("unreached"))
    clusters.until(lambda: not (job.record.stored_status() or {})["Fleetfit"].get("unreached"))
    clusters.until(lambda: len(list(job.log_lines())) >= 4)
    os.kill(follower(job), signal.SIGKILL)
    clusters.until(lambda: not job.record.is_supervised())
    assert job.status == "InProgress"
    assert "no process follows this job" in job.warnings[-1]
    make.mark("go")
    clusters.until(lambda: not dispatcher.processes())  # over there, with nobody here
    again = Estimator.attach(job.name).latest_training_job
    assert again is not None
    again.wait(logs=False)
    assert again.status == "Completed"
    # What was here already has not come twice.
    lines = sorted(line.text for line in again.log_lines() if line.text.startswith("rank"))
    assert lines == ["rank 0 says hello", "rank 1 says hello"]
    assert list(again.metrics()["value"]) == [0.5, 0.5]
    assert again.model_data is not None and Path(again.model_data).is_file()
    assert Path(again.model_data).is_relative_to(job.record.path)
    kinds = [event.kind for event in again.record.events() if event.data.get("name") == "job_created"]
    assert kinds == ["phase"]


def test_the_command_line_starts_it_and_other_machines_see_and_stop_it(
    make: clusters.Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    estimator = make(STEPS)
    place, reached = make._options["dispatcher"], make._options["dispatcher_options"]
    there = ["--dispatcher", place, *(f"--dispatcher-option={name}={value}" for name, value in reached.items())]
    here = [f"--backend-option={name}={json.dumps(value)}" for name, value in make._options["backend_options"].items()]
    words = ["train", "train.py", "--source-dir", str(estimator.settings.source_dir), "--no-wait", "-t", "ssh"]
    assert cli.main([*words, "--name", "by-hand", f"--env=MARKS={make.marks}", *here, *there]) == 0
    job = TrainingJob.attach("by-hand")
    make.await_ready(1, job)
    environment = {**os.environ, "FLEETFIT_HOME": str(tmp_path / "elsewhere")}
    words = [sys.executable, "-m", "estimators.cli.main"]
    attached = subprocess.Popen(
        [*words, "attach", "by-hand", *there], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert attached.stdout is not None
    for line in attached.stdout:
        if "rank 0 says hello" in line:
            break
    with monkeypatch.context() as third:
        third.setenv("FLEETFIT_HOME", str(tmp_path / "third"))
        with pytest.raises(Exception, match="there is no training job 'no-such-job'"):
            Estimator.attach("no-such-job", dispatcher=place, dispatcher_options=reached)
        assert not (tmp_path / "third" / "jobs" / "no-such-job").exists()
        other = Estimator.attach("by-hand", dispatcher=place, dispatcher_options=reached).latest_training_job
        assert other is not None and other.record.path != job.record.path
        assert other.describe()["ResourceConfig"]["InstanceType"] == "ssh"
        assert cli.main(["stop", "by-hand", "--wait"]) == 0
        assert other.status == "Stopped"
    assert [line.text for line in other.log_lines() if line.text == "saving"] == ["saving"]
    assert "saving" in attached.stdout.read()
    assert attached.wait() == Exit.STOPPED
    assert clusters.await_terminal(job) == "Stopped"
    for home in ("elsewhere", "third"):
        clusters.kill_everything_of(tmp_path / home)


def test_loss_of_the_dispatcher_ends_the_job_and_leaves_no_process(
    make: clusters.Make, dispatcher: fleets.Machine, fleet: fleets.Fleet
) -> None:
    job = make.start(STEPS, hosts=2, ready=2)
    busy = [machine for machine in fleet.machines[:3] if machine.processes()]
    assert len(busy) == 2
    for pid in dispatcher.pids():
        os.kill(pid, signal.SIGKILL)
    clusters.until(lambda: not any(machine.processes() for machine in busy))
    clusters.await_terminal(job)
    assert job.status == "Failed"
    assert "supervisor lost" in str(job.failure)


def test_processes_of_the_dispatcher_itself_get_their_data_from_here(
    fleet: fleets.Fleet, dispatcher: fleets.Machine, tmp_path: Path, home: Path
) -> None:
    make = clusters.Make(tmp_path, marks=fleet.marks / f"{os.getpid()}-{tmp_path.name}")
    make._options = reach(fleet, dispatcher)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "part-1").write_text("here")
    (tmp_path / "data" / "link").symlink_to("part-1")
    estimator = make(
        """
        import os, aid
        folder = os.environ["SM_CHANNEL_TRAINING"]
        aid.report(files=sorted(os.listdir(folder)), text=open(folder + "/link").read())
        """,
        hosts=2,
    )
    job = clusters.fit(estimator, str(tmp_path / "data"), logs=False)
    assert [report["files"] for report in clusters.reports(job).values()] == [["link", "part-1"]] * 2
    assert {report["text"] for report in clusters.reports(job).values()} == {"here"}


def test_a_dispatcher_that_cannot_be_or_refuses_the_job_is_named_with_the_reason(
    make: clusters.Make, dispatcher: fleets.Machine
) -> None:
    options = make._options["dispatcher_options"]
    for change, hosts, said in (
        ({"dispatcher": "no-such-host.invalid"}, 1, "the name cannot be resolved"),
        ({"dispatcher_options": {**options, "python": "/no/such/python"}}, 1, "/no/such/python does not exist there"),
        ({}, 4, "instance_count=4, but the fleet has 3 machines"),
    ):
        with pytest.raises(Exception, match=said):
            make.start("pass", hosts=hosts, options={**make._options, **change})
    assert not list((dispatcher.temporary / "home").rglob("request.json"))


def test_a_job_that_is_stopped_before_the_dispatcher_has_it_is_over(
    fleet: fleets.Fleet, make: clusters.Make, tmp_path: Path
) -> None:
    hung = tmp_path / "hung"  # ssh does not come through, for as long as one likes
    hung.write_text("Host *\n  ProxyCommand sh -c 'while read line; do :; done'\n")
    options = {**make._options["dispatcher_options"], "ssh_config": str(hung)}
    estimator = make("pass", options={**make._options, "dispatcher_options": options})
    starting = threading.Thread(target=estimator.fit, kwargs={"wait": False})  # it waits for the dispatcher
    starting.start()
    clusters.until(lambda: estimator.latest_training_job is not None)
    job = estimator.latest_training_job
    job.stop(wait=True)
    starting.join()
    assert job.status == "Stopped"
    clusters.until(lambda: not job.record.is_supervised())
