"""Real ranks on the right hosts, under every launcher."""

from __future__ import annotations

import resource
from pathlib import Path

import clusters
import pytest

WHO = """
import os, resource
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
    limits=resource.getrlimit(resource.RLIMIT_NOFILE),
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
        assert tuple(said["limits"]) == resource.getrlimit(resource.RLIMIT_NOFILE), "of open files, as the caller's"
    assert len({said["pid"] for said in ranks.values()}) == 6


def test_each_hosts_paths_are_its_own_and_prefixes_name_the_rank_with_all_its_digits(
    make: clusters.Make, capsys: pytest.CaptureFixture[str]
) -> None:
    job = make.run(
        f"{WHO}\nprint(f'I am {{world.rank}} of {{world.size}}', flush=True)", hosts=4, processes=3, logs=True
    )
    lines = capsys.readouterr().out.splitlines()
    ranks = clusters.reports(job)
    assert sorted(ranks) == list(range(12))
    for rank, said in ranks.items():
        host = f"algo-{1 + rank // 3}"
        tree = job.record.tree(host)
        assert said["cwd"] == said["pwd"] == str(tree.code)
        assert said["file"] == str(tree.code / "train.py")
        assert said["model"] == str(tree.model)
        assert said["output"] == str(tree.output_data)
        assert lines.count(f"[{host}:rank {rank}] I am {rank} of 12") == 1
        assert clusters.raw_log(job, rank, host).endswith(f"\nI am {rank} of 12\n".encode())


def test_shell_scripts_and_modules_are_ranks_too(make: clusters.Make) -> None:
    text = "one\ntwo \"three\" $HOME `id` \\ 'four'"
    shell = make(
        "",
        hosts=2,
        processes=1,
        entry_point="go.sh",
        files={"go.sh": 'echo "rank $OMPI_COMM_WORLD_RANK on $SM_CURRENT_HOST: $1"\nprintf "%s" "$2$SM_HP_TEXT"\n'},
        hyperparameters={"text": text},
    )
    job = clusters.fit(shell, logs=False)
    for rank, host in enumerate(job.hosts):
        assert clusters.printed(job, rank) == [f"rank {rank} on {host}: --text", *(text + text).splitlines()]
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
