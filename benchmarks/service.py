"""The endpoint: requests per second, what it adds to ``fit()``, and a long log to a client that polls."""

from __future__ import annotations

import argparse
import contextlib
import functools
import http.client
import io
import json
import os
import signal
import statistics
import subprocess
import sys
import tarfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.harness import Bar, Numbers, Quiet, Row, median_with_interval
from container.system import processes

_JOBS = 1000
_REQUESTS = 1000
_LINES = 100_000
_GROUP = "/aws/sagemaker/TrainingJobs"
_RATE_BAR = 500
_FIRST_LINE_BAR = 0.5

_FIRST_LINE = "import time\nprint('at', time.time(), flush=True)\n"
_TALK = f"for number in range({_LINES}):\n    print('line', number)\n"


class Endpoint:
    """A ``fleetfit serve`` of the benchmark's own.

    Args:
        home: Its ``$FLEETFIT_HOME``.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        file = home / "endpoint.env"
        words = ["--port", "0", "--s3-port", "0", "--no-profile", "--max-jobs", "4", "--env-file", str(file)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "estimators.cli.main", "serve", *words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        while not file.exists():
            if self.process.poll() is not None:
                raise RuntimeError("fleetfit serve does not start: run it by hand to see why.")
            time.sleep(0.02)
        self.variables = dict(line.split("=", 1) for line in file.read_text().splitlines())
        os.environ.update({name: value for name, value in self.variables.items() if name.startswith("AWS_")})

    def close(self) -> None:
        """End it."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()

    def client(self, service: str) -> Any:
        """A boto3 client."""
        import boto3

        return boto3.session.Session().client(service)

    @property
    def address(self) -> str:
        """Host and port."""
        return self.variables["AWS_ENDPOINT_URL"].partition("//")[2]

    def signed(self, service: str, target: str, parameters: Any) -> tuple[dict[str, str], bytes]:
        """A request that may be sent for a quarter of an hour: a client's own signing is not what is measured."""
        from botocore.auth import SigV4Auth
        from botocore.awsrequest import AWSRequest
        from botocore.credentials import Credentials

        body = json.dumps(parameters).encode()
        headers = {"X-Amz-Target": target, "Content-Type": "application/x-amz-json-1.1", "Host": self.address}
        request = AWSRequest("POST", f"http://{self.address}/", headers=headers, data=body)
        keys = Credentials(self.variables["AWS_ACCESS_KEY_ID"], self.variables["AWS_SECRET_ACCESS_KEY"])
        SigV4Auth(keys, service, self.variables["AWS_REGION"]).add_auth(request)
        return dict(request.headers), body

    def request(self, name: str, script: str) -> dict[str, Any]:
        """A CreateTrainingJob request for a script, whose archive is uploaded."""
        bucket = self.variables["FLEETFIT_DEFAULT_BUCKET"]
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w:gz") as tar:
            entry = tarfile.TarInfo("train.py")
            entry.size = len(script)
            tar.addfile(entry, io.BytesIO(script.encode()))
        self.client("s3").put_object(Bucket=bucket, Key=f"{name}/sourcedir.tar.gz", Body=archive.getvalue())
        return {
            "TrainingJobName": name,
            "RoleArn": "arn:aws:iam::000000000000:role/me",
            "AlgorithmSpecification": {"TrainingImage": "tensorflow-training", "TrainingInputMode": "File"},
            "OutputDataConfig": {"S3OutputPath": f"s3://{bucket}/out"},
            "ResourceConfig": {"InstanceType": "ml.m5.xlarge", "InstanceCount": 1, "VolumeSizeInGB": 1},
            "StoppingCondition": {"MaxRuntimeInSeconds": 600},
            "HyperParameters": {
                "sagemaker_program": "train.py",
                "sagemaker_submit_directory": f"s3://{bucket}/{name}/sourcedir.tar.gz",
            },
        }


def make_jobs(home: Path, count: int) -> list[str]:
    """Records of jobs that are over, each with a hundred lines."""
    from container.contract.wire import Piece
    from estimators.records import status as statuses
    from estimators.records.logs import LogWriter
    from estimators.records.record import JobRecord
    from estimators.records.states import SecondaryStatus

    names = [f"bench-{number:04d}" for number in range(count)]
    for name in names:
        record = JobRecord.create(name, home)
        request = {
            "TrainingJobName": name,
            "AlgorithmSpecification": {"TrainingInputMode": "File"},
            "OutputDataConfig": {"S3OutputPath": "s3://bucket/out"},
            "ResourceConfig": {"InstanceType": "local_process", "InstanceCount": 1},
            "HyperParameters": {"sagemaker_program": '"train.py"', "epochs": "3"},
        }
        record.write_request(request)
        status = statuses.new_status(request, 1000.0)
        for step in (SecondaryStatus.TRAINING, SecondaryStatus.UPLOADING, SecondaryStatus.COMPLETED):
            status = statuses.transition(status, step, 1001.0)
        writer = LogWriter(record)
        for number in range(100):
            writer.write(Piece("algo-1", "rank 0", b"step %d: loss 0.123, accuracy 0.9\n" % number), 10**12 + number)
        writer.flush()
        record.write_status(status)
        record.release()
    return names


def _rate(endpoint: Endpoint, requests: list[tuple[dict[str, str], bytes]]) -> Numbers:
    """Requests per second of one client on one connection."""
    connection = http.client.HTTPConnection(endpoint.address)
    start = time.perf_counter()
    for headers, body in requests:
        connection.request("POST", "/", body, headers)
        answer = connection.getresponse()
        content = answer.read()
        if answer.status != 200:
            raise RuntimeError(content.decode())
    taken = time.perf_counter() - start
    connection.close()
    return {"rate": len(requests) / taken}


def _rate_rows(endpoint: Endpoint, rounds: int, quiet: Quiet, samples: dict[str, Any]) -> list[Row]:
    names = make_jobs(endpoint.home, _JOBS)
    count = min(_REQUESTS, len(names))
    describe = [
        endpoint.signed("sagemaker", "SageMaker.DescribeTrainingJob", {"TrainingJobName": name})
        for name in names[:count]
    ]
    read = [
        endpoint.signed(
            "logs",
            "Logs_20140328.GetLogEvents",
            {"logGroupName": _GROUP, "logStreamName": f"{name}/algo-1-1000", "startFromHead": True},
        )
        for name in names[:count]
    ]
    ways = {
        "DescribeTrainingJob": functools.partial(_rate, endpoint, describe),
        "GetLogEvents": functools.partial(_rate, endpoint, read),
    }
    values = harness.alternate(rounds, ways, quiet)
    samples["rates"] = values
    return [
        Row(
            what=f"{way}, {_JOBS} jobs on record, one client",
            estimate=median_with_interval([numbers["rate"] for numbers in values[way]]),
            unit="requests/s",
            bar=Bar(limit=_RATE_BAR, at_least=True),
        )
        for way in ways
    ]


def _by_fit() -> Numbers:
    """Seconds from ``fit()`` to the script's first line."""
    from estimators import PreflightWarning, TensorFlow

    folder = Path(os.environ["FLEETFIT_HOME"]) / "code"
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(_FIRST_LINE)
    estimator = TensorFlow(entry_point="train.py", source_dir=str(folder), instance_type="local_process")
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore", PreflightWarning)
        start = time.time()
        job = estimator.fit()
    at = next(float(line.text.split()[1]) for line in job.log_lines() if line.text.startswith("at "))
    harness.wait_for_exit(job.record.read_status()["Fleetfit"]["supervisor_pid"])
    return {"first line": at - start}


def _by_endpoint(endpoint: Endpoint, numbers: Iterator[int]) -> Numbers:
    """Seconds from CreateTrainingJob to the script's first line."""
    from estimators import TrainingJob

    name = f"first-{next(numbers)}"
    sagemaker = endpoint.client("sagemaker")
    sagemaker.list_training_jobs(MaxResults=1)  # a client's own start is not what is measured
    request = endpoint.request(name, _FIRST_LINE)
    start = time.time()
    sagemaker.create_training_job(**request)
    sagemaker.get_waiter("training_job_completed_or_stopped").wait(
        TrainingJobName=name, WaiterConfig={"Delay": 0.1, "MaxAttempts": 600}
    )
    job = TrainingJob.attach(name)
    at = next(float(line.text.split()[1]) for line in job.log_lines() if line.text.startswith("at "))
    harness.wait_for_exit(job.record.read_status()["Fleetfit"]["supervisor_pid"])
    return {"first line": at - start}


def _first_line_rows(endpoint: Endpoint, rounds: int, quiet: Quiet, samples: dict[str, Any]) -> list[Row]:
    numbers = iter(range(1_000_000))
    ways = {"fit()": _by_fit, "endpoint": functools.partial(_by_endpoint, endpoint, numbers)}
    values = harness.alternate(rounds, ways, quiet)
    samples["first line"] = values
    pairs = zip(values["endpoint"], values["fit()"], strict=True)
    return [
        Row(
            what="CreateTrainingJob to the script's first line − fit() to it",
            estimate=median_with_interval([there["first line"] - here["first line"] for there, here in pairs]),
            unit="s",
            bar=Bar(limit=_FIRST_LINE_BAR),
            beside={way: statistics.median(item["first line"] for item in values[way]) for way in ways},
        )
    ]


def _talk(endpoint: Endpoint, numbers: Iterator[int]) -> Numbers:
    """Lines per second that a polling client gets of a job that prints as fast as it can; every line is checked."""
    name = f"talk-{next(numbers)}"
    sagemaker, logs = endpoint.client("sagemaker"), endpoint.client("logs")
    sagemaker.create_training_job(**endpoint.request(name, _TALK))
    lines: list[str] = []
    token: dict[str, str] = {}
    stream = ""
    start = 0.0
    over = False
    while True:
        if not stream:
            found = logs.describe_log_streams(logGroupName=_GROUP, logStreamNamePrefix=f"{name}/")["logStreams"]
            stream = found[0]["logStreamName"] if found else ""
            continue
        answer = logs.get_log_events(logGroupName=_GROUP, logStreamName=stream, startFromHead=True, **token)
        token = {"nextToken": answer["nextForwardToken"]}
        start = start or time.perf_counter()
        lines += [event["message"] for event in answer["events"]]
        if not answer["events"]:
            if over:
                break
            status = sagemaker.describe_training_job(TrainingJobName=name)["TrainingJobStatus"]
            over = status not in ("InProgress", "Stopping")
    said = [line for line in lines if line.startswith("line ")]
    assert said == [f"line {number}" for number in range(_LINES)], "a line was lost, came twice or out of order"
    return {"lines/s": len(lines) / (time.perf_counter() - start)}


def run(options: argparse.Namespace) -> None:
    """Measure and record."""
    rounds = options.alternations or 10
    samples: dict[str, Any] = {}
    processes.become_subreaper()  # the jobs' supervisors are this benchmark's own load, whoever started them
    with harness.own_home() as home:
        quiet = Quiet(options.patience)
        endpoint = Endpoint(Path(home))
        try:
            rows = _rate_rows(endpoint, rounds, quiet, samples)
            rows += _first_line_rows(endpoint, rounds, quiet, samples)
            talk = functools.partial(_talk, endpoint, iter(range(1_000_000)))
            values = harness.alternate(max(1, rounds // 3), {"polling client": talk}, quiet)
        finally:
            endpoint.close()
    samples["lines"] = values
    rows.append(
        Row(
            what=f"{_LINES:,} lines to a polling client while they are printed, none lost, twice or out of order",
            estimate=median_with_interval([numbers["lines/s"] for numbers in values["polling client"]]),
            unit="lines/s",
        )
    )
    harness.record("service", rows, samples, quiet, dry=options.dry)
