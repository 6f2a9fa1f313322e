"""The commands that are run on Slurm."""

from __future__ import annotations

import pytest

from estimators.backends.slurm import commands
from estimators.backends.slurm.options import SlurmOptions


def test_an_allocation_is_submitted_with_the_jobs_name_and_leaves_no_files() -> None:
    options = SlurmOptions.of({"partition": "train", "time": 10})
    assert commands.sbatch(options, "job-1", 2) == [
        "sbatch", "--parsable", "--job-name=fleetfit-job-1",
        "--output=/dev/null", "--error=/dev/null", "--input=/dev/null", "--chdir=/",
        "--nodes=2", "--ntasks-per-node=1", "--export=NIL", "--no-kill", "--partition=train", "--time=10",
        "--exclusive", "--no-requeue",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "excluded"),
    [({}, ["--exclude=n1,n2"]), ({"exclude": "n7"}, ["--exclude=n7"]), ({"nodelist": "n1"}, [])],
)
def test_nodes_are_avoided_unless_the_caller_names_nodes(options: dict[str, str], excluded: list[str]) -> None:
    words = commands.sbatch(SlurmOptions.of(options), "job-1", 1, {"n2", "n1"})
    assert [word for word in words if word.startswith("--exclude=")] == excluded


@pytest.mark.parametrize(("with_script", "last"), [(True, "7"), (False, "")])
def test_an_agent_is_started_beside_what_the_node_runs(with_script: bool, last: str) -> None:
    options = SlurmOptions.of({"python": "/opt/python", "export": ["PATH", "HOME"]})
    words = commands.srun(options, "7", "n1", with_script=with_script)
    assert words[:6] == ["srun", "--jobid=7", "--nodelist=n1", "--nodes=1", "--ntasks=1", "--overlap"]
    assert "--export=PATH,HOME" in words
    assert words[-6:] == ["sh", "-c", commands.AGENT, "fleetfit", "/opt/python", last]
