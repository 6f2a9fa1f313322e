"""A real endpoint for tests: ``fleetfit serve`` as a process, with a home and AWS configuration files of its own."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from waiting import until

#: Variables of the caller's that would lead a client elsewhere.
_FOREIGN = ("AWS_", "SAGEMAKER_", "FLEETFIT_")

#: The end of what an endpoint prints when it serves.
_PRINTED = "Ctrl-C ends the endpoint."

#: The TrainingImage of jobs that boto3 sends: AWS's own, which no process looks at.
IMAGE = "763104351884.dkr.ecr.us-east-1.amazonaws.com/tensorflow-training:2.16-cpu-py310"


class Serving:
    """A running endpoint.

    Args:
        folder: For its home, its log and the client's files.
        arguments: More arguments of ``fleetfit serve``.
    """

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.log = folder / "serve.log"
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        self.start()

    def start(self) -> None:
        """Start it (again), and wait until it answers."""
        self.env_file.unlink(missing_ok=True)
        before = self.said().count(_PRINTED) if self.log.exists() else 0
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "estimators.cli.main", "serve", "--port", "0", "--s3-port", "0"),
                    *("--env-file", str(self.env_file), *self._arguments),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**self.clean(os.environ), "FLEETFIT_HOME": str(self.home), **self._files(), **self._config()},
                start_new_session=True,
            )
        until(self.env_file.exists, check=self._check_alive)
        # What by_profile() reads is printed after that.
        until(lambda: self.said().count(_PRINTED) > before, check=self._check_alive, say=self.said)

    def _check_alive(self) -> None:
        assert self._process is not None
        assert self._process.poll() is None, self.said()

    @property
    def env_file(self) -> Path:
        """What the clients set."""
        return self.folder / "endpoint.env"

    @property
    def pid(self) -> int:
        """The endpoint's process."""
        assert self._process is not None
        return self._process.pid

    def said(self) -> str:
        """What it printed."""
        return self.log.read_text()

    def kill(self, number: int = signal.SIGKILL) -> int:
        """End it by a signal; returns its exit status."""
        assert self._process is not None
        self._process.send_signal(number)
        return self._process.wait(30)

    def close(self) -> None:
        """End it and everything of its home."""
        if self._process is not None and self._process.poll() is None:
            self.kill(signal.SIGTERM)
        for name in ("s3.json",):
            with contextlib.suppress(OSError, ValueError, KeyError, ProcessLookupError):
                os.kill(json.loads((self.home / "service" / name).read_text())["pid"], signal.SIGTERM)

    # --- clients ---

    @staticmethod
    def clean(environment: Any) -> dict[str, str]:
        """An environment without anything that concerns AWS or fleetfit."""
        kept = {name: value for name, value in environment.items() if not name.startswith(_FOREIGN)}
        return {**kept, **{name: os.environ[name] for name in ("FLEETFIT_CACHE",) if name in os.environ}}

    def _files(self) -> dict[str, str]:
        return {
            "AWS_CONFIG_FILE": str(self.folder / "aws-config"),
            "AWS_SHARED_CREDENTIALS_FILE": str(self.folder / "aws-credentials"),
        }

    def _config(self) -> dict[str, str]:
        """Where the SDK's configuration is, for the endpoint as for a client whose home is the folder."""
        return {"XDG_CONFIG_HOME": str(self.folder / ".config")}

    @property
    def variables(self) -> dict[str, str]:
        """The env file's."""
        return dict(word.split("=", 1) for word in shlex.split(self.env_file.read_text()))

    def by_profile(self) -> dict[str, str]:
        """The environment of a client that has set what `fleetfit serve` printed."""
        printed = [line for line in self.said().splitlines() if line.startswith("export ")]
        exported = dict(word.split("=", 1) for line in printed for word in shlex.split(line)[1:])
        return {**self.clean(os.environ), **exported, **self._files(), **self._config(), "HOME": str(self.folder)}

    def session(self) -> Any:
        """A boto3 session."""
        import boto3

        values = self.variables
        return boto3.session.Session(
            aws_access_key_id=values["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=values["AWS_SECRET_ACCESS_KEY"],
            region_name=values["AWS_REGION"],
        )

    def client(self, service: str, **arguments: Any) -> Any:
        """A boto3 client of the endpoint, or of its S3 server."""
        values = self.variables
        endpoint = values["AWS_ENDPOINT_URL_S3" if service == "s3" else "AWS_ENDPOINT_URL"]
        return self.session().client(service, endpoint_url=endpoint, **arguments)

    @property
    def bucket(self) -> Path:
        """The default bucket's folder."""
        return self.home / "s3" / self.variables["FLEETFIT_DEFAULT_BUCKET"]

    def request(self, name: str, script: str, *, hosts: int = 1, **members: Any) -> dict[str, Any]:
        """A CreateTrainingJob request that runs a script, which is uploaded for it.

        Args:
            name: The job's name.
            script: The text of ``train.py``.
            hosts: How many hosts.
            members: Further members; ``HyperParameters`` are added to the platform's.
        """
        archive = self.bucket / name / "source" / "sourcedir.tar.gz"
        write_archive(archive, {"train.py": script})
        uri = f"s3://{archive.relative_to(self.home / 's3')}"
        parameters = {"sagemaker_program": "train.py", "sagemaker_submit_directory": uri}
        return {
            "TrainingJobName": name,
            "RoleArn": "arn:aws:iam::000000000000:role/me",
            "AlgorithmSpecification": {"TrainingImage": IMAGE, "TrainingInputMode": "File"},
            "OutputDataConfig": {"S3OutputPath": f"s3://{self.bucket.name}/out"},
            "ResourceConfig": {"InstanceType": "ml.m5.xlarge", "InstanceCount": hosts, "VolumeSizeInGB": 1},
            "StoppingCondition": {"MaxRuntimeInSeconds": 600},
            **members,
            "HyperParameters": {**parameters, **members.get("HyperParameters", {})},
        }


def write_archive(path: Path, files: dict[str, str]) -> None:
    """Pack texts as a ``.tar.gz``."""
    import io
    import tarfile

    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as tar:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text.encode())
            tar.addfile(entry, io.BytesIO(text.encode()))


def status_of(connection: socket.socket) -> int | None:
    """Read the next HTTP response, and return its status; None where the connection is closed instead."""
    response = http.client.HTTPResponse(connection)
    try:
        response.begin()
        response.read()
    except (ConnectionResetError, http.client.RemoteDisconnected):
        return None
    return response.status
