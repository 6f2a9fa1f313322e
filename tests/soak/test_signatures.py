"""Thousands of changes to requests that were signed rightly, sent to a real endpoint: it answers none of them."""

from __future__ import annotations

import datetime
import os
import random
import re
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import serving
import signing

from estimators.service.settings import Keys

# The timeout is for what hangs.
pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]

Headers = list[tuple[str, str]]

#: What is asked for: service, operation, body. All but the last are answered when they are signed.
REQUESTS = [
    ("sagemaker", "ListTrainingJobs", b"{}"),
    ("sagemaker", "ListTrainingJobs", b'{"MaxResults": 5, "NameContains": "a-b"}'),
    ("iam", "", b"Action=GetRole&RoleName=me&Version=2010-05-08"),
    ("sts", "", b"Action=GetCallerIdentity&Version=2011-06-15"),
    ("sagemaker", "CreateTrainingJob", b""),
]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[serving.Serving]:
    endpoint = serving.Serving(tmp_path / "endpoint")
    try:
        yield endpoint
    finally:
        endpoint.close()


class Client:
    """Signs requests for an endpoint and sends what became of them.

    Args:
        endpoint: The endpoint.
        choice: What is random.
    """

    def __init__(self, endpoint: serving.Serving, choice: random.Random) -> None:
        values = endpoint.variables
        self._keys = Keys(values["AWS_ACCESS_KEY_ID"], values["AWS_SECRET_ACCESS_KEY"])
        self._region = values["AWS_REGION"]
        self._host = values["AWS_ENDPOINT_URL"].removeprefix("http://").rstrip("/")
        self._choice = choice
        creating = endpoint.request("made", "print('ran')")
        self._requests = [*REQUESTS[:-1], (*REQUESTS[-1][:2], serving.json.dumps(creating).encode())]
        self.changes = sorted(name for name in dir(self) if name.startswith("change_"))

    def signed(self, which: tuple[str, str, bytes], **options: Any) -> tuple[Headers, bytes]:
        """Headers and body; signed now with the endpoint's keys."""
        service, operation, body = which
        arguments = {"keys": self._keys, "when": _now(), "region": self._region, "host": self._host, **options}
        if service in ("iam", "sts"):
            arguments["region"] = options.get("region", "us-east-1")
        return signing.signed(operation, service=service, body=body, **arguments)

    def draw(self) -> tuple[str, str, bytes]:
        return self._choice.choice(self._requests)

    def send(self, request: bytes) -> list[int]:
        """The statuses of all answers on a connection of its own; none if it was closed without one."""
        host, _, port = self._host.partition(":")
        answer = b""
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            try:
                connection.sendall(request)
                connection.shutdown(socket.SHUT_WR)
                while data := connection.recv(65536):
                    answer += data
            except (ConnectionResetError, BrokenPipeError):  # it closed with something of ours unread
                pass
        return [int(status) for status in re.findall(rb"^HTTP/1\.[01] (\d+) ", answer, re.MULTILINE)]

    # Each returns a request that is another one than what was signed, or not signed rightly.

    def change_signature(self) -> bytes:
        headers, body = self.signed(self.draw())
        text = _value(headers, "Authorization")
        begin, end = len(text) - 64, len(text)
        place = self._choice.choice([begin, end - 1, self._choice.randrange(begin, end)])
        other = self._choice.choice([digit for digit in "0123456789abcdef" if digit != text[place]])
        return packed(_with(headers, "Authorization", text[:place] + other + text[place + 1 :]), body)

    def change_form_of_signature(self) -> bytes:
        headers, body = self.signed(self.draw())
        text = _value(headers, "Authorization")
        signature = text[-64:]
        other = self._choice.choice(["", signature[:-1], signature + "0", "0" * 64, signature[::-1], "null", "*"])
        if other == signature:
            other = ""
        return packed(_with(headers, "Authorization", text[:-64] + other), body)

    def change_signature_of_another(self) -> bytes:
        one, other = self._choice.sample(self._requests, 2)
        headers, body = self.signed(one)
        return packed(_with(headers, "Authorization", _value(self.signed(other)[0], "Authorization")), body)

    def change_credential(self) -> bytes:
        headers, body = self.signed(self.draw())
        text = _value(headers, "Authorization")
        access, date, region, service, last = text.partition("Credential=")[2].partition(",")[0].split("/")
        parts = {"access": access, "date": date, "region": region, "service": service, "last": last}
        name = self._choice.choice(list(parts))
        wrong = {
            "access": [access[:-1], access.lower(), "AKIAIOSFODNN7EXAMPLE", "", access + "A"],
            "date": ["20000101", "99991231", "0", "", date[::-1]],
            "region": ["eu-west-1", "*", "", "us-east-2", "aws-global"],
            "service": ["s3", "logs", "*", "", "monitoring", "ec2"],
            "last": ["aws4", "", "aws4_request2"],
        }
        scope = "/".join({**parts, name: self._choice.choice(wrong[name])}.values())
        changed = re.sub(r"Credential=[^,]*", lambda _: f"Credential={scope}", text)
        return packed(_with(headers, "Authorization", changed), body)

    def change_keys(self) -> bytes:
        secret = self._choice.choice(["", "f" * 40, self._keys.secret_key[:-1], self._keys.secret_key.swapcase() + "x"])
        headers, body = self.signed(self.draw(), keys=Keys(self._keys.access_key, secret))
        return packed(headers, body)

    def change_scheme(self) -> bytes:
        headers, body = self.signed(self.draw())
        text = _value(headers, "Authorization")
        schemes = ["AWS4-HMAC-SHA1", "AWS4-ECDSA-P256-SHA256", "AWS3-HTTPS", "Basic", "Bearer", ""]
        return packed(
            _with(headers, "Authorization", text.replace("AWS4-HMAC-SHA256", self._choice.choice(schemes))), body
        )

    def change_time_of_signing(self) -> bytes:
        seconds = self._choice.choice([-1, 1]) * self._choice.randint(16 * 60, 10**8)
        return packed(*self.signed(self.draw(), when=_now() + datetime.timedelta(seconds=seconds)))

    def change_date(self) -> bytes:
        headers, body = self.signed(self.draw())
        other = (_now() + datetime.timedelta(seconds=self._choice.choice([-60, -5, 30, 60]))).strftime("%Y%m%dT%H%M%SZ")
        return packed(_with(headers, "X-Amz-Date", self._choice.choice([other, "now", "", other[:-1]])), body)

    def change_region(self) -> bytes:
        return packed(*self.signed(self.draw(), region=self._choice.choice(["eu-west-1", "us-west-2", "cn-north-1"])))

    def change_body(self) -> bytes:
        headers, body = self.signed(self.draw())
        place = self._choice.randrange(len(body))
        other = bytes([(body[place] + self._choice.randrange(1, 256)) % 256])
        ways = [body[:place] + other + body[place + 1 :], body + b" ", b" " + body, body[:place], body + body, b""]
        return packed(headers, self._choice.choice(ways))

    def change_length(self) -> bytes:
        """What is behind the body's end is read as another request, if it is read at all."""
        headers, body = self.signed(self.draw())
        other = self._choice.choice([0, len(body) - 1, len(body) + 1, len(body) + 1000, -len(body), 10**12])
        return packed(headers, body, str(other))

    def change_target(self) -> bytes:
        headers, body = self.signed(self.draw())
        targets = ["/?x=1", "/x", "/./", "/%2e", "*", "/?X-Amz-Signature=0", "/?Action=CreateTrainingJob"]
        target = self._choice.choice(targets)
        return packed(headers, body, target=target)

    def change_method(self) -> bytes:
        headers, body = self.signed(self.draw())
        return packed(headers, body, method=self._choice.choice(["GET", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"]))

    def change_header(self) -> bytes:
        headers, body = self.signed(self.draw())
        name, value = self._choice.choice([item for item in headers if item[0].lower() != "authorization"])
        place = self._choice.randrange(len(value))
        other = self._choice.choice("".join(chr(code) for code in range(33, 127)).replace(value[place], ""))
        return packed(_with(headers, name, value[:place] + other + value[place + 1 :]), body)

    def change_operation(self) -> bytes:
        headers, body = self.signed(self._requests[self._choice.choice([0, 1, -1])])
        name = self._choice.choice(["DeleteTrainingJob", "StopTrainingJob", "ListTags", "DescribeTrainingJob"])
        return packed(_with(headers, "X-Amz-Target", f"SageMaker.{name}"), body)

    def change_left_out(self) -> bytes:
        headers, body = self.signed(self.draw())
        name = self._choice.choice([name for name, _ in headers])
        return packed(_with(headers, name, None), body)

    def change_twice(self) -> bytes:
        """A header that comes twice, at either end, and whichever of them is believed."""
        headers, body = self.signed(self.draw())
        name, value = self._choice.choice(headers)
        more = (self._choice.choice([name, name.upper(), name.lower()]), self._choice.choice([value, "x", ""]))
        return packed([more, *headers] if self._choice.random() < 0.5 else [*headers, more], body)

    def change_added(self) -> bytes:
        headers, body = self.signed(self.draw())
        added = [
            ("X-Amz-Security-Token", "t"),
            ("x-amz-content-sha256", "UNSIGNED-PAYLOAD"),
            ("X-AMZ-Extra", "1"),
            ("Transfer-Encoding", "chunked"),
            ("X-Amz-Target ", "SageMaker.DeleteTrainingJob"),
        ]
        return packed([*headers, self._choice.choice(added)], body)

    def change_signed_headers(self) -> bytes:
        """Fewer of them, or one more."""
        headers, body = self.signed(self.draw())
        text = _value(headers, "Authorization")
        names = text.partition("SignedHeaders=")[2].partition(",")[0].split(";")
        gone = self._choice.choice(names)
        fewer = [name for name in names if name != gone]
        other = self._choice.choice([fewer, [*names, "x-none"], names[:1], []])
        changed = text.replace(f"SignedHeaders={';'.join(names)}", f"SignedHeaders={';'.join(other)}")
        return packed(_with(headers, "Authorization", changed), body)

    def change_folded(self) -> bytes:
        headers, body = self.signed(self.draw())
        name, value = self._choice.choice(headers)
        return packed(_with(headers, name, f"{value}\r\n {self._choice.choice(['x', ', x', 'SageMaker.Stop'])}"), body)

    def change_bytes(self) -> bytes:
        """Whatever it hits; what says the same in another way is drawn again."""
        headers, body = self.signed(self.draw())
        whole = packed(headers, body)
        while True:
            request = bytearray(whole)
            for _ in range(self._choice.choice([1, 1, 1, 2, 8])):
                place = self._choice.randrange(len(request))
                way = self._choice.choice(["change", "change", "leave out", "insert"])
                request[place : place + (way != "insert")] = (
                    b"" if way == "leave out" else bytes([self._choice.randrange(256)])
                )
            names = {name.lower() for name, _ in headers}
            if meaning(bytes(request), names) != meaning(whole, names):
                return bytes(request)


def packed(
    headers: Headers, body: bytes, length: str | None = None, *, method: str = "POST", target: str = "/"
) -> bytes:
    """A request as it is sent."""
    lines = [f"{name}: {value}" for name, value in headers]
    lines.append(f"Content-Length: {len(body) if length is None else length}")
    return f"{method} {target} HTTP/1.1\r\n".encode() + "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def meaning(request: bytes, names: set[str]) -> object:
    """What a request says where its signature covers it; two that say the same may have different bytes."""
    first, _, rest = request.partition(b"\n")  # as http.server reads it
    end = re.search(rb"\n\r?\n|\Z", rest)
    assert end is not None
    lines = re.split(rb"\r\n|\n|\r", rest[: end.start()].removesuffix(b"\r"))
    lines = lines[: lines.index(b"")] if b"" in lines else lines
    body = rest[end.end() :]
    headers: dict[str, list[str]] = {}
    for line in lines:
        name, _, value = line.decode("latin-1").partition(":")
        if name.lower() in {*names, "content-length"}:
            text = re.sub(r" *([,=]) *", r"\1", " ".join(value.split()))
            headers.setdefault(name.lower(), []).append(text)
    method, target = [*first.decode("latin-1").split(), "", ""][:2]
    target = re.sub("^/+", "/", target).rstrip("?")  # as http.server and the signature have it
    length = headers.pop("content-length", ["0"])[0]
    return method, target, headers, body[: int(length)] if length.isdecimal() and length.isascii() else length


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.timezone.utc)


def _value(headers: Headers, name: str) -> str:
    return next(value for other, value in headers if other.lower() == name.lower())


def _with(headers: Headers, name: str, value: str | None) -> Headers:
    """The headers with another value for one of them, or without it."""
    return [
        (other, text if other.lower() != name.lower() else value)  # type: ignore[misc]
        for other, text in headers
        if other.lower() != name.lower() or value is not None
    ]


@pytest.mark.parametrize("seed", [*range(5), "new"], indirect=True)
def test_what_was_changed_is_not_answered(
    count: Callable[[int], int], record: Callable[..., None], served: serving.Serving, seed: int
) -> None:
    choice = random.Random(seed)
    client = Client(served, choice)
    requests = count(4000)
    answers: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    problems: list[str] = []
    unchanged = 0
    for number in range(requests):
        kind = choice.choice(client.changes)
        kinds[kind] += 1
        request = getattr(client, kind)()
        statuses = client.send(request)
        answers[" ".join(map(str, statuses)) or "closed"] += 1
        if any(status < 400 or status == 500 for status in statuses):
            problems.append(f"request {number} of seed {seed}, {kind}: {statuses} for {request[:2000]!r}")
        if number % 40 == 0:  # that the requests were signed rightly before
            which = choice.choice(REQUESTS[:-1])
            said = client.send(packed(*client.signed(which)))
            if said != [200]:
                problems.append(f"the unchanged {which}, after request {number} of seed {seed}: {said}")
            unchanged += 1
    jobs = served.home / "jobs"
    started = sorted(os.listdir(jobs)) if jobs.exists() else []
    record(
        "signatures",
        seed=seed,
        requests=requests,
        kinds=dict(kinds),
        answers=dict(answers),
        unchanged_and_answered=unchanged,
        started=started,
        problems=problems[:50],
    )
    assert problems == []
    assert not [name for name in started if not name.startswith(".")]
