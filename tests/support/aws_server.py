"""A small AWS for tests of what only AWS does: faults, interrupted spot capacity, hosts that are started again.

What it answers is said by the test; real jobs run on fleetfit's own endpoint (``test_jobs.py``). S3 is a real server.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ARN = "arn:aws:sagemaker:eu-west-1:123456789012:training-job/"


class Fault:
    """What happens to a request instead of an answer, or after the work.

    Args:
        status: The HTTP status; 0 closes the connection without an answer.
        code: The error's code.
        message: Its message.
        after: Whether the request is carried out first.
    """

    def __init__(self, status: int, code: str = "", message: str = "", *, after: bool = False) -> None:
        self.status, self.code, self.message, self.after = status, code, message, after


THROTTLED = Fault(400, "ThrottlingException", "Rate exceeded")
EXPIRED = Fault(400, "ExpiredTokenException", "The security token included in the request is expired")
DENIED = Fault(400, "AccessDeniedException", "User: me is not authorized to perform: x")
LOST = Fault(0)
ANSWER_LOST = Fault(0, after=True)


class Aws:
    """The server; a context manager."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.created: list[dict[str, Any]] = []
        self.status: dict[str, Any] = {}
        self.streams: dict[str, list[tuple[int, str]]] = {}
        self.faults: list[tuple[str, Fault]] = []
        self.on_stop: Callable[[], None] = lambda: None
        self.lock = threading.RLock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                operation = self.headers["X-Amz-Target"].partition(".")[2]
                status, answer = outer.answer(operation, body)
                if not status:
                    self.close_connection = True
                    return
                data = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/x-amz-json-1.1")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *words: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._http.server_address[1]}"
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def __enter__(self) -> Aws:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()

    # --- what a test says ---

    def fail(self, operation: str, *faults: Fault) -> None:
        """Let the next requests of an operation meet these faults."""
        with self.lock:
            self.faults += [(operation, fault) for fault in faults]

    def say(self, host: str, *lines: bytes | str, start: int = 1) -> None:
        """A host prints lines."""
        with self.lock:
            name = f"{self.created[-1]['TrainingJobName']}/{host}-{start}"
            now = int(time.time() * 1000)
            texts = [line.decode() if isinstance(line, bytes) else line for line in lines]
            self.streams.setdefault(name, []).extend((now, text.rstrip("\n")) for text in texts)

    def step(self, secondary: str, primary: str = "InProgress", **more: Any) -> None:
        """The job goes on to a secondary status."""
        with self.lock:
            steps = self.status.setdefault("SecondaryStatusTransitions", [])
            steps.append({"Status": secondary, "StartTime": time.time(), "StatusMessage": f"now {secondary}"})
            self.status.update({"SecondaryStatus": secondary, "TrainingJobStatus": primary, **more})
            self.status["LastModifiedTime"] = time.time()

    def asked(self, operation: str) -> int:
        """How often an operation was asked for, faults included."""
        with self.lock:
            return sum(name == operation for name, _ in self.requests)

    # --- what it answers ---

    def answer(self, operation: str, body: dict[str, Any]) -> tuple[int, Any]:
        with self.lock:
            self.requests.append((operation, body))
            fault = next((fault for name, fault in self.faults if name == operation), None)
            if fault is not None:
                self.faults.remove((operation, fault))
                if fault.after:
                    getattr(self, operation)(body)
                return fault.status, {"__type": fault.code, "message": fault.message}
            try:
                return 200, getattr(self, operation)(body)
            except KeyError as error:
                return 400, {"__type": "ValidationException", "message": f"Requested resource not found. {error}"}
            except ValueError as error:
                return 400, {"__type": "ResourceInUse", "message": str(error)}

    def CreateTrainingJob(self, body: dict[str, Any]) -> dict[str, Any]:
        name = body["TrainingJobName"]
        if any(job["TrainingJobName"] == name for job in self.created):
            raise ValueError("Training job names must be unique within an AWS account and region")
        self.created.append(body)
        self.status = {"CreationTime": time.time()}
        self.step("Starting")
        return {"TrainingJobArn": ARN + name}

    def DescribeTrainingJob(self, body: dict[str, Any]) -> dict[str, Any]:
        jobs = {job["TrainingJobName"]: job for job in self.created}
        request = {key: value for key, value in jobs[body["TrainingJobName"]].items() if key != "Tags"}
        return {**request, "TrainingJobArn": ARN + body["TrainingJobName"], **self.status}

    def StopTrainingJob(self, body: dict[str, Any]) -> dict[str, Any]:
        self.on_stop()
        return {}

    def DescribeLogStreams(self, body: dict[str, Any]) -> dict[str, Any]:
        names = [name for name in self.streams if name.startswith(body["logStreamNamePrefix"])]
        return {"logStreams": [{"logStreamName": name} for name in sorted(names)]}

    def GetLogEvents(self, body: dict[str, Any]) -> dict[str, Any]:
        lines = self.streams[body["logStreamName"]]
        since = body.get("startTime", 0)
        start = next((index for index, line in enumerate(lines) if line[0] >= since), len(lines))
        start = int(body["nextToken"].removeprefix("f/")) if "nextToken" in body else start
        events = [{"timestamp": when, "message": text, "ingestionTime": when} for when, text in lines[start:]]
        return {"events": events, "nextForwardToken": f"f/{len(lines)}", "nextBackwardToken": "b/0"}
