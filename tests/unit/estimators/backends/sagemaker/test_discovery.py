"""Role, bucket and image are found where the SageMaker SDK finds them, or the message says what to set."""

from __future__ import annotations

import base64
import json
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import pytest
from aws_identity import ACCOUNT, REGION, caller

from estimators import CollectiveAllReduce, ConfigurationError, Estimator, ParameterServer, RunOptions, TensorFlow
from estimators.backends.images.engine import ImageFacts
from estimators.backends.images.toolkit import toolkit_digest
from estimators.backends.sagemaker import discovery, images
from estimators.backends.sagemaker import ecr as push
from estimators.backends.sagemaker.aws import Aws, supervisor_environment
from estimators.inputs import FileSystemInput
from estimators.job.settings import Settings

ROLE = f"arn:aws:iam::{ACCOUNT}:role/train"
IMAGE = "mine:1"


def settings(**values: Any) -> Settings:
    return Settings(
        **{"instance_type": "ml.m5.xlarge", "role": ROLE, "image_uri": IMAGE, "output_path": "s3://b/p", **values}
    )


def write_config(folder: Path, text: str) -> None:
    path = folder / ".config" / "sagemaker" / "config.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(text)


def test_nothing_is_asked_of_aws_when_everything_is_given() -> None:
    found = discovery.discover(settings())
    assert found.problems == () and found.warnings == ()
    assert found.settings.region == REGION
    assert found.settings.run_options.backend_options == {"region": REGION}


def test_the_default_bucket_is_the_sdks(stub: Callable[[str], Any]) -> None:
    caller(stub)
    assert discovery.discover(settings(output_path=None)).settings.output_path == f"s3://sagemaker-{REGION}-{ACCOUNT}"


def test_the_sdks_configuration_file_counts(environment: Path) -> None:
    session = {"DefaultS3Bucket": "theirs", "DefaultS3ObjectKeyPrefix": "team/a"}
    job = {"RoleArn": ROLE, "VpcConfig": {}}
    config = {"PythonSDK": {"Modules": {"Session": session}}, "TrainingJob": job}
    write_config(environment, json.dumps({"SageMaker": config}))
    found = discovery.discover(settings(role=None, output_path=None))
    assert (found.settings.role, found.settings.output_path) == (ROLE, "s3://theirs/team/a")
    assert "Give VpcConfig as arguments" in found.warnings[0]


def test_a_damaged_configuration_file_is_named(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_config(environment, "SageMaker: [")
    with pytest.raises(ConfigurationError, match=r"config\.yaml.*cannot be read"):
        discovery.discover(settings())
    monkeypatch.setenv("SAGEMAKER_USER_CONFIG_OVERRIDE", "/nowhere.yaml")
    with pytest.raises(
        ConfigurationError,
        match=r"/nowhere\.yaml \(set by SAGEMAKER_USER_CONFIG_OVERRIDE\) cannot be read: No such file",
    ):
        discovery.discover(settings())


class TestRole:
    def test_a_name_is_looked_up(self, stub: Callable[[str], Any]) -> None:
        answer = {"Path": "/x/", "RoleName": "train", "RoleId": "A" * 16, "Arn": ROLE, "CreateDate": "2020-01-01"}
        stub("iam").add_response("get_role", {"Role": answer}, {"RoleName": "train"})
        assert discovery.discover(settings(role="train")).settings.role == ROLE

    def test_an_unknown_name_is_a_problem(self, stub: Callable[[str], Any]) -> None:
        stub("iam").add_client_error("get_role", "NoSuchEntity", "The role with name tran cannot be found.")
        (problem,) = discovery.discover(settings(role="tran")).problems
        assert "role='tran' could not be looked up" in problem and "cannot be found" in problem

    @pytest.mark.parametrize(
        ("assumed", "role"),
        [
            ("train/session", "train"),
            ("AmazonSageMaker-ExecutionRole-1/SageMaker", "service-role/AmazonSageMaker-ExecutionRole-1"),
        ],
    )
    def test_the_callers_own_where_iam_may_not_be_asked(
        self, stub: Callable[[str], Any], assumed: str, role: str
    ) -> None:
        caller(stub, f"arn:aws:sts::{ACCOUNT}:assumed-role/{assumed}")
        stub("iam").add_client_error("get_role", "AccessDenied", "no")
        assert discovery.discover(settings(role=None)).settings.role == f"arn:aws:iam::{ACCOUNT}:role/{role}"

    def test_a_user_is_no_role(self, stub: Callable[[str], Any]) -> None:
        caller(stub)
        (problem,) = discovery.discover(settings(role=None)).problems
        assert f"arn:aws:iam::{ACCOUNT}:user/me" in problem and "give role='arn:aws:iam::" in problem

    @pytest.mark.parametrize("facts", [{"ExecutionRoleArn": ROLE}, {"ResourceName": "notebook"}])
    def test_a_notebooks(self, stub: Callable[[str], Any], tmp_path: Path, facts: dict[str, str]) -> None:
        metadata = tmp_path / "metadata.json"
        metadata.write_text(json.dumps(facts))
        if "ResourceName" in facts:
            asked = {"NotebookInstanceName": "notebook"}
            stub("sagemaker").add_response("describe_notebook_instance", {"RoleArn": ROLE}, asked)
        assert discovery.execution_role(Aws(), metadata) == ROLE


class TestImage:
    def test_ours_is_found_in_the_users_registry(self, stub: Callable[[str], Any]) -> None:
        caller(stub)
        tags = ["latest", f"toolkit-{toolkit_digest()}"]
        asked = {"repositoryName": "fleetfit-training", "imageIds": [{"imageTag": "latest"}]}
        stub("ecr").add_response("describe_images", {"imageDetails": [{"imageTags": tags}]}, asked)
        found = discovery.discover(settings(image_uri=None))
        uri = f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/fleetfit-training:latest"
        assert (found.settings.image_uri, found.warnings) == (uri, ())
        assert images.is_ours(uri)

    def test_an_older_toolkit_is_warned_of(self, stub: Callable[[str], Any]) -> None:
        caller(stub)
        answer = {"imageDetails": [{"imageTags": ["gpu", "toolkit-0"]}]}
        asked = {"repositoryName": "fleetfit-training", "imageIds": [{"imageTag": "gpu"}]}
        stub("ecr").add_response("describe_images", answer, asked)
        found = discovery.discover(settings(image_uri=None, instance_type="ml.p3.2xlarge"))
        assert "another version of fleetfit's toolkit" in found.warnings[0]

    def test_none_says_how_to_get_one(self, stub: Callable[[str], Any]) -> None:
        caller(stub)
        stub("ecr").add_client_error("describe_images", "RepositoryNotFoundException", "no")
        (problem,) = discovery.discover(settings(image_uri=None)).problems
        assert "Upload it with `fleetfit image push`" in problem

    @pytest.mark.parametrize("distribution", [None, ParameterServer(), CollectiveAllReduce(processes_per_host=2)])
    def test_none_can_be_looked_for(self, distribution: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """Without a region AWS cannot be asked: that is what a plan and a refusal say, and nothing of image ''."""
        monkeypatch.setitem(sys.modules, "sagemaker", None)
        for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
            monkeypatch.delenv(name, raising=False)
        (tmp_path / "train.py").touch()
        estimator = TensorFlow(
            entry_point="train.py", source_dir=str(tmp_path), role=ROLE, instance_type="ml.m5.large", instance_count=2,
            output_path="s3://bucket", distribution=distribution,
        )  # fmt: skip
        words = ("no AWS region is known", "image_uri is missing, and AWS", "fleetfit install sagemaker")
        planned = " ".join(estimator.plan().warnings)
        with pytest.raises(ConfigurationError) as caught:
            estimator.fit()
        for text in (planned, str(caught.value)):
            assert all(word in text for word in words) and "image ''" not in text, text

    def test_awss_need_the_sdk(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "sagemaker", None)
        given = settings(image_uri=None, framework_version="2.16", py_version="py310")
        (problem,) = discovery.discover(given).problems
        assert "fleetfit install sagemaker" in problem

    def test_awss_need_a_python_version(self, monkeypatch: pytest.MonkeyPatch) -> None:
        package = types.ModuleType("sagemaker")
        package.image_uris = types.ModuleType("sagemaker.image_uris")  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "sagemaker", package)
        (problem,) = discovery.discover(settings(image_uri=None, framework_version="2.16")).problems
        assert "needs py_version too" in problem

    @pytest.mark.parametrize(
        ("uri", "ours", "aws"),
        [
            ("fleetfit-training", True, False),
            ("1.dkr.ecr.x.amazonaws.com/team/fleetfit-training-mine@sha256:0", True, False),
            ("763104351884.dkr.ecr.eu-west-1.amazonaws.com/tensorflow-training:2.16-cpu-py310", False, True),
            ("localhost:5000/tensorflow", False, False),
        ],
    )
    def test_whose_it_is(self, uri: str, ours: bool, aws: bool) -> None:
        assert (images.is_ours(uri), images.is_aws_tensorflow(uri)) == (ours, aws)


class TestProblems:
    def test_no_region(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("AWS_REGION")
        (problem,) = discovery.discover(settings()).problems
        assert "no AWS region is known: set AWS_REGION" in problem

    def test_no_credentials_are_one_problem_of_fit_and_a_warning_of_plan(
        self, environment: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        (environment / "train.py").write_text("")
        estimator = TensorFlow(entry_point=str(environment / "train.py"), instance_type="ml.m5.xlarge")
        with pytest.raises(
            ConfigurationError, match=r"(?s)'ml.m5.xlarge': .*there are no AWS credentials. S"
        ) as caught:
            estimator.fit()
        assert str(caught.value).count("\n- ") == 2  # that, and the image that could not be looked for
        plan = estimator.plan(job_name="job")
        assert "there are no AWS credentials" in plan.warnings[0]
        assert f'"S3OutputPath": "s3://sagemaker-{REGION}-<account>"' in str(plan)
        assert not (environment / "home").exists()

    def test_an_unknown_profile(self) -> None:
        given = settings(run_options=RunOptions(backend_options={"profile": "nobody"}))
        (problem,) = discovery.discover(given).problems
        assert "nobody" in problem

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"regoin": "x"}, "Did you mean 'region'?"),
            ({"toolkit": "ship"}, "'shipped'"),
            ({"poll_seconds": 0}, "a number above 0"),
        ],
    )
    def test_wrong_options(self, options: dict[str, Any], said: str) -> None:
        with pytest.raises(ConfigurationError, match=said.replace("?", r"\?")):
            discovery.discover(settings(run_options=RunOptions(backend_options=options)))


class TestSessions:
    """Whose credentials the supervisor uses; none of them are ever written."""

    def test_none_is_this_processs(self) -> None:
        assert supervisor_environment(None) is None

    def test_a_profile_is_named(self, environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (environment / "aws-credentials").write_text(
            "[team]\naws_access_key_id = AKIDTEAM\naws_secret_access_key = team-secret\n"
        )
        (environment / "aws-config").write_text("[profile team]\nregion = eu-north-1\n")
        session = boto3.session.Session(profile_name="team")
        made = supervisor_environment(session)
        assert made is not None and made["AWS_PROFILE"] == "team"
        assert "AWS_ACCESS_KEY_ID" not in made and "team-secret" not in str(made)
        found = discovery.discover(settings(sagemaker_session=session)).settings
        assert found.run_options.backend_options == {"region": "eu-north-1", "profile": "team"}

    def test_keys_of_its_own_are_passed_on(self) -> None:
        session = boto3.session.Session("AKIDOWN", "own-secret", region_name="eu-north-1")
        made = supervisor_environment(session)
        assert made is not None
        assert (made["AWS_ACCESS_KEY_ID"], made["AWS_SECRET_ACCESS_KEY"]) == ("AKIDOWN", "own-secret")


class Engine:
    """What ``push`` needs of a container engine; pushing to a real registry is not tested here."""

    def __init__(self, labels: dict[str, str]) -> None:
        self.labels = labels
        self.pushed: list[tuple[str, str]] = []

    def image(self, image: str) -> ImageFacts:
        return ImageFacts(labels=self.labels)

    def push(self, image: str, target: str, user: str, password: str, *, progress: Any) -> None:
        assert (user, password) == ("AWS", "pass:word")
        self.pushed.append((image, target))


@pytest.mark.parametrize("there", [True, False])
def test_an_image_is_pushed_to_a_repository_that_is_made_if_absent(stub: Callable[[str], Any], there: bool) -> None:
    uri = f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/fleetfit-training"
    ecr = stub("ecr")
    named = {"repositoryNames": ["fleetfit-training"]}
    if there:
        ecr.add_response("describe_repositories", {"repositories": [{"repositoryUri": uri}]}, named)
    else:
        ecr.add_client_error("describe_repositories", "RepositoryNotFoundException", expected_params=named)
        made = {"repository": {"repositoryUri": uri}}
        ecr.add_response("create_repository", made, {"repositoryName": "fleetfit-training"})
    token = base64.b64encode(b"AWS:pass:word").decode()
    answer = {"authorizationData": [{"authorizationToken": token, "proxyEndpoint": f"https://{uri}"}]}
    ecr.add_response("get_authorization_token", answer, {})
    engine = Engine({"fleetfit.device": "gpu", "fleetfit.toolkit": "0123"})
    assert push.push(engine, Aws()) == f"{uri}:gpu"  # type: ignore[arg-type]
    assert engine.pushed == [("fleetfit-training", f"{uri}:{tag}") for tag in ("gpu", "toolkit-0123")]


def test_a_plan_is_the_exact_request(stub: Callable[[str], Any]) -> None:
    """An image with a program of its own, and everything that only AWS has."""
    caller(stub)
    stub("ecr")
    estimator = Estimator(
        "mine:1", ROLE, 2, "ml.m5.xlarge", subnets=["subnet-1"], security_group_ids=["sg-1"], volume_kms_key="key-1",
        output_kms_key="key-2", encrypt_inter_container_traffic=True, keep_alive_period_in_seconds=600,
        max_retry_attempts=3, use_spot_instances=True, max_wait=90000, tags={"team": "a"},
        environment={"DB_PASSWORD": "hunter2"},
    )  # fmt: skip
    plan = estimator.plan({"lake": FileSystemInput("fs-0123456789abcdef0", "FSxLustre", "/fsx/data")}, job_name="job")
    shown = str(plan).partition("request (CreateTrainingJob):\n")[2]
    assert "hunter2" not in str(plan) + plan._repr_html_()
    assert json.loads(shown) == {**plan.request, "Environment": {"DB_PASSWORD": "***"}}
    assert plan.request["VpcConfig"] == {"SecurityGroupIds": ["sg-1"], "Subnets": ["subnet-1"]}
    assert plan.request["ResourceConfig"]["KeepAlivePeriodInSeconds"] == 600
    (channel,) = plan.request["InputDataConfig"]
    assert channel["DataSource"]["FileSystemDataSource"]["DirectoryPath"] == "/fsx/data"
    assert plan.request["RetryStrategy"] == {"MaximumRetryAttempts": 3}
    bucket = f"s3://sagemaker-{REGION}-{ACCOUNT}"
    assert plan.request["OutputDataConfig"] == {"S3OutputPath": bucket, "KmsKeyId": "key-2"}
    assert plan.request["Tags"] == [{"Key": "team", "Value": "a"}]
