"""What ``plan()`` shows is what runs, under every strategy: processes, commands, variables."""

from __future__ import annotations

import contextlib
import json
import re
from typing import Any

import clusters
import pytest
import shapes

from container.contract.plan import Role
from estimators import ParameterServer

#: Waits, so that its processes can be looked at.
WAIT = """
import os, sys
import aid
aid.report(argv=sys.orig_argv, environment=dict(os.environ), cwd=os.getcwd())
aid.mark(f"ready-{aid.RANK}")
aid.wait_for("go")
"""

#: In which only the chief runs the script.
COORDINATED = shapes.Shape(
    "parameter_server-script-on-chief",
    ParameterServer(script_on="chief"),
    (("algo-1", "chief"),),
    (("algo-1", "worker"), ("algo-2", "worker"), ("algo-1", "ps"), ("algo-2", "ps")),
)


def without_ports(text: str) -> Any:
    """TF_CONFIG with every address as ``*``: a plan shows the fixed ports, and the hosts' names."""
    config = json.loads(text)
    config["cluster"] = {task: ["*"] * len(addresses) for task, addresses in config["cluster"].items()}
    return config


@pytest.mark.landing
@pytest.mark.parametrize("shape", [*shapes.ALL, shapes.MASTER, COORDINATED], ids=str)
def test_what_runs_is_what_was_planned(shape: shapes.Shape, make: clusters.Make) -> None:
    given = {"epochs": 3, "name": "a b", "resume": "/opt/ml/checkpoints/last"}
    variables = {"EXPORT": "/opt/ml/model/export"}
    estimator = make(WAIT, hyperparameters=given, environment=variables, **shape.settings)
    planned = estimator.plan(job_name="job-1")
    job = clusters.fit(estimator, wait=False, job_name="job-1")
    make.await_ready(shape.size, job)
    wrapped = [process for process in planned.processes if process.role is not Role.LAUNCHER]
    # Scripts are ready before the record says that all is started, servers perhaps after them.
    clusters.until(lambda: len(list(job.record.events("process_started"))) >= len(wrapped))
    started = {(event.host, event.data["name"]): event for event in job.record.events("process_started")}
    argv = {(process.host, process.name): process.argv for process in wrapped}
    with contextlib.suppress(AssertionError):  # what is compared below says more
        clusters.until(
            lambda: all(
                (found := clusters.process(event.data["pid"])) is not None and found.argv == argv.get(place)
                for place, event in started.items()
            ),
        )
    snapshot = clusters.Snapshot(job)
    running = {place: (event.rank, clusters.process(event.data["pid"])) for place, event in started.items()}

    assert {(process.host, process.name): process.rank for process in wrapped} == {
        place: rank for place, (rank, _) in running.items()
    }
    assert [(process.host, process.name) for process in planned.plan.ranks] == list(shape.ranks)
    assert {(one.host, one.name) for one in wrapped if one.role is Role.SERVER} == set(shape.servers)
    addresses = []
    for process in wrapped:
        _, found = running[process.host, process.name]
        assert found is not None
        assert found.argv == process.argv
        environment = planned.environment(process.host, process.name)
        text = environment.pop("TF_CONFIG", None)
        assert ("TF_CONFIG" in found.environ) == (text is not None)
        if text is not None:
            assert without_ports(found.environ["TF_CONFIG"]) == without_ports(text)
            addresses.append(json.loads(found.environ["TF_CONFIG"])["cluster"])
        assert {name: found.environ.get(name) for name in environment} == environment
    assert all(one == addresses[0] for one in addresses)  # all mean the same cluster
    if shape is shapes.MPI_:
        assert planned.mpirun is not None
        line = [re.sub(r".*/rsh$", "$FLEETFIT_RUNTIME_DIR/rsh", word) for word in snapshot.find("mpirun").argv]
        assert tuple(line) == planned.mpirun
    else:
        assert planned.mpirun is None and "mpirun" not in [one.kind for one in snapshot.members]
    make.mark("go")
    job.wait(logs=False)

    reports = clusters.reports(job)
    assert sorted(reports) == list(range(shape.size))
    for process in planned.plan.ranks:
        said = reports[process.rank]  # type: ignore[index]
        assert said["@host"] == process.host
        assert tuple(said["argv"]) == process.argv
        assert said["cwd"] == str(job.record.tree(process.host).code)
        assert said["environment"]["SM_CURRENT_HOST"] == process.host
