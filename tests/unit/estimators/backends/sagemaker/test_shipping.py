"""What images can run, and how our toolkit and the user's code get into them."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from shipped_jobs import PREFIX, UPLOADED, spec

from container.contract import hyperparameters as codec
from container.contract.strategies import MPI, CollectiveAllReduce, Distribution, ParameterServer
from estimators import ConfigurationError, TensorFlow, UnsupportedError
from estimators.backends.sagemaker import shipping
from estimators.backends.sagemaker.backend import SageMakerBackend
from estimators.job.request import (
    Algorithm,
    InputChannel,
    JobOptions,
    MetricDefinition,
    TrainingJobSpec,
)


def check(given: TrainingJobSpec, **options: Any) -> None:
    SageMakerBackend.check(given, JobOptions(backend="ml", **options))


class TestToolkit:
    @pytest.mark.parametrize("strategy", [None, MPI(), ParameterServer(), CollectiveAllReduce(processes_per_host=2)])
    def test_it_goes_along_into_images_that_lack_it(self, strategy: Distribution | None) -> None:
        made = shipping.with_code_channel(spec(strategy=strategy), toolkit="auto", prefix=PREFIX)
        check(made)
        assert shipping.is_shipped(made) and made.algorithm.entry_point == shipping.ENTRY_POINT
        assert made.inputs[-1].to_request()["DataSource"]["S3DataSource"]["S3Uri"] == f"{PREFIX}/"
        assert made.submit_directory == "/opt/ml/input/data/fleetfit/sourcedir.tar.gz"
        assert made.strategy == strategy
        assert shipping.uploads(made, has_source=True) == shipping.Uploads(
            source=UPLOADED, toolkit=f"{PREFIX}/toolkit.tar.gz", starter=f"{PREFIX}/start.py"
        )

    def test_ours_and_those_with_a_program_run_as_they_are(self) -> None:
        for given in (
            spec("1.dkr.ecr.x.amazonaws.com/fleetfit-training:latest", ParameterServer()),
            dataclasses.replace(spec("mine"), hyperparameters={}),
            dataclasses.replace(spec(), algorithm=Algorithm(image="mine", entry_point=("python3", "/own.py"))),
        ):
            made = shipping.with_code_channel(given, toolkit="auto", prefix=PREFIX)
            assert made == given
            assert shipping.uploads(made, has_source=given.program is not None).toolkit is None

    def test_code_on_s3_stays_there(self) -> None:
        given = spec(parameters={codec.SUBMIT_DIRECTORY: "s3://code/sourcedir.tar.gz"})
        made = shipping.with_code_channel(given, toolkit="auto", prefix=PREFIX)
        assert made.submit_directory == "s3://code/sourcedir.tar.gz"
        assert shipping.uploads(made, has_source=False).source is None
        assert "needs boto3" in shipping.warnings(made)[0]

    def test_without_a_network_the_code_comes_by_a_channel(self) -> None:
        made = shipping.with_code_channel(
            spec("fleetfit-training", network_isolation=True), toolkit="auto", prefix=PREFIX
        )
        assert not shipping.is_shipped(made)
        assert shipping.uploads(made, has_source=True) == shipping.Uploads(source=UPLOADED)
        elsewhere = spec(network_isolation=True, parameters={codec.SUBMIT_DIRECTORY: "s3://code/x.tar.gz"})
        with pytest.raises(UnsupportedError, match=r"cannot fetch source_dir='s3://code/x\.tar\.gz'"):
            shipping.with_code_channel(elsewhere, toolkit="auto", prefix=PREFIX)

    def test_the_channels_name_is_ours(self) -> None:
        with pytest.raises(ConfigurationError, match="'fleetfit' is fleetfit's own"):
            shipping.with_code_channel(spec(inputs=(InputChannel(name="fleetfit"),)), toolkit="auto", prefix=PREFIX)

    def test_nothing_to_start(self) -> None:
        bare = dataclasses.replace(spec(), hyperparameters={})
        with pytest.raises(UnsupportedError, match="needs an entry_point"):
            shipping.with_code_channel(bare, toolkit="shipped", prefix=PREFIX)


class TestRefusals:
    @pytest.mark.parametrize(
        ("strategy", "said"),
        [
            (ParameterServer(), "no chief and no coordinator"),
            (CollectiveAllReduce(processes_per_host=2), "fleetfit_collective_processes_per_host"),
            (MPI(fusion_threshold_mb=1), "fleetfit_mpi_fusion_threshold_mb"),
        ],
    )
    def test_what_awss_toolkit_cannot_do(self, strategy: Distribution, said: str) -> None:
        made = shipping.with_code_channel(spec(strategy=strategy), toolkit="image", prefix=PREFIX)
        with pytest.raises(UnsupportedError, match=said) as caught:
            check(made)
        assert "leave toolkit='image' out" in str(caught.value)

    @pytest.mark.parametrize(
        "strategy", [None, MPI(processes_per_host=2), CollectiveAllReduce(), ParameterServer(cluster_spec="sagemaker")]
    )
    def test_what_it_can(self, strategy: Distribution | None) -> None:
        made = shipping.with_code_channel(spec(strategy=strategy), toolkit="image", prefix=PREFIX)
        check(made)
        assert "starts the script with its own toolkit" in shipping.warnings(made)[0]

    @pytest.mark.parametrize("name", ["on_undistributed", "on_nan"])
    def test_what_only_our_toolkit_fails_a_job_for(self, name: str) -> None:
        options = {name: "fail"}
        hyperparameters = {f"fleetfit_{name}": "fail"}
        made = shipping.with_code_channel(spec(parameters=hyperparameters), toolkit="auto", prefix=PREFIX)
        check(made, **options)
        left = shipping.with_code_channel(spec(parameters=hyperparameters), toolkit="image", prefix=PREFIX)
        with pytest.raises(UnsupportedError, match=f"does not know fleetfit_{name}"):
            check(left, **options)
        bare = dataclasses.replace(spec(), hyperparameters={})
        with pytest.raises(UnsupportedError, match=rf"RunOptions\({name}='fail'\): .* does not contain the toolkit"):
            check(bare, **options)

    def test_no_job_fails_there_for_what_is_in_its_logs(self) -> None:
        loss = MetricDefinition(name="loss", regex="loss: ([0-9.]+)")
        made = spec("fleetfit-training")
        made = dataclasses.replace(made, algorithm=dataclasses.replace(made.algorithm, metric_definitions=(loss,)))
        check(made)
        with pytest.raises(UnsupportedError, match=r"on_nan='fail'\) does not work with metric_definitions \('loss'\)"):
            check(made, on_nan="fail")

    def test_nothing_is_said_of_an_image_that_is_not_known(self) -> None:
        assert shipping.warnings(spec(None, MPI())) == []

    @pytest.mark.parametrize("options", [{"stop_grace": 5.0}, {"interrupt_grace": 1.0}, {"python": "/usr/bin/python9"}])
    def test_options_that_would_have_no_effect(self, options: dict[str, Any]) -> None:
        with pytest.raises(UnsupportedError, match=next(iter(options))):
            check(spec("fleetfit-training"), **options)

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            ({"entry_point": None}, "entry_point is missing"),
            ({"dependencies": ["x"]}, "Put the dependencies into that archive"),
            ({"source_dir": "s3://bucket/folder"}, "code on S3 must be an archive"),
        ],
    )
    def test_code_on_s3_that_cannot_be(self, arguments: dict[str, Any], said: str) -> None:
        given = {"entry_point": "train.py", "source_dir": "s3://bucket/code.tar.gz", **arguments}
        estimator = TensorFlow(
            instance_type="ml.m5.xlarge",
            role="arn:aws:iam::123456789012:role/x",
            image_uri="mine",
            output_path="s3://bucket",
            **{name: value for name, value in given.items() if value is not None},
        )
        with pytest.raises(ConfigurationError, match=said):
            estimator.fit()
