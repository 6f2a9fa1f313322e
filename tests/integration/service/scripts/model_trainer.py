"""A training script of the SageMaker SDK 3.x, as it is written for SageMaker."""

from pathlib import Path

from sagemaker.train import ModelTrainer
from sagemaker.train.configs import Compute, SourceCode

trainer = ModelTrainer(
    training_image="763104351884.dkr.ecr.us-east-1.amazonaws.com/tensorflow-training:2.16-cpu-py310",
    source_code=SourceCode(source_dir=str(Path(__file__).parent.parent / "code"), entry_script="plain.py"),
    compute=Compute(instance_type="ml.m5.xlarge", instance_count=1),
    role="arn:aws:iam::111122223333:role/SageMakerRole",
    hyperparameters={"epochs": 3, "name": "a b"},
    base_job_name="trainer",
)
trainer.train(wait=True, logs=True)
