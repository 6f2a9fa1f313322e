"""A one-second script on two containers, under fleetfit or the official SageMaker SDK's local mode, in either's Python.

``python in_containers.py fleetfit|official IMAGE FOLDER`` writes the seconds of ``fit()`` to ``FOLDER/seconds``.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

SCRIPT = "import time\n\ntime.sleep(1)\n"


def fleetfit(image: str, code: Path) -> Any:
    """Our estimator."""
    from estimators import PreflightWarning, TensorFlow

    warnings.simplefilter("ignore", PreflightWarning)
    return TensorFlow(
        entry_point="train.py", source_dir=str(code), image_uri=image, instance_type="local", instance_count=2,
        model_dir=False,
    )  # fmt: skip


def official(image: str, code: Path) -> Any:
    """The SDK 2.x's, without AWS: its code and outputs stay on this machine, and it sends no telemetry."""
    config, root = code.parent / "sagemaker.yaml", code.parent / "root"
    config.write_text("SchemaVersion: '1.0'\nSageMaker:\n  PythonSDK:\n    Modules:\n      TelemetryOptOut: true\n")
    os.environ["SAGEMAKER_USER_CONFIG_OVERRIDE"] = str(config)
    root.mkdir(exist_ok=True)
    import boto3
    from sagemaker.estimator import Estimator
    from sagemaker.local import LocalSession

    aws = boto3.Session(region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="x")
    session = LocalSession(boto_session=aws, default_bucket="none")
    session.config = {"local": {"local_code": True, "container_root": str(root)}}
    return Estimator(
        entry_point="train.py", source_dir=str(code), image_uri=image, instance_type="local", instance_count=2,
        role="arn:aws:iam::000000000000:role/me", sagemaker_session=session, output_path=f"file://{code.parent}/out",
    )  # fmt: skip


def main() -> None:
    """Make the estimator, then time ``fit()``."""
    kind, image, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    code = folder / "code"
    code.mkdir()
    (code / "train.py").write_text(SCRIPT)
    estimator = {"fleetfit": fleetfit, "official": official}[kind](image, code)
    began = time.monotonic()
    estimator.fit(logs=False)
    (folder / "seconds").write_text(str(time.monotonic() - began))


if __name__ == "__main__":
    main()
