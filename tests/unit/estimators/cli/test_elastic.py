"""``fleetfit horovodrun``: horovodrun's options become those of a job."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest

from estimators.cli import horovodrun
from estimators.cli.elastic import horovodrun_arguments
from estimators.cli.main import parser
from estimators.job.errors import ConfigurationError

FLAGS = "-np 8 --min-np 4 --max-np 12 --slots 4 --host-discovery-script discover_hosts.sh"


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("train.py", []),
        ("a/train.py --epochs 4", ["--epochs", "4"]),
        ("-u bench.py --no-cuda -- 'a b' --layers 64 32", ["--no-cuda", "--", "a b", "--layers", "64", "32"]),
    ],
)
def test_horovodruns_flags_are_those_of_an_elastic_job(command: str, arguments: list[str]) -> None:
    given = horovodrun_arguments(parser().parse_args(["horovodrun", *FLAGS.split(), "python", *shlex.split(command)]))
    assert (given.hosts, given.processes, given.strategy) == (2, 4, "elastic_horovod")
    script = os.path.abspath("discover_hosts.sh")  # the supervisor runs it, elsewhere
    assert {"min_workers=4", "max_workers=12", "slots=4", "max_hosts=3", f"discovery={script}"} <= set(given.option)
    assert given.script_arguments == arguments


def test_a_discovery_script_is_one_of_this_folder_or_of_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "work" / "in_path").mkdir(parents=True)  # a folder is no script
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    for place in ("bin/in_path", "bin/both", "work/both"):
        (tmp_path / place).touch(mode=0o755)
    for name, place in (("in_path", "bin/in_path"), ("both", "work/both"), ("none", "work/none")):
        found = given(f"-np 2 --min-np 1 --host-discovery-script {name}")
        assert f"discovery={tmp_path / place}" in found.option


def given(flags: str):  # type: ignore[no-untyped-def]
    return horovodrun_arguments(parser().parse_args(["horovodrun", *shlex.split(flags), "python", "train.py"]))


@pytest.mark.parametrize(
    ("flags", "strategy", "hosts", "processes"),
    [
        ("-np 2 --mpi -H server1:1,server2:1", "mpi", 2, 1),
        ("-np 2 -H server1:4,server2:4", "mpi", 1, 2),  # horovodrun fills the first host first
        ("-np 4 -H localhost:4 --disable-cache", "mpi", 1, 4),
        ("-np 4 -hostfile HOSTFILE", "mpi", 2, 2),
        ("-np 2 --gloo --min-np 2 -H server1:2,server2:2", "elastic_horovod", 2, 2),
        ("-np 5 --gloo --min-np 2 --slots-per-host 2 --host-discovery-script x", "elastic_horovod", 3, 2),
    ],
)
def test_named_hosts_are_as_many_of_this_machine(
    flags: str, strategy: str, hosts: int, processes: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hostfile = tmp_path / "hosts"
    hostfile.write_text("server1 slots=2\n\nserver2 slots=2  # the other\n")
    found = given(flags.replace("HOSTFILE", shlex.quote(str(hostfile))))
    assert (found.strategy, found.hosts, found.processes) == (strategy, hosts, processes)
    assert ("algo-1 for server1" in capsys.readouterr().err) == ("server" in flags or "HOSTFILE" in flags)


def test_an_elastic_job_begins_with_np_and_grows_into_all_named_hosts() -> None:
    found = given("-np 2 --gloo --min-np 2 -H server1:2,server2:2")
    assert {"workers=2", "min_workers=2", "max_workers=4", "max_hosts=2"} <= set(found.option)
    found = given("-np 5 --min-np 2 --slots-per-host 2 --host-discovery-script x")
    assert {"workers=5", "min_workers=2", "max_workers=5"} <= set(found.option)


def test_horovods_settings_are_variables_of_the_ranks() -> None:
    found = given(
        "-np 2 --fusion-threshold-mb 32 --cycle-time-ms 3.5 --autotune --no-hierarchical-allreduce --log-level DEBUG "
        "--timeline-filename t.json --mpi-args=--oversubscribe"
    )
    assert set(found.env) == {
        "HOROVOD_FUSION_THRESHOLD=33554432",
        "HOROVOD_CYCLE_TIME=3.5",
        "HOROVOD_AUTOTUNE=1",
        "HOROVOD_HIERARCHICAL_ALLREDUCE=0",
        "HOROVOD_LOG_LEVEL=DEBUG",
        f"HOROVOD_TIMELINE={os.path.abspath('t.json')}",
    }
    assert found.option == ["custom_mpi_options=--oversubscribe"]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("-np 2 --gloo", "--min-np 2"),
        ("-np 2 --min-np 1 --mpi", "Gloo"),
        ("-np 2 -p 22", "--ssh-port"),
        ("-np 2 -i key", "--ssh-identity-file"),
        ("-np 2 --network-interface eth0", "loopback"),
        ("-np 2 --output-filename logs", "fleetfit logs"),
        ("-np 2 -cb", "fleetfit doctor"),
        ("--check-build", "fleetfit doctor"),
        ("--gloo", "-np is missing"),
        ("-np 2 --min-np 4", "--min-np 4 is more than -np 2"),
        ("-np 4 --min-np 2 --max-np 3", "--max-np 3 is less than -np 4"),
        ("-np 2 -H server1", "HOST:SLOTS"),
        ("-np 3 -H server1:1,server2:1", "more than the 2 slots"),
        ("-np 3 -H server1:2,server2:1", "2 on server1, 1 on server2"),
        ("-np 2 --hostfile nowhere", "cannot be read"),
    ],
)
def test_what_is_not_available_is_refused_with_what_is(flags: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(said)):
        given(flags)


def test_every_option_of_horovodruns_is_known() -> None:
    launch = pytest.importorskip("horovod.runner").__path__[0] + "/launch.py"
    text = Path(launch).read_text()
    options = set(re.findall(r"add_argument\(\s*'(-[a-zA-Z][\w-]*|--[\w-]+)'(?:, '(--[\w-]+)')?", text))
    flags = {flag for found in options for flag in found if flag} - {"--log-hide-timestamp", "--no-log-hide-timestamp"}
    assert len(flags) > 60
    known = parser().parse_args(["horovodrun", "-np", "1", "x"])
    assert horovodrun.environment(known) == {}
    (commands,) = [action for action in parser()._actions if action.dest == "command"]
    assert flags - set(commands.choices["horovodrun"]._option_string_actions) == set()  # type: ignore[index, call-overload]
