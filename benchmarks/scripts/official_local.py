"""One ``fit()`` of the official SageMaker SDK 2.x's local mode on two hosts, in an environment that has it.

    python official_local.py IMAGE SOURCE_DIR FOLDER

It runs ``sleep.py`` of SOURCE_DIR and prints how long ``fit()`` took, in seconds. Nothing of it needs AWS: the code is
mounted (``local_code``), the output stays below FOLDER, the keys are made up, telemetry is off.
"""

import sys
import time

import boto3
from sagemaker.estimator import Estimator
from sagemaker.local import LocalSession

_NO_TELEMETRY = {"SchemaVersion": "1.0", "SageMaker": {"PythonSDK": {"Modules": {"TelemetryOptOut": True}}}}


def main(image: str, source_dir: str, folder: str) -> None:
    """Measure one ``fit()``, without the import before it."""
    session = LocalSession(
        boto_session=boto3.Session(region_name="us-east-1", aws_access_key_id="none", aws_secret_access_key="none"),
        default_bucket="none",
        sagemaker_config=_NO_TELEMETRY,
    )
    session.config = {"local": {"local_code": True, "container_root": folder}}
    estimator = Estimator(
        image_uri=image,
        role="arn:aws:iam::000000000000:role/none",
        instance_type="local",
        instance_count=2,
        entry_point="sleep.py",
        source_dir=source_dir,
        output_path=f"file://{folder}/output",
        sagemaker_session=session,
    )
    began = time.time()
    estimator.fit()
    print("\nseconds", time.time() - began)


if __name__ == "__main__":
    main(*sys.argv[1:])
