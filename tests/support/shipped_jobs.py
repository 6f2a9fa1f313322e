"""Jobs on SageMaker whose code is uploaded."""

from __future__ import annotations

from typing import Any

from container.contract import hyperparameters as codec
from container.contract.strategies import Distribution
from estimators.job.request import Algorithm, OutputConfig, Resources, TrainingJobSpec

AWS_IMAGE = "763104351884.dkr.ecr.eu-west-1.amazonaws.com/tensorflow-training:2.16-cpu-py310"
PREFIX = "s3://bucket/job/source"
UPLOADED = f"{PREFIX}/sourcedir.tar.gz"


def spec(image: str | None = AWS_IMAGE, strategy: Distribution | None = None, **values: Any) -> TrainingJobSpec:
    parameters = {codec.PROGRAM: "train.py", codec.SUBMIT_DIRECTORY: UPLOADED, **values.pop("parameters", {})}
    if strategy is not None:
        parameters.update(strategy.to_hyperparameters())
    return TrainingJobSpec(
        name="job",
        algorithm=Algorithm(image=image),
        hyperparameters=codec.encode(parameters),
        output=OutputConfig(path="s3://bucket"),
        resources=Resources(instance_type="ml.m5.xlarge", instance_count=2),
        **values,
    )
