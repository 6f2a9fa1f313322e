"""The addresses of AWS's images, which `fit()` on `ml.*` takes from the SDK (not a user's script)."""

import sys
import types
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[4]))
from estimators.backends.sagemaker import images
from estimators.job.errors import ConfigurationError

for version, kind in (("2.16", "ml.c5.xlarge"), ("2.16", "ml.p3.2xlarge"), ("1.99", "ml.c5.xlarge")):
    settings = types.SimpleNamespace(framework_version=version, py_version="py310", instance_type=kind)
    try:
        print("image:", images.aws_image(settings, types.SimpleNamespace(region="eu-west-1")))
    except ConfigurationError as error:
        print("refused:", error)
