"""A script that fails, as it is written for SageMaker."""

from pathlib import Path

from sagemaker.exceptions import UnexpectedStatusException
from sagemaker.tensorflow import TensorFlow

estimator = TensorFlow(
    entry_point="failing.py",
    source_dir=str(Path(__file__).parent.parent / "code"),
    role="arn:aws:iam::111122223333:role/SageMakerRole",
    framework_version="2.16",
    py_version="py310",
    instance_count=1,
    instance_type="ml.c5.xlarge",
)
try:
    estimator.fit()
except UnexpectedStatusException as error:
    print("caught:", error)
