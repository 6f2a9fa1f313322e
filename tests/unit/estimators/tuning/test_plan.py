"""What a tuning job would be, before it is one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from estimators import ElasticHorovod, TensorFlow, UnsupportedError
from estimators.backends.sagemaker.tuning import SageMakerTuning
from estimators.job.errors import ConfigurationError
from estimators.tuner import (
    CategoricalParameter,
    ContinuousParameter,
    HyperparameterTuner,
    IntegerParameter,
    WarmStartConfig,
    WarmStartTypes,
)

ROLE = "arn:aws:iam::123456789012:role/training"
IMAGE = "123456789012.dkr.ecr.eu-central-1.amazonaws.com/fleetfit-training:1"


@pytest.fixture(autouse=True)
def account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A region, and no credentials."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))


def tuner(tmp_path: Path, instance_type: str, distribution: Any = None, **arguments: Any) -> HyperparameterTuner:
    (tmp_path / "train.py").write_text("")
    managed = {"role": ROLE, "image_uri": IMAGE} if instance_type.startswith("ml.") else {}
    estimator = TensorFlow(
        entry_point="train.py",
        source_dir=str(tmp_path),
        instance_count=2,
        instance_type=instance_type,
        hyperparameters={"layers": 3, "api_token": "of" + "-mine"},
        environment={"API_TOKEN": "of" + "-mine", "LEVEL": "2"},
        distribution=distribution,
        **managed,
    )
    ranges = arguments.pop("ranges", None) or {
        "rate": ContinuousParameter(0.001, 0.1, scaling_type="Logarithmic"),
        "batch": IntegerParameter(16, 64),
        "optimizer": CategoricalParameter(["sgd", "adam"]),
    }
    metrics = [{"Name": "loss", "Regex": "loss: ([0-9.]+)"}]
    given = {"objective_type": "Minimize", "max_jobs": 8, "max_parallel_jobs": 2, **arguments}
    return HyperparameterTuner(estimator, "loss", ranges, metrics, **given)


def test_on_sagemaker_it_is_the_request(tmp_path: Path) -> None:
    warm = WarmStartConfig(WarmStartTypes.TRANSFER_LEARNING, {"earlier"})
    plan = tuner(tmp_path, "ml.m5.xlarge", early_stopping_type="Auto", warm_start_config=warm).plan(
        {"train": "s3://bucket/train"}, job_name="search"
    )
    config = plan.request["HyperParameterTuningJobConfig"]
    assert config["ResourceLimits"] == {"MaxNumberOfTrainingJobs": 8, "MaxParallelTrainingJobs": 2}
    assert config["TrainingJobEarlyStoppingType"] == "Auto"
    [rate] = config["ParameterRanges"]["ContinuousParameterRanges"]
    assert rate == {"Name": "rate", "MinValue": "0.001", "MaxValue": "0.1", "ScalingType": "Logarithmic"}
    assert plan.request["WarmStartConfig"] == {
        "ParentHyperParameterTuningJobs": [{"HyperParameterTuningJobName": "earlier"}],
        "WarmStartType": "TransferLearning",
    }
    definition = plan.request["TrainingJobDefinition"]
    assert definition["AlgorithmSpecification"]["MetricDefinitions"] == [{"Name": "loss", "Regex": "loss: ([0-9.]+)"}]
    assert definition["StaticHyperParameters"]["layers"] == "3"
    assert definition["Environment"]["LEVEL"] == "2"
    assert not {"rate", "batch", "optimizer"} & definition["StaticHyperParameters"].keys()
    text = str(plan)
    assert text.startswith("search: strategy Bayesian, 8 trials, 2 at once\nobjective: minimize loss\n")
    assert "rate: 0.001 to 0.1 (continuous)" in text and "request (CreateHyperParameterTuningJob):" in text
    assert "of-mine" not in text + repr(plan) + plan._repr_html_()


def test_here_it_is_what_each_trial_starts(tmp_path: Path) -> None:
    text = str(tuner(tmp_path, "local_process", strategy="ASHA").plan(job_name="search"))
    assert "search: strategy ASHA, 8 trials, 2 at once" in text
    choice = {"optimizer": CategoricalParameter(["sgd", "adam"])}
    grid = tuner(tmp_path, "local_process", ranges=choice, strategy="Grid", max_jobs=None)
    assert "strategy Grid, 2 trials, 2 at once" in str(grid.plan())
    assert "each trial:\nsearch: strategy none, 2 hosts" in text


def test_what_awss_model_does_not_take_is_refused_before_anything_is_uploaded(tmp_path: Path) -> None:
    plan = tuner(tmp_path, "ml.m5.xlarge").plan()
    SageMakerTuning.check(plan.trial.spec, plan.request)
    wrong = {**plan.request, "HyperParameterTuningJobName": ""}
    with pytest.raises(ConfigurationError, match=r"SageMaker does not accept this tuning job: .*TuningJobName"):
        SageMakerTuning.check(plan.trial.spec, wrong)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"distribution": ElasticHorovod()}, "[Ee]lastic"),
        (
            {"strategy": "ASHA"},
            "strategy 'ASHA' on instance_type 'ml.m5.xlarge': SageMaker's tuning jobs support only the strategies",
        ),
        ({"strategy": "Bayesian", "max_failures": 2}, "max_failures=2 is not available on"),
        ({"image": "mine"}, "SageMaker's tuning jobs cannot set how a container is started"),
    ],
)
def test_what_sagemakers_tuning_jobs_do_not_have_is_refused(
    arguments: dict[str, Any], said: str, tmp_path: Path
) -> None:
    image = arguments.pop("image", None)
    searched = tuner(tmp_path, "ml.m5.xlarge", **arguments)
    if image is not None:
        searched.estimator.image_uri = IMAGE.replace("fleetfit-training", image)
    with pytest.raises(UnsupportedError, match=said):
        searched.fit()
