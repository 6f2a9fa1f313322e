"""A training script as it is written for SageMaker."""

from pathlib import Path

from sagemaker.tensorflow import TensorFlow

estimator = TensorFlow(
    entry_point="tf_config.py",
    source_dir=str(Path(__file__).parent.parent / "code"),
    framework_version="2.16",
    py_version="py310",
    instance_count=2,
    instance_type="ml.c5.xlarge",
    distribution={"multi_worker_mirrored_strategy": {"enabled": True}},
)
estimator.fit(wait=True, logs=True)
print("model:", estimator.model_data)
