"""Thousands of requests: nothing crashes, and what is not signed starts nothing.

The endpoint and everything behind it is real, but for the queue: it counts what it would start.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import shutil
import socket
from pathlib import Path
from typing import Any
from unittest import mock

import fuzzing
import pytest
import signing
import unserved
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from serving import status_of

from container.contract.wire import Event, Piece
from estimators.records.record import JobRecord
from estimators.records.states import SecondaryStatus
from estimators.service import web
from estimators.service.endpoint import Endpoint, operations
from estimators.service.logs import Logs
from estimators.service.models import Model
from estimators.service.records import Jobs
from estimators.service.settings import EndpointFiles, Keys
from estimators.service.storage import Storage
from estimators.service.training import Training
from estimators.service.translation import Local
from estimators.service.tuning import TuningJobs

SIGNED = {"sagemaker": "sagemaker", "logs": "logs", "cloudwatch": "monitoring"}


class CountingQueue:
    """Stands for the queue."""

    def __init__(self) -> None:
        self.submitted: list[str] = []

    def submit(self, record: JobRecord, name: str, request: Any) -> None:
        record.publish(name)
        self.submitted.append(name)
        record.release()

    def withdraw(self, name: str) -> bool:
        return False


class Target:
    """An endpoint with one job on record.

    Args:
        home: Its home.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        place = EndpointFiles(home)
        place.make()
        (home / "s3" / "bucket").mkdir(parents=True)
        self.queue = CountingQueue()
        jobs = Jobs(home, "us-east-1")
        storage = Storage(place, home / "s3")
        training = Training(jobs, self.queue, storage, Local())  # type: ignore[arg-type]
        self.table = operations(training, TuningJobs(jobs, storage, Local(), {}), Logs(jobs), jobs)
        self.endpoint = Endpoint(signing.KEYS, self.table, lambda: signing.NOW)
        self.models = {service: Model(service, names) for service, names in self.table.items()}
        self.calls = [(service, name) for service in SIGNED for name in sorted(self.table[service])]
        self.make_job()

    def make_job(self) -> None:
        """A job named ``known``, as a fuzzer may delete it."""
        if (self.home / "jobs" / "known").exists():
            return
        lines = [Piece("algo-1", "rank 0", b"line %d\n" % number) for number in range(50)]
        record = unserved.write_job(self.home, "known", lines, SecondaryStatus.TRAINING, SecondaryStatus.COMPLETED)
        record.append_event(Event(kind="metric", host="algo-1", data={"name": "loss", "value": 0.5}))
        record.release()


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return Target(tmp_path_factory.mktemp("fuzz") / "home")


BODIES = st.binary(max_size=200) | st.sampled_from([b"", b"[]", b"{" * 5000, b"\xff"])


def draw_call(target: Target, data: st.DataObject) -> tuple[str, str, bytes]:
    """Service, operation and body."""
    service, operation = data.draw(st.sampled_from(target.calls))
    if data.draw(st.integers(0, 9)) == 0:
        return service, operation, data.draw(BODIES)
    parameters = data.draw(fuzzing.requests(target.models[service], operation))
    return service, operation, json.dumps(parameters).encode()


def attack(target: Target, data: st.DataObject) -> None:
    """One request, signed or not, and what must hold whatever it was."""
    service, operation, body = draw_call(target, data)
    way = data.draw(st.sampled_from(["signed", "signed", "signed", "none", "key", "late", "body", "operation"]))
    keys = Keys(signing.KEYS.access_key, "f" * 40) if way == "key" else signing.KEYS
    when = signing.NOW - datetime.timedelta(hours=1) if way == "late" else signing.NOW
    headers, sent = signing.signed(operation, service=SIGNED[service], body=body, keys=keys, when=when)
    if way == "none":
        headers = [item for item in headers if item[0].lower() != "authorization"]
    elif way == "body":
        sent += b" "
    elif way == "operation":
        headers = [(name, value + "s" if name.lower() == "x-amz-target" else value) for name, value in headers]
    target.make_job()
    before = len(target.queue.submitted)
    jobs = sorted(os.listdir(target.home / "jobs"))
    with (
        mock.patch("estimators.service.training.ipc_client.request", side_effect=AssertionError("it reached a job")),
        mock.patch("estimators.tuning.running.start") as tuned,
    ):
        answer = target.endpoint.respond("POST", "/", headers, sent)
    said = json.loads(answer.body) if answer.body else {}
    assert answer.status in (200, 400, 403), said
    if way != "signed":
        assert answer.status == 403
        assert len(target.queue.submitted) == before
        assert not tuned.called
        assert sorted(os.listdir(target.home / "jobs")) == jobs
    if answer.status != 200:
        assert said["__type"]
        assert said["message"]
    # Whatever names were given, nothing was made outside of the folder of jobs.
    assert sorted({*os.listdir(target.home)} - {"tuning"}) == ["jobs", "s3", "service"]
    for name in target.queue.submitted[before:]:
        shutil.rmtree(target.home / "jobs" / name)
    shutil.rmtree(target.home / "tuning", ignore_errors=True)


@seed(8666)
@settings(max_examples=150, suppress_health_check=list(HealthCheck), database=None)
@given(data=st.data())
def test_requests_crash_nothing(target: Target, data: st.DataObject) -> None:
    attack(target, data)


@pytest.mark.soak
@settings(max_examples=10_000, suppress_health_check=list(HealthCheck), database=None)
@given(data=st.data())
def test_ten_thousand_requests_crash_nothing(target: Target, data: st.DataObject) -> None:
    attack(target, data)


@seed(8666)
@settings(max_examples=100, suppress_health_check=list(HealthCheck), database=None)
@given(body=st.binary(max_size=300) | st.text(max_size=100).map(str.encode), service=st.sampled_from(["sts", "iam"]))
def test_forms_crash_nothing(target: Target, body: bytes, service: str) -> None:
    headers, sent = signing.signed("", service=service, body=b"Action=GetRole&RoleName=" + body)
    answer = target.endpoint.respond("POST", "/", headers, sent)
    assert answer.status in (200, 400)
    assert answer.body.startswith(b"<")


RAW = [
    b"\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    b"POST / HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n",
    b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n0\r\n\r\n",
    b"POST / HTTP/1.1\r\n" + b"A: b\r\n" * 1000 + b"\r\n",
    b"A" * 100_000 + b"\r\n\r\n",
    b"\xff\xfe\xfd / HTTP/1.1\r\n\r\n",
    b"POST / HTTP/1.1\r\nContent-Length: 10\r\n\r\nabc",
    b"BREW / HTTP/1.1\r\n\r\n",
]


def test_what_is_not_http_closes_its_connection_only(target: Target) -> None:
    listener = web.listen(0)
    with web.Server(target.endpoint, listener, 1):
        address = listener.getsockname()
        for raw in RAW:
            with socket.create_connection(address, timeout=10) as connection:
                with contextlib.suppress(OSError):  # it may be closed before all of it is sent
                    connection.sendall(raw)
                    connection.shutdown(socket.SHUT_WR)
                answer = b""
                try:
                    while data := connection.recv(65536):
                        answer += data
                except ConnectionResetError:  # it closed with something of ours unread
                    pass
            assert b" 200 " not in answer
        with socket.create_connection(address, timeout=10) as connection:
            for _ in range(3):  # one connection for several requests
                headers, body = signing.signed("ListTrainingJobs", host=f"{address[0]}:{address[1]}")
                lines = [f"{name}: {value}" for name, value in headers] + [f"Content-Length: {len(body)}"]
                connection.sendall(b"POST / HTTP/1.1\r\n" + "\r\n".join(lines).encode() + b"\r\n\r\n" + body)
                assert status_of(connection) == 200
