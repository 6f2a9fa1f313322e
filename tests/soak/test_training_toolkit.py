"""What scripts are told, beside what SageMaker's own training toolkit tells them, which is installed for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from container.contract.environment import Environment
from container.contract.layout import MLTree
from container.system.archive import extract
from container.system.host_machine import this_machine

pytestmark = pytest.mark.soak

VERSION = "5.1.4"
SHOW = """
import json, os
before = set(os.environ)
from sagemaker_training import environment
found = environment.Environment().to_env_vars()
added = {name: os.environ[name] for name in set(os.environ) - before}
print(json.dumps({**found, **added}))
"""

CONFIGURATION: dict[str, dict[str, Any]] = {
    "hyperparameters": {
        "epochs": "3",
        "sagemaker_program": '"t.py"',
        "sagemaker_region": '"eu-west-1"',
        "sagemaker_job_name": '"job-1"',
        "sagemaker_mpi_enabled": "true",
        "sagemaker_container_log_level": "20",
    },
    "resource_config": {
        "current_host": "algo-1",
        "hosts": ["algo-1", "algo-2"],
        "network_interface_name": "lo",
        "current_group_name": "homogeneousCluster",
        "current_instance_type": "local_process",
        "instance_groups": [
            {
                "instance_group_name": "homogeneousCluster",
                "instance_type": "local_process",
                "hosts": ["algo-1", "algo-2"],
            }
        ],
    },
    "input_data_config": {"train": {"TrainingInputMode": "File"}},
}


@pytest.fixture
def theirs(tmp_path: Path) -> dict[str, str]:
    """The variables of SageMaker's toolkit. Its modules are enough, which need no compiler."""
    download = ["download", "-q", "--no-deps", "--no-binary", ":all:", "--dest", str(tmp_path)]
    subprocess.run([sys.executable, "-m", "pip", *download, f"sagemaker-training=={VERSION}"], check=True)
    extract(tmp_path / f"sagemaker_training-{VERSION}.tar.gz", tmp_path / "toolkit")
    tree = MLTree(tmp_path / "ml")
    tree.config.mkdir(parents=True)
    for path, name in (
        (tree.hyperparameters_file, "hyperparameters"),
        (tree.resource_config_file, "resource_config"),
        (tree.input_data_config_file, "input_data_config"),
    ):
        path.write_text(json.dumps(CONFIGURATION[name]))
    variables = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(tmp_path / "toolkit" / f"sagemaker_training-{VERSION}" / "src"),
        "SAGEMAKER_BASE_DIR": str(tree.base),
        "TRAINING_JOB_NAME": "job-1",
    }
    shown = subprocess.run([sys.executable, "-c", SHOW], env=variables, check=True, stdout=subprocess.PIPE)
    found: dict[str, str] = json.loads(shown.stdout)
    return found


def test_scripts_are_told_all_that_sagemakers_toolkit_tells(theirs: dict[str, str], tmp_path: Path) -> None:
    mine = Environment.from_config(
        base_dir=tmp_path / "ml", machine=this_machine(), job_name="job-1", **CONFIGURATION
    ).to_env_vars()
    assert {name: text for name, text in theirs.items() if name != "SM_TRAINING_ENV"}.items() <= mine.items()
    wanted, told = (json.loads(each["SM_TRAINING_ENV"]) for each in (theirs, mine))
    assert {name: told.get(name, "missing") for name in wanted} == wanted
