"""boto3 against a real endpoint: every operation, what is refused, and what a restart keeps."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import signal
import socket
import tarfile
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import serving
import signing
from botocore.config import Config
from botocore.exceptions import ClientError
from serving import Serving
from waiting import until

from estimators.service.settings import Keys

GROUP = "/aws/sagemaker/TrainingJobs"
NAMESPACE = GROUP

#: Says that it is there, and goes on until it is told to.
WAITING = """
import os, signal, sys, time
def save(number, frame):
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("ready", os.environ.get("MARK"), flush=True)
number = 0
while not os.path.exists(os.environ["MARK"]):
    print("line", number, flush=True)
    number += 1
    time.sleep(0.02)
open(os.path.join(os.environ["SM_MODEL_DIR"], "weights"), "w").write(str(number))
print("end", number, flush=True)
"""


def refusal(call: Any, **arguments: Any) -> tuple[str, str]:
    with pytest.raises(ClientError) as caught:
        call(**arguments)
    error = caught.value.response["Error"]
    return error["Code"], error["Message"]


def status(client: Any, name: str) -> str:
    return str(client.describe_training_job(TrainingJobName=name)["TrainingJobStatus"])


def wait_until_over(client: Any, name: str) -> dict[str, Any]:
    waiter = client.get_waiter("training_job_completed_or_stopped")
    waiter.wait(TrainingJobName=name, WaiterConfig={"Delay": 0.2, "MaxAttempts": 300})
    described: dict[str, Any] = client.describe_training_job(TrainingJobName=name)
    return described


def streams(logs: Any, name: str) -> list[str]:
    answer = logs.describe_log_streams(logGroupName=GROUP, logStreamNamePrefix=f"{name}/")
    assert "nextToken" not in answer
    return [stream["logStreamName"] for stream in answer["logStreams"]]


def all_events(logs: Any, stream: str, **arguments: Any) -> list[dict[str, Any]]:
    """Everything of a stream, by the forward token."""
    found: list[dict[str, Any]] = []
    token: dict[str, Any] = {}
    while True:
        answer = logs.get_log_events(logGroupName=GROUP, logStreamName=stream, startFromHead=True, **arguments, **token)
        found += answer["events"]
        if answer["nextForwardToken"] == token.get("nextToken"):
            return found
        token = {"nextToken": answer["nextForwardToken"]}


@pytest.fixture(scope="module")
def sm(served: Serving) -> Any:
    return served.client("sagemaker")


@pytest.mark.landing
def test_a_job_from_creation_to_its_end(served: Serving, sm: Any) -> None:
    logs = served.client("logs")
    script = """
import json, os, sys
print("arguments", json.dumps(sys.argv[1:]))
print("api_key is", os.environ["API_KEY"])
print("secret is", os.environ["AWS_SECRET_ACCESS_KEY"])
for step in range(4):
    print(f"loss: {4 - step}")
print("file", open(os.path.join(os.environ["SM_CHANNEL_TRAIN"], "part")).read())
open(os.path.join(os.environ["SM_MODEL_DIR"], "weights"), "w").write("w")
"""
    (served.bucket / "data").mkdir()
    (served.bucket / "data" / "part").write_text("content")
    source = {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": f"s3://{served.bucket.name}/data"}}
    request = served.request(
        "whole",
        script,
        HyperParameters={"plain": "x y", "json": '"q"', "number": "3"},
        Environment={"API_KEY": "very-secret-value"},
        InputDataConfig=[{"ChannelName": "train", "DataSource": source}],
        Tags=[{"Key": "a", "Value": "1"}],
    )
    request["AlgorithmSpecification"]["MetricDefinitions"] = [{"Name": "loss", "Regex": "loss: ([0-9]+)"}]
    arn = sm.create_training_job(**request)["TrainingJobArn"]
    assert arn == "arn:aws:sagemaker:us-east-1:000000000000:training-job/whole"
    assert refusal(sm.create_training_job, **request)[0] == "ResourceInUse"
    described = wait_until_over(sm, "whole")
    assert described["TrainingJobStatus"] == described["SecondaryStatus"] == "Completed", described
    secondary = [step["Status"] for step in described["SecondaryStatusTransitions"]]
    assert secondary == ["Starting", "Downloading", "Training", "Uploading", "Completed"]
    assert all(step["EndTime"] >= step["StartTime"] for step in described["SecondaryStatusTransitions"])
    for member in ("ResourceConfig", "InputDataConfig", "AlgorithmSpecification", "StoppingCondition"):
        assert json.dumps(request[member], sort_keys=True) == json.dumps(described[member], sort_keys=True)
    assert described["HyperParameters"] == request["HyperParameters"]
    assert described["Environment"] == {"API_KEY": "***"}
    assert described["TrainingJobArn"] == arn
    assert described["FinalMetricDataList"][0]["Value"] == 1.0
    bucket, _, key = described["ModelArtifacts"]["S3ModelArtifacts"].removeprefix("s3://").partition("/")
    body = served.client("s3").get_object(Bucket=bucket, Key=key)["Body"]
    with tarfile.open(fileobj=body, mode="r|gz") as tar:
        assert tar.next().name == "weights"  # type: ignore[union-attr]

    (stream,) = streams(logs, "whole")
    assert stream == f"whole/algo-1-{int(described['CreationTime'].timestamp())}"
    lines = [event["message"] for event in all_events(logs, stream)]
    said = [line for line in lines if line.startswith("arguments")]
    assert said == ['arguments ["--json", "q", "--number", "3", "--plain", "x y"]']
    assert "api_key is ***" in lines
    assert "secret is ***" in lines
    assert "file content" in lines
    metrics = served.client("cloudwatch").get_metric_statistics(
        Namespace=NAMESPACE,
        MetricName="loss",
        Dimensions=[{"Name": "TrainingJobName", "Value": "whole"}],
        StartTime=described["TrainingStartTime"],
        EndTime=described["TrainingEndTime"] + datetime.timedelta(seconds=1),
        Period=300,
        Statistics=["Average", "Minimum", "Maximum", "Sum", "SampleCount"],
    )
    (point,) = metrics["Datapoints"]
    names = ("Average", "Minimum", "Maximum", "Sum", "SampleCount")
    assert [point[name] for name in names] == [2.5, 1.0, 4.0, 10.0, 4.0]
    assert refusal(sm.stop_training_job, TrainingJobName="whole") == (
        "ValidationException",
        "The request was rejected because the training job is in status Completed.",
    )


def test_events_by_time_by_token_and_by_words(served: Serving, sm: Any) -> None:
    logs = served.client("logs")
    sm.create_training_job(**served.request("talk", "for number in range(2500):\n    print('line', number)"))
    wait_until_over(sm, "talk")
    (stream,) = streams(logs, "talk")
    events = [event for event in all_events(logs, stream, limit=900) if event["message"].startswith("line")]
    assert [event["message"] for event in events] == [f"line {number}" for number in range(2500)]
    times = [event["timestamp"] for event in events]
    assert times == sorted(times)
    middle = times[1250]
    assert all_events(logs, stream, startTime=middle) == [
        e for e in all_events(logs, stream) if e["timestamp"] >= middle
    ]
    assert all_events(logs, stream, endTime=middle) == [e for e in all_events(logs, stream) if e["timestamp"] < middle]
    last = logs.get_log_events(logGroupName=GROUP, logStreamName=stream, limit=10)
    before = logs.get_log_events(
        logGroupName=GROUP, logStreamName=stream, limit=10, nextToken=last["nextBackwardToken"]
    )
    whole = all_events(logs, stream)
    assert before["events"] + last["events"] == whole[-20:]
    found = logs.filter_log_events(
        logGroupName=GROUP, logStreamNamePrefix="talk/", filterPattern='"line 1" 2 -3', limit=50
    )
    wanted = [
        f"line {n}" for n in range(2500) if f"line {n}".startswith("line 1") and "2" in str(n) and "3" not in str(n)
    ]
    assert [event["message"] for event in found["events"]] == wanted[:50]
    pages = logs.get_paginator("filter_log_events").paginate(logGroupName=GROUP, logStreamNames=[stream], limit=1000)
    assert [event["message"] for page in pages for event in page["events"]] == [event["message"] for event in whole]
    assert refusal(logs.get_log_events, logGroupName=GROUP, logStreamName="talk/algo-2-1")[0].startswith("ResourceNot")
    assert refusal(logs.get_log_events, logGroupName="/other", logStreamName=stream)[0] == "ResourceNotFoundException"
    for token in ("f/x", "", "b/" + "9" * 80):
        assert refusal(logs.get_log_events, logGroupName=GROUP, logStreamName=stream, nextToken=token or "x")


def test_stop_lists_tags_update_and_delete(served: Serving, sm: Any, tmp_path: Path) -> None:
    mark = {"MARK": str(tmp_path / "never")}
    short = {**served.request("short", WAITING, Environment=mark), "StoppingCondition": {"MaxRuntimeInSeconds": 1}}
    sm.create_training_job(**short)
    sm.create_training_job(**served.request("stop-me", WAITING, Environment=mark, Tags=[{"Key": "a", "Value": "1"}]))
    until(lambda: status(sm, "stop-me") == "InProgress" and "ready" in text_of(served, "stop-me"))
    assert refusal(sm.delete_training_job, TrainingJobName="stop-me")[0] == "ResourceInUse"
    arn = sm.describe_training_job(TrainingJobName="stop-me")["TrainingJobArn"]
    sm.add_tags(ResourceArn=arn, Tags=[{"Key": "b", "Value": "2"}, {"Key": "a", "Value": "3"}])
    sm.delete_tags(ResourceArn=arn, TagKeys=["b"])
    assert sm.list_tags(ResourceArn=arn)["Tags"] == [{"Key": "a", "Value": "3"}]
    sm.update_training_job(TrainingJobName="stop-me", ResourceConfig={"KeepAlivePeriodInSeconds": 60})
    assert sm.describe_training_job(TrainingJobName="stop-me")["ResourceConfig"]["KeepAlivePeriodInSeconds"] == 60
    assert refusal(sm.update_training_job, TrainingJobName="stop-me", RemoteDebugConfig={"EnableRemoteDebug": True})
    sm.stop_training_job(TrainingJobName="stop-me")
    described = wait_until_over(sm, "stop-me")
    assert described["TrainingJobStatus"] == described["SecondaryStatus"] == "Stopped"
    assert "Stopping" in [step["Status"] for step in described["SecondaryStatusTransitions"]]
    assert "saved" in text_of(served, "stop-me")
    listed = sm.list_training_jobs(NameContains="stop", StatusEquals="Stopped")["TrainingJobSummaries"]
    assert [job["TrainingJobName"] for job in listed] == ["stop-me"]
    pages = sm.get_paginator("list_training_jobs").paginate(
        SortBy="Name", SortOrder="Descending", PaginationConfig={"PageSize": 1}
    )
    names = [job["TrainingJobName"] for page in pages for job in page["TrainingJobSummaries"]]
    assert names == sorted(names, reverse=True)
    assert "stop-me" in names
    assert sm.list_training_jobs(CreationTimeAfter=datetime.datetime(2100, 1, 1))["TrainingJobSummaries"] == []
    described = wait_until_over(sm, "short")
    assert (described["TrainingJobStatus"], described["SecondaryStatus"]) == ("Stopped", "MaxRuntimeExceeded")
    sm.delete_training_job(TrainingJobName="stop-me")
    missing = ("ValidationException", "Requested resource not found.")
    for call in (sm.describe_training_job, sm.stop_training_job, sm.delete_training_job):
        assert refusal(call, TrainingJobName="stop-me") == missing
    assert not (served.home / "jobs" / "stop-me").exists()


def text_of(served: Serving, name: str) -> str:
    """Everything that a job printed."""
    return "".join(path.read_text() for path in sorted((served.home / "jobs" / name).glob("hosts/*/logs/*/*.log")))


def test_what_cannot_be_is_refused_before_anything_is_there(served: Serving, sm: Any) -> None:
    good = served.request("refused", "print('x')")
    jobs = sorted(os.listdir(served.home / "jobs"))

    def why(**changed: Any) -> str:
        code, message = refusal(sm.create_training_job, **{**good, **changed})
        assert code == "ValidationException", (code, message)
        return message

    assert "regular expression pattern" in why(TrainingJobName="../../etc")
    assert "VpcConfig is not available" in why(VpcConfig={"SecurityGroupIds": ["sg-1"], "Subnets": ["subnet-1"]})
    gone = {**good["HyperParameters"], "sagemaker_submit_directory": f"s3://{served.bucket.name}/none.tar.gz"}
    assert "there is no object" in why(HyperParameters=gone)
    for uri in ("s3://../home/x", f"s3://{served.bucket.name}/../../service/keys.json", "s3://", "s3://./x"):
        assert "there is no object" in why(HyperParameters={**gone, "sagemaker_submit_directory": uri})
    evil = served.bucket / "evil.tar.gz"
    serving.write_archive(evil, {"../../outside.py": "x", "train.py": ""})
    directory = f"s3://{served.bucket.name}/evil.tar.gz"
    assert "leaves the folder" in why(HyperParameters={**gone, "sagemaker_submit_directory": directory})
    link = served.bucket / "link.tar.gz"
    link.symlink_to(served.home / "service" / "keys.json")
    directory = f"s3://{served.bucket.name}/link.tar.gz"
    assert "there is no object" in why(HyperParameters={**gone, "sagemaker_submit_directory": directory})
    assert sorted(os.listdir(served.home / "jobs")) == jobs
    assert refusal(sm.list_models)[0] == "UnknownOperationException"
    elsewhere = served.session().client(
        "sagemaker", endpoint_url=served.variables["AWS_ENDPOINT_URL"], region_name="eu-west-1"
    )
    code, message = refusal(elsewhere.create_training_job, **good)
    assert code == "InvalidSignatureException"
    assert "valid region, not 'eu-west-1'" in message
    assert refusal(served.client("iam").simulate_principal_policy, PolicySourceArn="a" * 20, ActionNames=["a:b"])[
        0
    ] == ("AccessDenied")
    assert served.client("iam").get_role(RoleName="me")["Role"]["Arn"] == "arn:aws:iam::000000000000:role/me"
    assert served.client("sts").get_caller_identity()["Account"] == "000000000000"

    # Half requests of nobody keep no client out.
    address = urllib.parse.urlsplit(served.client("sagemaker").meta.endpoint_url)
    with contextlib.ExitStack() as opened:
        for _ in range(300):
            stranger = opened.enter_context(socket.create_connection((str(address.hostname), int(address.port or 0))))
            with contextlib.suppress(OSError):  # it has had to make room already
                stranger.sendall(b"POST / HTTP/1.1\r\nContent-Length: 10\r\n\r\n{")
        client = served.client("sagemaker", config=Config(retries={"total_max_attempts": 1}))
        client.list_training_jobs()


# --- queue and restarts, with an endpoint of their own ---


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Serving]:
    endpoint = Serving(tmp_path / "own", "--no-profile", "--region", "eu-central-1")
    try:
        yield endpoint
    finally:
        endpoint.close()


def test_a_killed_endpoint_loses_no_job_and_no_line(own: Serving, tmp_path: Path) -> None:
    sm, logs = own.client("sagemaker"), own.client("logs")
    mark = tmp_path / "go-on"
    sm.create_training_job(**own.request("first", WAITING, Environment={"MARK": str(mark)}))
    sm.create_training_job(**own.request("second", "print('I am second')"))
    sm.create_training_job(**own.request("third", "print('I am third')"))
    spot = own.request("spot", "", EnableManagedSpotTraining=True)
    sm.create_training_job(**{**spot, "StoppingCondition": {"MaxRuntimeInSeconds": 1, "MaxWaitTimeInSeconds": 1}})
    waiting = sm.describe_training_job(TrainingJobName="second")
    assert (waiting["TrainingJobStatus"], waiting["SecondaryStatus"]) == ("InProgress", "Pending")
    sm.stop_training_job(TrainingJobName="third")  # it has not begun
    assert status(sm, "third") == "Stopped"
    until(lambda: "ready" in text_of(own, "first"))
    described = wait_until_over(sm, "spot")
    assert (described["TrainingJobStatus"], described["SecondaryStatus"]) == ("Stopped", "MaxWaitTimeExceeded")
    (stream,) = streams(logs, "first")
    answer = logs.get_log_events(logGroupName=GROUP, logStreamName=stream, startFromHead=True)
    seen, token = answer["events"], answer["nextForwardToken"]

    assert own.kill(signal.SIGKILL) == -signal.SIGKILL
    from estimators.records.record import JobRecord

    record = JobRecord.open("second", own.home)
    assert record.read_status()["TrainingJobStatus"] == "InProgress"  # it waits, and is not lost
    mark.touch()
    first = JobRecord.open("first", own.home)
    until(lambda: first.read_status()["TrainingJobStatus"] == "Completed")  # with nobody there
    assert first.read_status()["ModelArtifacts"]["S3ModelArtifacts"].startswith("s3://")
    assert list(own.bucket.glob("out/first/output/model.tar.gz"))

    own.start()
    sm, logs = own.client("sagemaker"), own.client("logs")
    assert wait_until_over(sm, "second")["TrainingJobStatus"] == "Completed"
    assert status(sm, "first") == "Completed"
    while (answer := logs.get_log_events(logGroupName=GROUP, logStreamName=stream, nextToken=token))["events"]:
        seen += answer["events"]
        token = answer["nextForwardToken"]
    assert seen == all_events(logs, stream)
    numbers = [int(event["message"].split()[1]) for event in seen if event["message"].startswith("line ")]
    assert numbers == list(range(len(numbers)))
    assert f"end {len(numbers)}" in [event["message"] for event in seen]


def test_an_endpoint_leaves_nothing_behind_and_there_is_one_for_a_home(own: Serving, tmp_path: Path) -> None:
    import subprocess
    import sys

    keeper = json.loads((own.home / "service" / "s3.json").read_text())["pid"]
    secret = own.variables["AWS_SECRET_ACCESS_KEY"]
    assert secret not in own.said()
    for pid in (own.pid, keeper):
        assert secret not in Path(f"/proc/{pid}/cmdline").read_text()
    done = subprocess.run(
        [sys.executable, "-m", "estimators.cli.main", "serve", "--port", "0", "--s3-port", "0", "--no-profile"],
        env={**own.clean(os.environ), "FLEETFIT_HOME": str(own.home)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "is running already" in done.stderr
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = subprocess.run(
            [sys.executable, "-m", "estimators.cli.main", "serve", "--port", "0", "--s3-port", port, "--no-profile"],
            env={**own.clean(os.environ), "FLEETFIT_HOME": str(tmp_path / "other")},
            capture_output=True,
            text=True,
        )
    assert (
        f"port {port} of 127.0.0.1 is not available: Address already in use. Choose another port with --s3-port."
        in (done.stderr)
    )
    os.kill(keeper, signal.SIGKILL)  # it is started again, at the same place
    before = own.variables["AWS_ENDPOINT_URL_S3"]
    place = own.home / "service" / "s3.json"
    until(lambda: place.exists() and json.loads(place.read_text() or "{}").get("pid") not in (None, keeper))
    assert json.loads(place.read_text())["endpoint"] == before
    assert own.client("s3").list_buckets()["Buckets"]
    keeper = json.loads(place.read_text())["pid"]
    host = own.variables["AWS_ENDPOINT_URL"].removeprefix("http://")
    keys = Keys(own.variables["AWS_ACCESS_KEY_ID"], secret)
    now = datetime.datetime.now(datetime.timezone.utc)
    headers, body = signing.signed("ListTrainingJobs", keys=keys, when=now, host=host, region="eu-central-1")
    lines = [f"{name}: {value}" for name, value in headers] + [f"Content-Length: {len(body)}"]
    with socket.create_connection((host.partition(":")[0], int(host.partition(":")[2]))) as half:
        half.sendall(b"POST / HTTP/1.1\r\n" + "\r\n".join(lines).encode() + b"\r\n\r\n" + body[:-1])
        assert own.kill(signal.SIGTERM) == 0  # does not wait for the rest
    assert "Traceback" not in own.said()
    until(lambda: not Path(f"/proc/{keeper}").exists())


def test_what_other_clients_send(served: Serving, sm: Any) -> None:
    """Variables in place of hyperparameters, a hyperparameter without a name; the script sees the type it asked for."""
    script = """
import json, os, sys
resources = json.load(open(os.path.join(os.environ["SM_INPUT_CONFIG_DIR"], "resourceconfig.json")))
said = [sys.argv[1:], os.environ["SM_CURRENT_INSTANCE_TYPE"], resources["instance_groups"][0]["instance_type"]]
print("said", json.dumps(said + [os.environ["SAGEMAKER_PROGRAM"]]))
"""
    request = served.request("others", script, HyperParameters={"": "1"})
    named = {name: request["HyperParameters"].pop(name) for name in ("sagemaker_program", "sagemaker_submit_directory")}
    request["Environment"] = {name.upper(): value for name, value in named.items()}
    sm.create_training_job(**request)
    described = wait_until_over(sm, "others")
    assert described["TrainingJobStatus"] == "Completed", described
    logs = served.client("logs")
    lines = [event["message"] for event in all_events(logs, streams(logs, "others")[0])]
    asked = request["ResourceConfig"]["InstanceType"]
    assert [line for line in lines if line.startswith("said")] == [
        f"said {json.dumps([['', '1'], asked, asked, 'train.py'])}"
    ]
