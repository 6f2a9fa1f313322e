"""What each container is: plain data, no engine."""

from __future__ import annotations

import dataclasses
import http.client
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from container.contract.strategies import MPI, ElasticHorovod
from estimators.backends.docker import checking, containers, links
from estimators.backends.docker.checking import others_may_read_mounts
from estimators.backends.docker.containers import channel_mounts
from estimators.backends.docker.engine import Engine, settings
from estimators.backends.docker.job_secrets import aws_credentials, wants_sshd
from estimators.backends.docker.options import ContainerOptions, Mount
from estimators.backends.docker.ownership import foreign, give_back
from estimators.backends.docker.reaper import Duty
from estimators.backends.images.engine import ImageFacts
from estimators.backends.images.errors import EngineError, reached, refusal
from estimators.backends.images.toolkit import TOOLKIT_LABEL
from estimators.job.errors import ConfigurationError
from estimators.job.inputs import TrainingInput, parse_inputs
from estimators.job.request import Algorithm, CheckpointConfig, JobOptions, Resources, TrainingJobSpec


def spec(**values: Any) -> TrainingJobSpec:
    given: dict[str, Any] = {"name": "job", "resources": Resources(instance_type="local", instance_count=2)}
    return TrainingJobSpec(**{**given, "environment": {"A": "b c"}, **values})


def plans(one: TrainingJobSpec, **values: Any) -> tuple[containers.ContainerPlan, ...]:
    options = values.pop("options", JobOptions())
    given: dict[str, Any] = {"record": Path("/home/jobs/job"), "checkpoints": Path("/home/jobs/job/checkpoints")}
    return tuple(
        containers.plan_container(
            one, options, host, **{"environment": containers.environment_of(one, options, host), **given, **values}
        )
        for host in one.hosts
    )


def test_hosts_differ_in_name_and_tree_only() -> None:
    first, second = plans(spec())
    assert (first.name, first.host, second.name, second.host) == (
        "fleetfit-job-algo-1", "algo-1", "fleetfit-job-algo-2", "algo-2",
    )  # fmt: skip
    tree = "/home/jobs/job/hosts/algo-1/ml"
    assert first.mounts == (
        *(Mount(source=f"{tree}/{name}", target=f"/opt/ml/{name}") for name in ("input", "model", "output")),
        Mount(source="/home/jobs/job/checkpoints", target="/opt/ml/checkpoints"),
    )
    with_code = plans(spec(hyperparameters={"sagemaker_submit_directory": '"file:///x"'}))[0]
    assert Mount(source=f"{tree}/code", target="/opt/ml/code") in with_code.mounts
    assert first.image == "fleetfit-training" and first.command == ("train",) and first.network == "fleetfit-job"
    assert first.environment["A"] == "b c" and first.environment["TRAINING_JOB_NAME"] == "job"
    assert first.environment["FLEETFIT_HOSTS_HERE"] == "2"
    assert first.labels["fleetfit.job"] == "job" and first.labels["fleetfit.record"] == "/home/jobs/job"
    assert plans(spec(), attempt=2)[0].name == "fleetfit-job-algo-1-2"


def test_the_same_container_by_hand() -> None:
    options = JobOptions(backend_options={"memory": "1g", "cpus": 1.5})
    line = plans(spec(), options=options)[1].command_line()
    assert line[:9] == (
        "docker", "run", "--name", "fleetfit-job-algo-2", "--hostname", "algo-2", "--network", "fleetfit-job",
        "--network-alias",
    )  # fmt: skip
    assert "-v" in line and "/home/jobs/job/hosts/algo-2/ml/model:/opt/ml/model" in line and "A=b c" in line
    assert line[-4:] == ("1.5", "--interactive", "fleetfit-training", "train")
    assert line[line.index("--memory") + 1] == str(1 << 30)


def test_an_image_of_ones_own() -> None:
    own = spec(algorithm=Algorithm(image="mine:1", entry_point=("python", "run.py"), arguments=("--fast",)))
    first = plans(own, toolkit=False)[0]
    assert (first.image, first.entrypoint, first.command) == ("mine:1", ("python", "run.py"), ("--fast",))
    assert not first.lifeline and "FLEETFIT_LIFELINE_FD" not in first.environment
    assert first.command_line()[-5:] == ("--entrypoint", "python", "mine:1", "run.py", "--fast")


def test_checkpoints_and_models_where_the_job_says() -> None:
    one = spec(
        checkpoint=CheckpointConfig(uri="/data/saved", local_path="/saved"),
        hyperparameters={"model_dir": '"/data/out/job/model"'},
    )
    mounts = plans(one, checkpoints=Path("/data/saved"))[0].mounts
    assert mounts[3:] == (
        Mount(source="/data/saved", target="/saved"),
        Mount(source="/data/out/job/model", target="/data/out/job/model"),
    )
    assert containers.local_model_dir(spec(hyperparameters={"model_dir": '"/opt/ml/model"'})) is None
    assert containers.local_model_dir(spec(hyperparameters={"model_dir": '"s3://b/m"'})) is None


def test_channels_that_are_planned(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").touch()
    inputs = {
        "train": TrainingInput(str(tmp_path), input_mode="FastFile"),
        "labels": TrainingInput(str(tmp_path / "labels.csv"), input_mode="FastFile"),
        "copied": str(tmp_path),
        "stream": TrainingInput(str(tmp_path), input_mode="Pipe"),
        "far": "s3://bucket/prefix",
    }
    assert [mount.text for mount in containers.planned_inputs(spec(inputs=parse_inputs(inputs)))] == [
        f"{tmp_path}:/opt/ml/input/data/train:ro",
        f"{tmp_path}/labels.csv:/opt/ml/input/data/labels/labels.csv:ro",
    ]


def test_links_become_mounts(tmp_path: Path) -> None:
    source, data = tmp_path / "source", tmp_path / "data"
    for folder in (source / "deep", data / "dealt", data / "one", data / "copied"):
        folder.mkdir(parents=True)
    for file in (source / "a", source / "deep" / "b", data / "copied" / "c"):
        file.touch()
    (data / "whole").symlink_to(source)
    (data / "dealt" / "a").symlink_to(source / "a")
    (data / "dealt" / "b").symlink_to(source / "deep" / "b")
    (data / "one" / "a").symlink_to(source / "a")
    assert [mount.text for mount in channel_mounts(data, ["whole", "dealt", "one", "copied", "piped"])] == [
        f"{source}:/opt/ml/input/data/whole:ro",
        f"{source}:{source}:ro",
        f"{data}/dealt:/opt/ml/input/data/dealt:ro",
        f"{source}/a:{source}/a:ro",
        f"{data}/one:/opt/ml/input/data/one:ro",
        f"{data}/copied:/opt/ml/input/data/copied:ro",
    ]
    assert (data / "whole").is_dir() and not (data / "whole").is_symlink()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"memroy": "1g"}, "'memory'"),
        ({"memory": "much"}, "such as '4g', got 'much'"),
        ({"memory": 0}, "got 0"),
        ({"cpus": 0}, "over 0, got 0"),
        ({"cpus": True}, "got True"),
        ({"mounts": ["/a"]}, "must be a mapping of paths"),
        ({"mounts": {"/": "relative"}}, "not an absolute path"),
        ({"mounts": {"relative": "/x"}}, "not an absolute path of this machine"),
        ({"mounts": {"/no/such/place": "/x"}}, "'/no/such/place' does not exist"),
        ({"mounts": {"/tmp": "/opt/ml/model/"}}, "'/opt/ml/model/' is reserved .for the host's file tree"),
        ({"mounts": {"/tmp": "/proc/x"}}, "'/proc/x' is reserved .for the container itself"),
        ({"mounts": {"/tmp": "/run/fleetfit/x"}}, "is reserved .for the job's secrets"),
        ({"sshd": "yes"}, "'sshd' must be True or False, got 'yes'"),
        ({"link_rate": "fast"}, "such as '100mbit'"),
        ({"link_rate": "10mb"}, "such as '100mbit'"),
        ({"link_rate": "1bit"}, "from 100kbit"),
        ({"link_latency_ms": 5}, "needs 'link_rate'"),
        ({"link_rate": "1gbit", "link_latency_ms": 0}, "from 1 to 10000"),
        ({"link": "1gbit"}, "Did you mean 'link_rate'"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        ContainerOptions.of(options)


def test_sizes() -> None:
    asked = ContainerOptions.of({"memory": "1.5g", "shm_size": "64m"})
    assert asked == ContainerOptions(memory=3 << 29, shm_size=64 << 20)
    assert ContainerOptions.of({"memory": 1 << 30}).memory == 1 << 30


@pytest.mark.parametrize(
    ("number", "hosts", "gpus", "expected"),
    [(0, 1, 4, ()), (0, 2, 4, (0, 1)), (1, 2, 4, (2, 3)), (1, 2, 1, ()), (2, 3, 4, (2,))],
)
def test_gpus_are_divided(number: int, hosts: int, gpus: int, expected: tuple[int, ...]) -> None:
    one = spec(resources=Resources(instance_type="local_gpu", instance_count=hosts))
    assert containers.gpus_of(one, one.hosts[number], gpus) == expected


def test_containers_with_gpus_get_them() -> None:
    resources = Resources(instance_type="local_gpu", instance_count=2)
    first, second = plans(spec(resources=resources, hyperparameters=MPI().to_hyperparameters()), gpus=2)
    assert (first.gpus, second.gpus) == ((0,), (1,))
    assert "device=1" in second.command_line()
    assert plans(spec())[0].gpus is None


@pytest.mark.parametrize(
    ("gpus", "asked"),
    [
        (None, []),
        ((), [{"Count": -1, "Capabilities": [["gpu"]]}]),
        ((2, 3), [{"Count": 0, "DeviceIDs": ["2", "3"], "Capabilities": [["gpu"]]}]),
    ],
    ids=["none", "all", "two"],
)
def test_what_the_engine_is_asked_for(gpus: tuple[int, ...] | None, asked: object) -> None:
    first = plans(spec(), options=JobOptions(backend_options={"memory": "1g", "cpus": 1.5}))[0]
    made = settings(dataclasses.replace(first, gpus=gpus))
    assert made["HostConfig"]["DeviceRequests"] == asked
    assert (made["HostConfig"]["Memory"], made["HostConfig"]["NanoCpus"]) == (1 << 30, 1_500_000_000)
    assert made["Hostname"] == "algo-1" and made["StdinOnce"], "it ends with its connection"
    assert made["NetworkingConfig"]["EndpointsConfig"]["fleetfit-job"]["Aliases"] == ["algo-1"]


def test_credentials_of_the_environment_and_of_the_file(tmp_path: Path) -> None:
    assert aws_credentials({"HOME": str(tmp_path)}) == ""
    text = aws_credentials({"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s%", "AWS_SESSION_TOKEN": "t"})
    assert text.split() == [
        "[default]", "aws_access_key_id", "=", "k", "aws_secret_access_key", "=", "s%", "aws_session_token", "=", "t",
    ]  # fmt: skip
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws/credentials").write_text("[other]\naws_access_key_id=a\naws_secret_access_key=b\n")
    assert aws_credentials({"HOME": str(tmp_path)}) == ""
    assert "aws_access_key_id = a" in aws_credentials({"HOME": str(tmp_path), "AWS_PROFILE": "other"})


def test_whose_files_they_are(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").touch()
    assert not foreign(tmp_path, os.getuid()) and not foreign(tmp_path / "absent", os.getuid() + 1)
    assert foreign(tmp_path, os.getuid() + 1)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("write /var/lib/docker/tmp/x: no space left on device", r"disk is full: `docker system prune`"),
        ("Minimum memory limit allowed is 6MB", r"allowed is 6MB\. Ask for more with the backend option 'memory'"),
        ("Range of CPUs is from 0.01 to 2.00, as there are only 2 CPUs available", "fewer cores"),
        ("Duplicate mount point: /opt/ml/input/data/train", "path that is already in use"),
        ("could not find an available, non-overlapping IPv4 address pool among the defaults", "no address range left"),
        ('Conflict. The container name "/fleetfit-a" is already in use by container "b"', "`fleetfit clean` removes"),
        ("driver failed programming external connectivity: port is already allocated", "Another program uses the port"),
    ],
)
def test_what_the_engine_says_gets_a_remedy(said: str, words: str) -> None:
    assert re.search(words, str(refusal("do it", 500, json.dumps({"message": said}).encode())))


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (PermissionError(13, "Permission denied"), "sudo usermod -aG docker"),
        (ConnectionRefusedError(111, "Connection refused"), "is not running"),
        (http.client.RemoteDisconnected("it is gone"), "does not answer: it is gone"),
    ],
)
def test_an_engine_that_cannot_be_reached_has_a_remedy(said: Exception, words: str) -> None:
    with pytest.raises(EngineError, match=words), reached("unix:///x"):
        raise said


class _UsersEngine(Engine):
    """Tells what it is, and keeps what it is told to run."""

    def __init__(self, info: dict[str, Any]) -> None:
        super().__init__({})
        self.ran: list[tuple[str, ...]] = []
        self._info = info

    def info(self) -> dict[str, Any]:
        return self._info

    def run(self, plan: containers.ContainerPlan) -> None:
        self.ran.append(plan.entrypoint)


@pytest.mark.parametrize(
    ("info", "rootless"),
    [
        ({"SecurityOptions": ["name=seccomp,profile=default"], "Rootless": True}, True),  # Podman 4.3
        ({"SecurityOptions": ["name=seccomp,profile=builtin", "name=rootless"]}, True),  # Docker
        ({"SecurityOptions": ["name=seccomp,profile=default"]}, False),
        ({}, False),
    ],
)
def test_files_are_given_back_to_whom_a_rootless_engine_calls_root(
    info: dict[str, Any], rootless: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1234)  # whose nothing is here
    monkeypatch.setattr(os, "getegid", lambda: 5678)
    (tmp_path / "file").touch()
    engine = _UsersEngine(info)
    give_back(engine, Duty(label="fleetfit.record", value="/none", trees=(str(tmp_path),)), "trainer")
    owner = "0:0" if rootless else "1234:5678"
    assert [argv[argv.index("-h") + 1] for argv in engine.ran] == [owner]


def test_an_engine_is_missed_by_the_first_call() -> None:
    with pytest.raises(EngineError, match=r"there is no container engine at unix:///no/such\.sock"):
        Engine({"DOCKER_HOST": "unix:///no/such.sock"}).info()


# --- links ---


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"link_rate": "100mbit"}, links.ShapedLink(rate=100_000_000)),
        ({"link_rate": "1.5 Gbit/s", "link_latency_ms": 5}, links.ShapedLink(rate=1_500_000_000, latency_ms=5.0)),
        ({"link_rate": 2e6}, links.ShapedLink(rate=2_000_000)),
        ({}, None),
    ],
)
def test_rates_of_links(options: dict[str, Any], expected: links.ShapedLink | None) -> None:
    assert ContainerOptions.of(options).link == expected


def test_a_bucket_holds_a_few_packets_and_what_a_fast_link_brings() -> None:
    assert links.ShapedLink(rate=10_000_000).arguments()[4] == str(128 << 10)
    assert links.ShapedLink(rate=1_000_000_000).arguments() == [
        "tbf", "rate", "1000000000bit", "burst", "500000", "latency", "50ms"
    ]  # fmt: skip


def test_without_its_tools_a_slower_link_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "system_path", lambda: "/nonexistent")
    [reason] = checking.check(spec(), JobOptions(backend_options={"link_rate": "1gbit"}))
    assert "tc, ip, nsenter not found. Install Debian's packages iproute2" in reason


def test_others_may_read_mounts_where_fuse_says_so(tmp_path: Path) -> None:
    settings = tmp_path / "fuse.conf"
    assert not others_may_read_mounts(settings)
    settings.write_text("#user_allow_other\nmount_max = 10\n")
    assert not others_may_read_mounts(settings)
    settings.write_text("mount_max = 10\n user_allow_other \n")
    assert others_may_read_mounts(settings)


# --- what is refused ---


KEPT = Resources(instance_type="local", instance_count=2, keep_alive_s=60)
OURS = ImageFacts(id="1", labels={TOOLKIT_LABEL: "1"})
TRAINERS = dataclasses.replace(OURS, user="trainer")
OWN = Algorithm(entry_point=("sh",))
GANG, ELASTIC = MPI().to_hyperparameters(), ElasticHorovod(max_hosts=2).to_hyperparameters()
FROM_S3 = parse_inputs({"train": TrainingInput("s3://bucket/train", input_mode="FastFile")})


@pytest.mark.parametrize(
    ("job", "image", "words"),
    [
        ({}, ImageFacts(), None),
        ({"resources": KEPT}, OURS, None),
        ({"resources": KEPT}, ImageFacts(), "keep_alive_period_in_seconds needs fleetfit's toolkit, but image 'fleet"),
        (
            {"resources": KEPT, "algorithm": OWN},
            OURS,
            "needs fleetfit's toolkit, but the job starts a program of its own",
        ),
        ({"resources": KEPT}, TRAINERS, "'trainer', but keep_alive_period_in_seconds needs an image that runs as root"),
        ({"resources": KEPT, "inputs": FROM_S3}, OURS, "a FUSE mount cannot be added to a running container"),
        ({"inputs": FROM_S3}, OURS, "add the line `user_allow_other` to /etc/fuse.conf"),
        ({"hyperparameters": ELASTIC}, ImageFacts(), "ElasticHorovod needs fleetfit's toolkit, but image 'fleetfit-"),
        ({"hyperparameters": ELASTIC, "resources": KEPT}, OURS, "the number of kept containers cannot change"),
        ({"hyperparameters": GANG}, ImageFacts(), "RunOptions(on_undistributed='fail') needs fleetfit's toolkit"),
    ],
)
def test_an_image_that_cannot_run_a_job_is_refused_with_the_remedy(
    job: dict[str, Any], image: ImageFacts, words: str | None
) -> None:
    asked = JobOptions(on_undistributed="fail") if words is not None and "on_undistributed" in words else JobOptions()
    found = checking.refusals(spec(**job), asked, image, mountable="user_allow_other" not in str(words))
    assert found == [] if words is None else len(found) == 1 and words in found[0], found


# --- keys for sshd ---


@pytest.mark.parametrize(
    ("hosts", "strategy", "toolkit", "asked", "wanted"),
    [
        (2, None, True, None, False),
        (2, MPI(), True, None, False),  # our own launcher needs none
        (2, MPI(), False, None, True),  # the official toolkit's does
        (1, MPI(), False, None, False),
        (2, MPI(), False, False, False),
        (1, None, True, True, True),
    ],
)
def test_who_gets_keys(hosts: int, strategy: MPI | None, toolkit: bool, asked: bool | None, wanted: bool) -> None:
    parameters = strategy.to_hyperparameters() if strategy is not None else {}
    job = spec(resources=Resources(instance_type="local", instance_count=hosts), hyperparameters=parameters)
    options = JobOptions(backend_options={} if asked is None else {"sshd": asked})
    assert wants_sshd(job, options, toolkit=toolkit) is wanted
