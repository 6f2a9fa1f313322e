"""A training script as it is written for SageMaker."""

from pathlib import Path

from sagemaker.tensorflow import TensorFlow

estimator = TensorFlow(
    entry_point="mpi.py",
    source_dir=str(Path(__file__).parent.parent / "code"),
    role="arn:aws:iam::111122223333:role/SageMakerRole",
    framework_version="2.16",
    py_version="py310",
    instance_count=2,
    instance_type="ml.c5.xlarge",
    distribution={"mpi": {"enabled": True, "processes_per_host": 2}},
    hyperparameters={"epochs": 3, "name": 'it\'s a "b"'},
    metric_definitions=[{"Name": "loss", "Regex": "loss: ([0-9.]+);"}],
    tags=[{"Key": "team", "Value": "vision"}],
)
estimator.fit(wait=True, logs=True)
print("model:", estimator.model_data)

again = TensorFlow.attach(estimator.latest_training_job.name)
print("attached:", again.latest_training_job.name, again.model_data, again.hyperparameters()["epochs"])
print(again.training_job_analytics.dataframe())
