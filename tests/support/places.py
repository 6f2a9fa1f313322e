"""Where the tests of clusters run: as processes of this machine, and on machines with files of their own.

Tests that make their jobs with ``make`` run in all places, on machines under the mark ``soak`` but for a sample. On
those the jobs come by a provider of the tests' own, by ssh, by Slurm, by Ray, and by Spark.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import clusters
import fleet as fleets
import pytest
import ray_cluster as rays
import slurm
import sshd

if TYPE_CHECKING:
    import ec2_machines

PROCESS, FLEET, SSH, SLURM, RAY, SPARK = "process", "machines", "ssh", "slurm", "ray", "spark"
#: How many machines there are.
MACHINES = 4

#: The tests that run on machines too: whole files, or one of theirs.
EVERYWHERE = frozenset(
    {
        "test_channels",
        "test_elastic",
        "test_failures",
        "test_functions",
        "test_hangs",
        "test_horovod_torch",
        "test_logs",
        "test_nan",
        "test_orphans",
        "test_ranks",
        "test_restarts",
        "test_resuming",
        "test_servers",
        "test_stop",
        "test_torch_elastic",
        "test_undistributed",
    }
)
#: Of these, what runs on machines in every run; the rest does in `make soak`.
SAMPLE = frozenset(
    {
        "test_channels",
        "test_failures.test_what_a_script_prints_is_never_taken_for_ours",
        "test_ranks.test_two_hosts_with_three_processes_are_six_real_ranks",
    }
)
#: Likewise over ssh.
SSH_SAMPLE = frozenset(
    {
        "test_functions.test_a_function_runs_on_every_host_and_its_value_comes_back",
        "test_failures.test_what_a_script_prints_is_never_taken_for_ours",
        "test_ranks.test_two_hosts_with_three_processes_are_six_real_ranks",
    }
)
#: Likewise on Slurm.
SLURM_SAMPLE = frozenset({"test_ranks.test_two_hosts_with_three_processes_are_six_real_ranks"})
#: Likewise on Ray.
RAY_SAMPLE = SLURM_SAMPLE
#: Likewise on Spark's executors.
SPARK_SAMPLE = SLURM_SAMPLE
#: Those in which a job has as many hosts as it asks for: an elastic one on Ray has all nodes that there are.
NOT_ON_RAY = frozenset(
    {
        "test_horovod_torch.test_a_sampler_has_each_record_in_each_epoch_and_the_rate_follows_the_ranks",
        "test_torch_elastic.test_each_record_counts_once_whatever_dies_joins_or_leaves",
    }
)
#: Those of what only processes of one machine have.
PROCESS_ONLY = frozenset(
    {
        # The record's own paths, shared memory of this machine, and a library that is preloaded from the test's folder.
        "test_ranks.test_each_hosts_paths_are_its_own_and_prefixes_name_the_rank_with_all_its_digits",
        "test_restarts.test_the_code_of_a_job_that_is_over_is_kept_once",
        "test_stop.test_an_mpirun_that_takes_long_to_go_is_told_all_the_same",
        "test_orphans.test_the_next_job_removes_what_a_job_that_was_killed_as_a_whole_left",
        # Checkpoints of other machines come here a moment after they were saved there; a hosts file of invented names.
        "test_resuming.test_a_killed_cluster_goes_on_where_its_last_save_was",
        "test_elastic.test_horovods_own_elastic_scripts_go_on_from_their_commit_when_a_host_is_lost",
    }
)


def of(metafunc: pytest.Metafunc) -> list[object]:
    """Where a test runs."""
    module = metafunc.module.__name__.rpartition(".")[2]
    names = {module, f"{module}.{metafunc.function.__name__}"}
    if forced := os.environ.get("FLEETFIT_TEST_PLACE"):
        return [forced]
    if not names & EVERYWHERE or names & PROCESS_ONLY:
        return [PROCESS]
    needs_root = pytest.mark.skipif(not fleets.possible(), reason="network namespaces need root and iproute2")
    chosen: list[object] = [PROCESS]
    needs_slurm = pytest.mark.skipif(not slurm.possible(), reason="Slurm needs root and Debian's slurm-wlm and munge")
    for place, sample, needs in (
        (FLEET, SAMPLE, needs_root),
        (SSH, SSH_SAMPLE, needs_root),
        (SLURM, SLURM_SAMPLE, needs_slurm),
    ):
        marks = [needs] if names & sample else [needs, pytest.mark.soak]
        chosen.append(pytest.param(place, marks=marks))
    if not names & NOT_ON_RAY:
        chosen.append(pytest.param(RAY, marks=[] if names & RAY_SAMPLE else [pytest.mark.soak]))
    chosen.append(pytest.param(SPARK, marks=[pytest.mark.spark, *([] if names & SPARK_SAMPLE else [pytest.mark.soak])]))
    return chosen


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the tests of clusters in other places too; for a ``conftest.py``."""
    if "place" in metafunc.fixturenames:
        metafunc.parametrize("place", of(metafunc), indirect=True)


def on_ssh(fleet: fleets.Fleet, folder: Path, home: Path, **more: object) -> clusters.Make:
    """Makes estimators whose jobs reach the fleet by ssh."""
    sshd.program()
    assert fleet.keys is not None
    return clusters.Make(
        folder,
        instance_type="ssh",
        backend_options={
            "hosts": [machine.address for machine in fleet.machines],
            "ssh_config": str(fleet.keys.client()),
            "python": sys.executable,
            **more,
        },
        environment={"FLEETFIT_HOME": str(home)},
        marks=fleet.marks / f"{os.getpid()}-{folder.name}",
    )


def on_slurm(cluster: slurm.Cluster, folder: Path, home: Path, **more: object) -> clusters.Make:
    """Makes estimators whose jobs run on nodes of a Slurm cluster."""
    return clusters.Make(
        folder,
        instance_type="slurm",
        backend_options={"export": ["PATH", "HOME", "FLEETFIT_HOME"], **more},
        environment={"FLEETFIT_HOME": str(home)},
        marks=cluster.fleet.marks / f"{os.getpid()}-{folder.name}",
    )


def on_ray(cluster: rays.Cluster, folder: Path, home: Path, **more: object) -> clusters.Make:
    """Makes estimators whose jobs run on nodes of a Ray cluster."""
    return clusters.Make(
        folder,
        instance_type="ray",
        backend_options={"address": cluster.address, **more},
        environment={"FLEETFIT_HOME": str(home)},
    )


def on_spark(folder: Path, home: Path) -> clusters.Make:
    """Makes estimators whose jobs run on the executors of this process's session."""
    return clusters.Make(folder, instance_type="spark", environment={"FLEETFIT_HOME": str(home)})


def on_ec2(ec2: ec2_machines.Machines, folder: Path, home: Path, **options: object) -> clusters.Make:
    """Makes estimators whose jobs run on instances."""
    return clusters.Make(
        folder,
        instance_type="ec2.c5.large",
        backend_options={**ec2.options, **options},
        environment={"FLEETFIT_HOME": str(home)},
        marks=ec2.folder / f"marks-{folder.name}",
    )


def on_fleet(fleet: fleets.Fleet, folder: Path, home: Path, **more: object) -> clusters.Make:
    """Makes estimators whose jobs run on the fleet."""
    return clusters.Make(
        folder,
        instance_type="netns",
        backend_options={"fleet": str(fleet.file), **more},
        environment={"FLEETFIT_HOME": str(home)},
        marks=fleet.marks / f"{os.getpid()}-{folder.name}",
    )
