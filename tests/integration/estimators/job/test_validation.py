"""Requests are held to botocore's model, and to what SageMaker says beyond it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from estimators.job import service_model

LOCAL: dict[str, Any] = {
    "TrainingJobName": "job-1",
    "RoleArn": "arn:aws:iam::000000000000:role/fleetfit-local",
    "AlgorithmSpecification": {"TrainingInputMode": "File"},
    "OutputDataConfig": {"S3OutputPath": "file:///tmp/out"},
    "ResourceConfig": {"InstanceType": "local_process", "InstanceCount": 2, "VolumeSizeInGB": 30},
    "StoppingCondition": {"MaxRuntimeInSeconds": 60},
    "HyperParameters": {"epochs": "3"},
    "Environment": {"A": "b"},
}


# --- the cache of the model ---


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLEETFIT_CACHE", str(tmp_path / "cache"))
    service_model.load_shapes.cache_clear()
    yield tmp_path / "cache"
    service_model.load_shapes.cache_clear()


def test_validation_does_not_import_botocore(cache: Path) -> None:
    service_model.load_shapes()
    program = (
        "import json, sys\n"
        "from estimators.job import validation\n"
        f"validation.check_request(json.loads({json.dumps(LOCAL)!r}))\n"
        "print([name for name in sys.modules if name.startswith('boto')])"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
