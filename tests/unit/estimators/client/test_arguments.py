"""Every argument of the SageMaker SDK 2.x has its place, in the code and in the documentation."""

from __future__ import annotations

import dataclasses
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import signatures

from estimators import Estimator, TensorFlow
from estimators.job.arguments import ARGUMENTS, BY_NAME, BY_V1_NAME, Owner, Treatment, read_arguments
from estimators.job.errors import ArgumentNameError, ConfigurationError, UnsupportedError
from estimators.job.settings import Settings

DOCUMENT = Path(__file__).parents[4] / "docs" / "sagemaker-arguments.md"

#: The constructors of sagemaker 2.257.7: EstimatorBase's, Framework's and TensorFlow's arguments together.
SDK = set(
    """
    role instance_count instance_type keep_alive_period_in_seconds volume_size volume_kms_key max_run input_mode
    output_path output_kms_key base_job_name sagemaker_session tags subnets security_group_ids model_uri
    model_channel_name metric_definitions encrypt_inter_container_traffic use_spot_instances max_wait checkpoint_s3_uri
    checkpoint_local_path rules debugger_hook_config tensorboard_output_config enable_sagemaker_metrics
    enable_network_isolation profiler_config disable_profiler environment max_retry_attempts source_dir git_config
    hyperparameters container_log_level code_location entry_point dependencies instance_groups
    training_repository_access_mode training_repository_credentials_provider_arn enable_infra_check
    container_entry_point container_arguments disable_output_compression enable_remote_debug
    enable_session_tag_chaining training_plan instance_placement_config
    image_uri
    py_version framework_version model_dir distribution compiler_config
    """.split()  # noqa: SIM905
)

#: The renamed ones of the SDK 1.x (``deprecations.renamed_kwargs``).
V1 = {
    "train_instance_count": "instance_count",
    "train_instance_type": "instance_type",
    "train_max_run": "max_run",
    "train_use_spot_instances": "use_spot_instances",
    "train_max_wait": "max_wait",
    "train_volume_size": "volume_size",
    "train_volume_kms_key": "volume_kms_key",
    "image_name": "image_uri",
    "distributions": "distribution",
}

LABELS = {
    Treatment.CARRIED: "carried",
    Treatment.CHANGED: "changed",
    Treatment.AWS_ONLY: "AWS only",
    Treatment.REFUSED: "refused",
    Treatment.OWN: "fleetfit's own",
}


def test_every_argument_of_the_sdk_is_in_the_table() -> None:
    assert {item.name for item in ARGUMENTS if item.treatment is not Treatment.OWN} == SDK
    assert len(BY_NAME) == len(ARGUMENTS)
    assert {old: item.name for old, item in BY_V1_NAME.items()} == V1


@pytest.mark.optional
def test_the_installed_sdk_has_no_others() -> None:
    estimator = pytest.importorskip("sagemaker.estimator")
    tensorflow = pytest.importorskip("sagemaker.tensorflow")
    import inspect

    found: set[str] = set()
    for constructor in (estimator.EstimatorBase, estimator.Framework, tensorflow.TensorFlow):
        found |= set(inspect.signature(constructor.__init__).parameters)
    assert found - {"self", "kwargs"} == SDK


def test_every_argument_that_is_not_refused_is_a_setting() -> None:
    taken = {item.name for item in ARGUMENTS if item.treatment is not Treatment.REFUSED}
    assert {field.name for field in dataclasses.fields(Settings)} == taken


def test_the_document_says_what_the_table_says() -> None:
    rows = re.findall(
        r"^\| `(\w+)`(?: \(`(\w+)`\))?( [†‡])? \| ([^|]*) \| ([^|]*) \|$", DOCUMENT.read_text(), re.MULTILINE
    )
    documented = {row[0]: row[1:] for row in rows[: len(ARGUMENTS)]}
    assert list(documented) == [item.name for item in ARGUMENTS]
    for item in ARGUMENTS:
        dagger = {Owner.TENSORFLOW: " †", Owner.FRAMEWORK: " ‡"}.get(item.owner, "")
        assert documented[item.name] == (item.v1_name or "", dagger, LABELS[item.treatment], item.note), item.name


def test_the_stub_has_the_arguments_of_the_table() -> None:
    assert signatures.STUB.read_text() == signatures.text(), "run: python tests/support/signatures.py"


def test_whatever_is_not_carried_says_why() -> None:
    assert [item.name for item in ARGUMENTS if item.treatment is not Treatment.CARRIED and not item.note] == []


@pytest.mark.parametrize("old", V1)
def test_old_names_are_taken_with_one_warning_that_names_the_new(old: str) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        values = read_arguments({old: 5}, constructor="TensorFlow()", owners=Owner)
    assert values == {V1[old]: 5}
    assert [(item.category, str(item.message)) for item in caught] == [
        (DeprecationWarning, f"{old} is a name of the SageMaker SDK 1.x. Use {V1[old]}.")
    ]


def test_the_warning_shows_the_users_line() -> None:
    with pytest.warns(DeprecationWarning) as caught:
        TensorFlow(entry_point="x.py", train_instance_count=2)
    assert caught[0].filename == __file__


@pytest.mark.parametrize("old", V1)
def test_old_and_new_names_together_are_refused(old: str) -> None:
    with pytest.raises(ValueError, match=f"{old} is the old name of {V1[old]}, and both are given"):
        TensorFlow(**{old: None, V1[old]: None})


def test_unknown_names_are_refused_with_the_nearest() -> None:
    with pytest.raises(TypeError, match=r"unknown argument of TensorFlow 'hyperparameter'. Did you mean"):
        TensorFlow(hyperparameter={})
    with pytest.raises(ValueError, match="Did you mean 'instance_count'"):
        Estimator(instance_counts=2)
    assert issubclass(ArgumentNameError, ConfigurationError)
    with pytest.raises(ArgumentNameError, match="model_dir is an argument of TensorFlow only"):
        Estimator(model_dir="x")


@pytest.mark.parametrize(
    "item", [item for item in ARGUMENTS if item.treatment is Treatment.REFUSED], ids=lambda i: i.name
)
def test_refused_arguments_are_refused_by_name_unless_they_ask_for_nothing(item: Any) -> None:
    for neutral in item.neutral:
        TensorFlow(**{item.name: neutral})
    with pytest.raises(UnsupportedError) as caught:
        TensorFlow(**{item.name: object()})
    assert item.name in str(caught.value)
    assert item.note in str(caught.value)


#: A value of each argument that only AWS has; the others are switches.
VALUES: dict[str, Any] = {
    "keep_alive_period_in_seconds": 60,
    "volume_kms_key": "key",
    "training_plan": "arn",
    "instance_placement_config": {"EnableMultipleJobs": True},
    "code_location": "s3://bucket/code",
    "container_entry_point": ["python"],
    "container_arguments": ["-c"],
    "training_repository_access_mode": "Vpc",
    "training_repository_credentials_provider_arn": "arn",
    "output_kms_key": "key",
    "subnets": ["subnet-1"],
    "security_group_ids": ["sg-1"],
}


@pytest.mark.parametrize(
    "item", [item for item in ARGUMENTS if item.treatment is Treatment.AWS_ONLY], ids=lambda i: i.name
)
def test_what_only_aws_can_do_is_refused_locally_by_name(item: Any) -> None:
    for neutral in item.neutral:
        TensorFlow(**{item.name: neutral})
    names = ("subnets", "security_group_ids") if item.name in ("subnets", "security_group_ids") else (item.name,)
    values = {name: VALUES.get(name, True) for name in names}
    with pytest.raises(UnsupportedError, match="instance_type='local_process'"):
        TensorFlow(**values)
    assert getattr(TensorFlow(instance_type="ml.p3.2xlarge", **values), item.name)


def test_a_refused_argument_shows_no_password() -> None:
    git = {"repo": "https://me:hunter2@host/x.git", "password": "hunter2", "branch": "main"}
    with pytest.raises(UnsupportedError, match=r"git_config=.*'branch': 'main'") as caught:
        Estimator(entry_point="train.py", git_config=git)
    assert "hunter2" not in str(caught.value)
