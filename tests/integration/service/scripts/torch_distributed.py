"""A training script as it is written for SageMaker."""

from pathlib import Path

from sagemaker.pytorch import PyTorch

estimator = PyTorch(
    entry_point="torch_env.py",
    source_dir=str(Path(__file__).parent.parent / "code"),
    framework_version="2.2.0",
    py_version="py310",
    instance_count=2,
    instance_type="ml.p4d.24xlarge",
    distribution={"torch_distributed": {"enabled": True}},
)
estimator.fit(wait=True, logs=True)
