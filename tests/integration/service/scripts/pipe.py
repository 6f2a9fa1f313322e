"""Pipe mode with the objects dealt to the hosts, as it is written for SageMaker."""

import tempfile
from pathlib import Path

import sagemaker
from sagemaker.inputs import TrainingInput
from sagemaker.tensorflow import TensorFlow

session = sagemaker.Session()
with tempfile.TemporaryDirectory() as folder:
    for number in range(6):
        Path(folder, f"part-{number}.txt").write_text(f"line-{number}\n")
    data = session.upload_data(folder, key_prefix="numbers")

estimator = TensorFlow(
    entry_point="pipe.py",
    source_dir=str(Path(__file__).parent.parent / "code"),
    role="SageMakerRole",
    framework_version="2.16",
    py_version="py310",
    instance_count=2,
    instance_type="ml.c5.xlarge",
    sagemaker_session=session,
)
estimator.fit({"train": TrainingInput(data, distribution="ShardedByS3Key", input_mode="Pipe")})
