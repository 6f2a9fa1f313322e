"""``@remote`` beside that of the SageMaker SDK 2.x, which is installed in an environment of its own."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import clients
import pytest

from estimators.client.functions import packing, remote, remote_defaults

#: Ours alone.
OURS = {"capture_limit", "distribution", "framework_version", "run_options"}

ASKED = """
import inspect, json, sys
from sagemaker.config.config_schema import SAGEMAKER_PYTHON_SDK_CONFIG_SCHEMA as schema
from sagemaker.remote_function import RemoteExecutor, remote
from sagemaker.remote_function.client import Future

namespace = {}
exec(sys.argv[1], namespace)
refused = []
for args, kwargs in json.loads(sys.argv[2]):
    try:
        RemoteExecutor._validate_submit_args(namespace["call"], *args, **kwargs)
        refused.append(None)
    except Exception as error:
        refused.append(type(error).__name__)
for name in ("SageMaker", "PythonSDK", "Modules", "RemoteFunction"):
    schema = schema["properties"][name]
said = {
    "decorator": list(inspect.signature(remote).parameters),
    "executor": list(inspect.signature(RemoteExecutor).parameters),
    "future": [name for name in vars(Future) if not name.startswith("_")],
    "members": list(schema["properties"]),
    "refused": refused,
}
print(json.dumps(said))
"""

CALL = "def call(a, b=2, *, c=3, d): pass"
CALLS: list[tuple[list[Any], dict[str, Any]]] = [
    ([1], {"d": 4}),
    ([1, 2], {"c": 3, "d": 4}),
    ([], {"a": 1, "d": 4}),
    ([], {"d": 4}),
    ([1], {}),
    ([1, 2, 3], {"d": 4}),
    ([1], {"d": 4, "e": 5}),
    ([1], {"a": 1, "d": 4}),
]


@pytest.mark.network
def test_arguments_defaults_and_refusals_are_those_of_the_sdk(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("SchemaVersion: '1.0'\n")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "SAGEMAKER_"))}
    environment |= {"SAGEMAKER_USER_CONFIG_OVERRIDE": str(tmp_path), "AWS_DEFAULT_REGION": "us-east-1"}
    done = subprocess.run(
        [clients.python_of("sagemaker-2"), "-c", ASKED, CALL, json.dumps(CALLS)],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])

    ours = {*remote._NAMES, *remote._NOT_OURS, *remote._OTHERS}
    assert ours - OURS == {*said["decorator"]} - {"_func"}
    assert ours - OURS == {*said["executor"]} - {"max_parallel_jobs"}
    assert {*said["future"]} - {*dir(remote.RemoteFuture)} == {"from_describe_response"}
    assert {*remote_defaults.MEMBERS, "VpcConfig"} == {*said["members"]}

    namespace: dict[str, Any] = {}
    exec(CALL, namespace)
    refused = []
    for args, kwargs in CALLS:
        try:
            packing.check_call(namespace["call"], args, kwargs)
            refused.append(None)
        except TypeError as error:
            refused.append(type(error).__name__)
    assert refused == said["refused"] and refused.count(None) == 3
