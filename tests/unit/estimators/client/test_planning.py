"""plan(): what would be started, shown before anything is."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from estimators import MPI, ClusterPlan, CollectiveAllReduce, Estimator, Mirrored, ParameterServer, TensorFlow
from estimators.job.errors import ConfigurationError

#: What nobody has to look up at AWS.
AWS = {"image_uri": "image:1", "role": "arn:aws:iam::123456789012:role/x", "output_path": "s3://bucket/out"}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLEETFIT_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    for name in ("train.py", "run.sh", "pkg/__init__.py", "pkg/__main__.py", "pkg/task.py"):
        path = tmp_path / "code" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    return tmp_path / "home"


def made(**arguments: Any) -> TensorFlow:
    return TensorFlow(**{"entry_point": "train.py", "source_dir": "code", **arguments})


def plan(**arguments: Any) -> ClusterPlan:
    return made(**arguments).plan(job_name="job")


def test_a_plain_script(home: Path) -> None:
    planned = plan(hyperparameters={"epochs": 3}, model_dir=False)
    (process,) = planned.processes
    assert process.argv == (sys.executable, "train.py", "--epochs", "3")
    environment = planned.environment("algo-1")
    assert environment["SM_MODEL_DIR"] == f"{home}/jobs/job/hosts/algo-1/ml/model"
    assert environment["SM_HOSTS"] == '["algo-1"]'
    assert planned.entry_points["algo-1"][-1] == "train"
    assert planned.mpirun is None


@pytest.mark.parametrize(
    ("entry", "command"),
    [
        ("pkg.task", (sys.executable, "-m", "pkg.task")),
        ("pkg", (sys.executable, "-m", "pkg")),
        ("run.sh", ("/bin/sh", "./run.sh")),
    ],
)
def test_entry_points(entry: str, command: tuple[str, ...]) -> None:
    assert plan(entry_point=entry, model_dir=False).processes[0].argv == command


def test_an_entry_point_alone_ignores_what_lies_beside_it() -> None:
    Path("code/setup.py").write_text("")
    assert plan(model_dir=False).processes[0].argv == (sys.executable, "-m", "train")
    alone = plan(entry_point="code/train.py", source_dir=None, model_dir=False)
    assert alone.processes[0].argv == (sys.executable, "train.py")


def test_mpi_has_one_mpirun_and_every_rank(home: Path) -> None:
    planned = plan(instance_count=2, distribution=MPI(processes_per_host=2))
    line = planned.mpirun
    assert line[line.index("--host") + 1] == "algo-1:2,algo-2:2"
    assert line[line.index("-np") + 1] == "4"
    ranks = [(rank.rank, rank.local_rank, rank.host) for rank in planned.plan.ranks]
    assert ranks == [(0, 0, "algo-1"), (1, 1, "algo-1"), (2, 0, "algo-2"), (3, 1, "algo-2")]
    for host in ("algo-1", "algo-2"):
        environment = planned.environment(host, planned.plan.host(host).processes[-1].name)
        assert environment["SM_CURRENT_HOST"] == host
        assert environment["SM_MODEL_DIR"] == f"{home}/jobs/job/hosts/{host}/ml/model"
        assert json.loads(environment["SM_RESOURCE_CONFIG"])["current_host"] == host
    assert not home.exists()


def test_a_single_host_needs_no_daemon_of_mpirun() -> None:
    line = plan(distribution=MPI(processes_per_host=4)).mpirun
    assert line[line.index("--host") + 1] == "localhost:4"


def seed(**arguments: Any) -> ClusterPlan:
    """The call of the AWS guide to distributed TensorFlow, but for the instance type."""
    Path("code/train_ps.py").write_text("")
    with pytest.warns(DeprecationWarning) as caught:
        estimator = TensorFlow(
            base_job_name="ps-cifar10-tf",
            source_dir="code",
            entry_point="train_ps.py",
            role="arn:aws:iam::123456789012:role/SageMakerRole",
            framework_version="1.13",
            py_version="py3",
            hyperparameters={"epochs": 60, "batch-size": 256},
            train_instance_count=2,
            train_instance_type="local_process",
            model_dir=None,
            **arguments,
        )
    assert len(caught) == 3
    return estimator.plan()


def test_the_first_seed_call_plans_parameter_servers(home: Path) -> None:
    planned = seed(distributions={"parameter_server": {"enabled": True}})
    places = [(process.host, process.name) for process in planned.processes]
    assert places == [("algo-1", "master"), ("algo-1", "ps"), ("algo-2", "worker"), ("algo-2", "ps")]
    assert "note: SageMaker's cluster: the script runs once on each host" in str(planned)
    name = planned.spec.name
    assert name.startswith("ps-cifar10-tf-")
    for process in planned.plan.ranks:
        assert process.argv == (
            *(sys.executable, "train_ps.py", "--batch-size", "256", "--epochs", "60"),
            *("--model_dir", f"{home}/jobs/{name}/model"),
        )
    config = planned.tf_config("algo-2", "worker")
    assert config["task"] == {"type": "worker", "index": 0}
    assert any("framework_version='1.13'" in warning for warning in planned.warnings)


def test_the_second_seed_call_plans_mpi(home: Path) -> None:
    options = "-verbose --NCCL_DEBUG=INFO -x OMPI_MCA_btl_vader_single_copy_mechanism=none"
    planned = seed(distributions={"mpi": {"enabled": True, "processes_per_host": 1, "custom_mpi_options": options}})
    line = planned.mpirun
    assert "NCCL_DEBUG=INFO" in line
    assert line[line.index("NCCL_DEBUG=INFO") - 1] == "-x"
    assert not any(item.startswith("--NCCL_DEBUG") for item in line)
    assert "OMPI_MCA_btl_vader_single_copy_mechanism=none" in line
    assert [rank.argv[-1] for rank in planned.plan.ranks] == [
        f"{home}/jobs/{planned.spec.name}/hosts/{host}/ml/model" for host in ("algo-1", "algo-2")
    ]


def test_sagemaker_can_be_planned_without_aws_and_not_launched(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(home / "no-config"))
    estimator = made(instance_type="ml.p3.2xlarge", distribution=MPI(), instance_count=2)
    planned = estimator.plan(job_name="job")
    assert planned.environment("algo-2")["SM_MODEL_DIR"] == "/opt/ml/model"
    assert planned.entry_points["algo-1"] == ("python", "-m", "container", "train")
    assert planned.environment("algo-1")["SM_NUM_GPUS"] == "1"
    assert "no AWS region is known" in planned.warnings[0]
    with pytest.raises(ConfigurationError, match=r"(?s)'ml\.p3\.2xlarge': .*no AWS region is known: set AWS_REGION"):
        estimator.fit()
    assert not home.exists()


def test_containers_are_planned_as_dockers_commands(home: Path) -> None:
    planned = plan(instance_type="local", distribution=MPI(), instance_count=2)
    assert planned.preparations[0][:3] == ("docker", "network", "create")
    command = planned.entry_points["algo-2"]
    assert command[:2] == ("docker", "run") and command[-2:] == ("fleetfit-training", "train")
    assert f"{home}/jobs/{planned.spec.name}/hosts/algo-2/ml/model:/opt/ml/model" in command
    assert planned.environment("algo-2")["SM_MODEL_DIR"] == "/opt/ml/model"
    assert planned.mpirun is not None and "algo-1:1,algo-2:1" in planned.mpirun
    assert "docker network create" in str(planned) and "docker network create" in planned._repr_html_()
    assert not home.exists()


def test_a_plan_of_sagemaker_holds_the_request() -> None:
    ours = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/fleetfit-training:gpu"
    parameters = plan(instance_type="ml.p3.2xlarge", **{**AWS, "image_uri": ours}).request["HyperParameters"]
    assert parameters["sagemaker_submit_directory"] == '"s3://bucket/out/job/source/sourcedir.tar.gz"'
    assert parameters["model_dir"] == '"s3://bucket/out/job/model"'


def test_a_variable_that_is_too_long_is_refused_with_the_limit_of_requests() -> None:
    said = r"^environment\['A'\] has 200000 .* at most 512 are allowed; put long values into a file of a channel\.$"
    with pytest.raises(ConfigurationError, match=said):
        plan(environment={"A": "x" * 200_000})


def test_an_image_that_brings_its_own_program() -> None:
    planned = Estimator("image:1", AWS["role"], 1, "ml.m5.large").plan(job_name="job")
    assert "sagemaker_program" not in planned.request.get("HyperParameters", {})
    assert planned.processes[0].argv == ("train",)


class TestShowing:
    def test_text_has_everything(self) -> None:
        text = str(plan(instance_count=2, distribution=MPI(processes_per_host=2), environment={"A": "b"}))
        first = text.splitlines()[0]
        assert first == "job: strategy mpi, 2 hosts × 2 processes, on local_process"
        for part in ("entry point: ", "mpirun:", "rank 3 (local rank 1), started by mpirun:", "    A=b", "algo-2"):
            assert part in text
        assert all(len(line) < 400 for line in text.splitlines())
        second = text[text.index("environment (where it differs from algo-1's):") :]
        assert "SM_CURRENT_HOST=algo-2" in second
        assert "SM_HOSTS" not in second

    def test_tf_config_is_shown(self) -> None:
        assert "TF_CONFIG={" in str(plan(instance_count=2, distribution=ParameterServer()))

    def test_secrets_are_hidden_everywhere(self) -> None:
        planned = plan(
            hyperparameters={"api-token": "hunter2", "nested": {"password": "hunter2"}},
            environment={"DB_PASSWORD": "hunter2"},
            distribution=MPI(custom_mpi_options="-x API_KEY=hunter2"),
        )
        for shown in (str(planned), repr(planned), planned._repr_html_(), json.dumps(planned.to_dict())):
            assert "hunter2" not in shown
            assert "***" in shown
        assert "hunter2" in " ".join(planned.plan.ranks[0].argv)

    def test_html_is_escaped(self) -> None:
        planned = plan(hyperparameters={"x": "<script>alert(1)</script>"}, environment={"A": "<b>"})
        page = planned._repr_html_()
        assert "<script>" not in page
        assert "&lt;b&gt;" in page

    def test_data_is_json(self) -> None:
        data = json.loads(json.dumps(plan(instance_count=2, distribution=MPI()).to_dict()))
        assert [host["name"] for host in data["hosts"]] == ["algo-1", "algo-2"]

    def test_who_does_not_exist_is_named(self) -> None:
        planned = plan()
        with pytest.raises(KeyError, match="there is no host 'algo-2'"):
            planned.environment("algo-2")
        with pytest.raises(KeyError, match="algo-1 has no process 'ps'"):
            planned.environment("algo-1", "ps")


class TestManyHosts:
    """1,024 hosts of 8 ranks: what grows with the square of them is made only where it is looked at."""

    @pytest.fixture
    def planned(self) -> ClusterPlan:
        return plan(instance_count=1024, distribution=MPI(processes_per_host=8), environment={"A": "b"})

    def test_the_summary_shows_the_first_two_and_the_last(self, planned: ClusterPlan) -> None:
        text = str(planned)
        assert "job: strategy mpi, 1024 hosts × 8 processes, on local_process" in text
        assert "and 1,021 more hosts, algo-3 to algo-1023" in text
        assert [name for name in text.splitlines() if name.startswith("algo-")] == ["algo-1", "algo-2", "algo-1024"]
        assert "--host 'algo-1:8,algo-2:8,…,algo-1024:8' -np 8192" in text.replace("\n      ", " ")
        assert "ring: algo-1 ranks 0–7 → algo-2 ranks 8–15 → … → algo-1024 ranks 8184–8191 → back to algo-1" in text
        assert "rank 8191 (local rank 7), started by mpirun:" in text
        assert len(text) < 20_000 and len(planned._repr_html_()) < 100_000

    def test_what_is_shown_is_all_that_is_made(self, planned: ClusterPlan) -> None:
        str(planned)
        assert repr(planned.hosts[500].environment) == "Deferred(…)"
        variables = planned.environment("algo-501", "rank 4000")
        assert variables["SM_CURRENT_HOST"] == "algo-501" and variables["A"] == "b"
        assert len(json.loads(variables["SM_HOSTS"])) == 1024
        assert variables["SM_MODEL_DIR"].endswith("/hosts/algo-501/ml/model")

    def test_nothing_but_the_data_grows_with_the_square(self, planned: ClusterPlan) -> None:
        """A plan and its summary of four times the hosts take four times as much memory, and not sixteen times."""
        import tracemalloc

        def peak(hosts: int) -> int:
            estimator = made(instance_count=hosts, distribution=CollectiveAllReduce(processes_per_host=4))
            tracemalloc.start()
            try:
                str(estimator.plan())
                return tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()

        peak(2)  # what is imported and kept
        # Whatever else allocates memory in this process meanwhile, as a thread of an earlier test may, only adds to it.
        assert min(peak(1024) for _ in range(3)) < 6 * min(peak(256) for _ in range(3))

    def test_the_whole_is_there_on_request(self) -> None:
        planned = plan(instance_count=20, distribution=MPI(processes_per_host=2))
        whole = planned.text(whole=True)
        names = [f"algo-{number}" for number in range(1, 21)]
        assert [line for line in whole.splitlines() if line.startswith("algo-")] == names
        assert ",".join(f"{name}:2" for name in names) in whole and " more " not in whole.partition("algo-1\n")[2]
        data = planned.to_dict()
        assert [host["name"] for host in data["hosts"]] == names
        assert data["hosts"][19]["environment"]["SM_CURRENT_HOST"] == "algo-20"

    def test_many_processes_of_one_host_are_a_summary_too(self) -> None:
        planned = plan(distribution=CollectiveAllReduce(processes_per_host=100))
        assert "(and 97 more processes, rank 2 to rank 98)" in str(planned)
        assert "and 97 more processes, rank 2 to rank 98" in planned._repr_html_()
        assert "rank 50 (" in planned.text(whole=True)

    def test_a_script_s_own_list_of_hosts_is_shown_whole(self) -> None:
        hosts = ",".join(f"db-{number}" for number in range(40))
        planned = plan(instance_count=2, distribution=MPI(), hyperparameters={"host": hosts})
        shown = str(planned).replace(shlex.quote(sys.executable), "python").replace("\n      ", " ")
        assert f"python train.py --host {hosts}" in shown

    def test_more_ranks_than_tf_config_can_name_are_refused(self) -> None:
        with pytest.raises(ConfigurationError, match=r"× 8 processes it would have 1\d\d,\d\d\d characters.*MPI\(\)"):
            plan(instance_count=1024, distribution=CollectiveAllReduce(processes_per_host=8))
        longest = plan(instance_count=1024, distribution=CollectiveAllReduce(processes_per_host=4))
        config = longest.tf_config("algo-1024", "rank 4095")
        assert config is not None and config["task"]["index"] == 4095


class TestDevices:
    """What a plan shows of GPUs and of the ring; on ``ml.*`` types, whose GPUs are known."""

    def of(self, distribution: Any, hosts: int = 4, **settings: Any) -> ClusterPlan:
        given = {"instance_type": "ml.p3.16xlarge", **AWS, **settings}
        return plan(instance_count=hosts, distribution=distribution, **given)

    @pytest.mark.parametrize(
        "distribution", [None, MPI(), CollectiveAllReduce(processes_per_host=8), ParameterServer()], ids=str
    )
    def test_four_hosts_of_eight_are_32(self, distribution: Any) -> None:
        planned = self.of(distribution)
        assert planned.devices == 32 and "note: devices: 4 hosts × 8 = 32 GPUs (V100)" in str(planned)
        fewer = [warning for warning in planned.warnings if "for 4 × 8 = 32 GPUs of ml.p3.16xlarge" in warning]
        processes = distribution.ranks_per_host if distribution is not None else 1
        assert len(fewer) == (0 if processes == 8 else 1)

    def test_the_ring_goes_from_rank_to_rank(self) -> None:
        planned = self.of(CollectiveAllReduce(processes_per_host=8), hosts=2)
        assert [(process.host, process.rank) for process in planned.ring] == [
            *(("algo-1", rank) for rank in range(8)),
            *(("algo-2", rank) for rank in range(8, 16)),
        ]
        ring = "ring: algo-1 ranks 0–7 (GPUs 0–7) → algo-2 ranks 8–15 (GPUs 0–7) → back to algo-1"
        assert ring in str(planned) and ring in planned._repr_html_()
        assert planned.devices_of(planned.plan.ranks[11]) == (3,)
        assert "rank 11 (local rank 3, GPU 3):" in str(planned)
        data = planned.to_dict()
        assert (data["devices"], data["ring"]) == (16, list(range(16)))

    def test_mirrored_has_all_of_its_host(self) -> None:
        planned = self.of(Mirrored(), hosts=1)
        assert planned.devices_of(planned.plan.ranks[0]) == tuple(range(8))
        assert not any("GPUs" in warning for warning in planned.warnings)
        assert self.of(Mirrored(devices=2), hosts=1).to_dict()["hosts"][0]["processes"][0]["gpus"] == [0, 1]

    def test_without_gpus(self) -> None:
        planned = self.of(CollectiveAllReduce(), hosts=2, instance_type="ml.m5.large")
        assert planned.devices == 0 and planned.devices_of(planned.plan.ranks[0]) == ()
        assert "ring: algo-1 rank 0 → algo-2 rank 1 → back to algo-1" in str(planned)
        assert plan(distribution=MPI()).ring == ()
        assert plan(instance_count=2, distribution=ParameterServer()).ring == ()


def test_a_missing_mpirun_is_a_warning_in_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    from container.system import openmpi
    from estimators.backends import placement

    monkeypatch.setattr(openmpi, "find_mpirun", lambda: None)
    placement._machine.cache_clear()
    try:
        planned = plan(distribution=MPI())
    finally:
        placement._machine.cache_clear()
    assert any("mpirun was not found" in warning for warning in planned.warnings)
    assert planned.mpirun is not None and planned.mpirun[0] == "mpirun"


def test_several_hosts_without_a_strategy_are_warned_about() -> None:
    assert any("without a distribution strategy" in warning for warning in plan(instance_count=2).warnings)


def test_a_job_is_planned_once_and_its_warnings_go_with_its_options() -> None:
    draft = made(framework_version="1.0")._draft(None, None)
    draft.check()
    assert draft.plan() is draft.plan()
    assert draft.options is draft.options
    assert draft.options.warnings == draft.warnings
    assert any("framework_version" in warning for warning in draft.warnings)
    assert draft.plan().options.warnings == ()
    assert draft.plan().warnings == draft.warnings


def test_channels_with_one_variable_are_warned_of(tmp_path: Path) -> None:
    for name in ("train", "Train"):
        (tmp_path / name).mkdir()
    planned = made().plan({name: str(tmp_path / name) for name in ("train", "Train")}, job_name="job")
    assert any(
        "channels 'train' and 'Train' have the same variable, SM_CHANNEL_TRAIN" in one for one in planned.warnings
    )


def test_variables_that_every_script_gets_from_us_are_warned_of() -> None:
    given = {"SM_MODEL_DIR": "/data", "SM_MINE": "1", "SM_HP_RATE": "2", "SM_HP_SIZE": "2", "CURRENT_HOST": "algo-1"}
    planned = plan(environment=given, hyperparameters={"rate": 1, "size": 2})
    (warning,) = [one for one in planned.warnings if "has no effect" in one]
    assert warning.startswith("environment: the value of SM_MODEL_DIR, SM_HP_RATE has no effect"), warning
