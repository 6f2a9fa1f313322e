"""Real ranks on the right hosts, under every launcher."""

from __future__ import annotations

import resource
from pathlib import Path

import clusters
import pytest

WHO = """
import os
import aid
from mpi4py import MPI
world = MPI.COMM_WORLD
everybody = world.allgather((world.rank, os.environ["SM_CURRENT_HOST"]))
local = world.Split_type(MPI.COMM_TYPE_SHARED)
aid.report(
    rank=world.rank,
    size=world.size,
    everybody=everybody,
    host=os.environ["SM_CURRENT_HOST"],
    hosts=os.environ["SM_HOSTS"],
    local=int(os.environ["OMPI_COMM_WORLD_LOCAL_RANK"]),
    local_size=int(os.environ["OMPI_COMM_WORLD_LOCAL_SIZE"]),
    sum=world.allreduce(world.rank),
    cwd=os.getcwd(),
    pwd=os.environ["PWD"],
    model=os.environ["SM_MODEL_DIR"],
    output=os.environ["SM_OUTPUT_DATA_DIR"],
    file=os.path.abspath(__file__),
    pid=os.getpid(),
)
"""


@pytest.mark.landing
def test_two_hosts_with_three_processes_are_six_real_ranks(make: clusters.Make) -> None:
    job = make.run(WHO, hosts=2, processes=3)
    ranks = clusters.reports(job)
    assert sorted(ranks) == list(range(6))
    hosts = ["algo-1"] * 3 + ["algo-2"] * 3
    for rank, said in ranks.items():
        assert said["rank"] == rank and said["size"] == 6 and said["sum"] == 15
        assert said["host"] == hosts[rank] == said["@host"]
        assert said["everybody"] == [[number, host] for number, host in enumerate(hosts)]
        assert (said["local"], said["local_size"]) == (rank % 3, 3)
        assert said["hosts"] == '["algo-1","algo-2"]'
    assert len({said["pid"] for said in ranks.values()}) == 6


def test_ranks_may_open_as_many_files_as_the_caller(make: clusters.Make) -> None:
    code = "import aid, resource; aid.report(limits=resource.getrlimit(resource.RLIMIT_NOFILE))"
    for shape in ({"hosts": 2, "processes": 1}, {"hosts": 1, "processes": 2}):
        said = clusters.reports(make.run(code, **shape))
        assert [tuple(one["limits"]) for one in said.values()] == [resource.getrlimit(resource.RLIMIT_NOFILE)] * 2


def test_each_hosts_paths_are_its_own(make: clusters.Make) -> None:
    job = make.run(WHO, hosts=2, processes=2)
    for rank, said in clusters.reports(job).items():
        tree = job.record.tree(f"algo-{1 + rank // 2}")
        assert said["cwd"] == said["pwd"] == str(tree.code)
        assert said["file"] == str(tree.code / "train.py")
        assert said["model"] == str(tree.model)
        assert said["output"] == str(tree.output_data)


def test_twelve_ranks_on_four_hosts_keep_their_two_digit_prefixes(
    make: clusters.Make, capsys: pytest.CaptureFixture[str]
) -> None:
    job = make.run(
        """
        import aid
        from mpi4py import MPI
        print(f"I am {MPI.COMM_WORLD.rank} of {MPI.COMM_WORLD.size} on {aid.HOST}", flush=True)
        """,
        hosts=4,
        processes=3,
        logs=True,
    )
    lines = capsys.readouterr().out.splitlines()
    for rank in range(12):
        host = f"algo-{1 + rank // 3}"
        assert lines.count(f"[{host}:rank {rank}] I am {rank} of 12 on {host}") == 1
        assert clusters.raw_log(job, rank, host) == f"I am {rank} of 12 on {host}\n".encode()


@pytest.mark.landing
def test_the_script_launcher_runs_once_on_each_host(make: clusters.Make) -> None:
    job = make.run(
        """
        import os
        import aid
        aid.report(
            host=os.environ["SM_CURRENT_HOST"], hosts=os.environ["SM_HOSTS"], cwd=os.getcwd(),
            mpi="OMPI_COMM_WORLD_RANK" in os.environ,
        )
        """,
        hosts=3,
    )
    assert clusters.all_text(job).count("warning: 3 hosts without a distribution strategy") == 1
    ranks = clusters.reports(job)
    assert sorted(ranks) == [0, 1, 2]
    for rank, said in ranks.items():
        assert said["host"] == f"algo-{rank + 1}" == said["@host"]
        assert said["hosts"] == '["algo-1","algo-2","algo-3"]'
        assert said["cwd"] == str(job.record.tree(f"algo-{rank + 1}").code)
        assert not said["mpi"]


@pytest.mark.soak  # in containers, tests/integration/containers/test_jobs.py looks at the same
@pytest.mark.horovod
@pytest.mark.tensorflow
def test_horovod_sees_two_hosts_with_two_processes(make: clusters.Make) -> None:
    job = make.run(
        """
        import os
        import aid
        import horovod.tensorflow as hvd
        import tensorflow as tf
        hvd.init()
        total = hvd.allreduce(tf.constant([float(hvd.rank())]), op=hvd.Sum, name="total").numpy().tolist()
        aid.report(
            rank=hvd.rank(), size=hvd.size(), local_rank=hvd.local_rank(), local_size=hvd.local_size(),
            cross_rank=hvd.cross_rank(), host=os.environ["SM_CURRENT_HOST"], total=total,
        )
        """,
        hosts=2,
        processes=2,
    )
    ranks = clusters.reports(job)
    assert sorted(ranks) == [0, 1, 2, 3]
    for rank, said in ranks.items():
        assert (said["rank"], said["size"]) == (rank, 4)
        assert (said["local_rank"], said["local_size"]) == (rank % 2, 2)
        assert said["cross_rank"] == rank // 2
        assert said["host"] == f"algo-{1 + rank // 2}"
        assert said["total"] == [6.0]


def test_shell_scripts_and_modules_are_ranks_too(make: clusters.Make) -> None:
    shell = make(
        "",
        hosts=2,
        processes=1,
        entry_point="go.sh",
        files={"go.sh": 'echo "rank $OMPI_COMM_WORLD_RANK on $SM_CURRENT_HOST: $1 $2"\n'},
        hyperparameters={"word": "a b"},
    )
    job = clusters.fit(shell, logs=False)
    assert [clusters.printed(job, rank) for rank in (0, 1)] == [
        ["rank 0 on algo-1: --word a b"],
        ["rank 1 on algo-2: --word a b"],
    ]
    module = make("", hosts=2, processes=1, entry_point="pkg.main")
    package = Path(module.settings.source_dir or "") / "pkg"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "main.py").write_text("import aid, pkg\naid.report(name=__name__, package=__package__)\n")
    job = clusters.fit(module, logs=False)
    assert {rank: (said["name"], said["package"]) for rank, said in clusters.reports(job).items()} == {
        0: ("__main__", "pkg"),
        1: ("__main__", "pkg"),
    }
