"""Spot instances with checkpoints, twice, as it is written for SageMaker."""

from pathlib import Path

import sagemaker
from sagemaker.tensorflow import TensorFlow

session = sagemaker.Session()
for _ in range(2):
    estimator = TensorFlow(
        entry_point="spot.py",
        source_dir=str(Path(__file__).parent.parent / "code"),
        role="SageMakerRole",
        framework_version="2.16",
        py_version="py310",
        instance_count=1,
        instance_type="ml.p3.2xlarge",
        use_spot_instances=True,
        max_run=3600,
        max_wait=7200,
        checkpoint_s3_uri=f"s3://{session.default_bucket()}/checkpoints/spot",
        sagemaker_session=session,
    )
    estimator.fit()
