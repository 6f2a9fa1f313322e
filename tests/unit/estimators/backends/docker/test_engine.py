"""What is asked of an engine, and what its answers mean, with an engine that is a few lines of a server."""

from __future__ import annotations

import http.server
import json
import socketserver
import threading
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from container.system.asyncio_loop import AsyncioLoop
from estimators.backends.docker.containers import ContainerPlan
from estimators.backends.docker.engine import Engine, call
from estimators.backends.images.errors import AbsentError, EngineError

PLAN = ContainerPlan(host="algo-1", name="c", image="image:1", lifeline=True)


class _Handler(http.server.BaseHTTPRequestHandler):
    """Answers by a table: method and path -> status and body."""

    answers: ClassVar[dict[str, tuple[int, bytes]]] = {}
    asked: ClassVar[list[tuple[str, dict[str, list[str]], Any]]] = []

    def _answer(self) -> None:
        parts = urllib.parse.urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        what = f"{self.command} {urllib.parse.unquote(parts.path)}"
        self.asked.append((what, urllib.parse.parse_qs(parts.query), json.loads(body) if body else None))
        status, answer = self.answers.get(what, (404, b'{"message": "No such thing"}'))
        self.send_response(status)
        self.end_headers()
        self.wfile.write(answer)
        if status == 101:
            self.wfile.flush()
            self.wfile.write(self.rfile.readline().upper())

    do_GET = do_POST = do_DELETE = _answer

    def log_message(self, *arguments: Any) -> None: ...

    def address_string(self) -> str:
        return "here"


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of those who hang up."""


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """An engine that knows nothing, until a test sets its answers."""
    monkeypatch.chdir(tmp_path)  # a socket's path may have 107 bytes
    _Handler.answers, _Handler.asked = {}, []
    with _Server("socket", _Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield Engine({"DOCKER_HOST": "unix://socket"})
        server.shutdown()


def test_an_image_is_what_the_engine_says(engine: Engine) -> None:
    config = {"Labels": {"a": "b"}, "User": "trainer", "Env": ["PATH=/bin"]}
    _Handler.answers["GET /images/there:1/json"] = (200, json.dumps({"Id": "sha256:1", "Config": config}).encode())
    found = engine.image("there:1")
    assert (found.id, found.labels, found.user, found.environment) == (
        "sha256:1",
        {"a": "b"},
        "trainer",
        ("PATH=/bin",),
    )
    _Handler.answers["GET /images/gone:1/json"] = (404, b'{"message": "No such image: gone:1"}')
    with pytest.raises(AbsentError, match=r"image 'gone:1' is not on this engine: run `docker pull gone:1`"):
        engine.image("gone:1")
    assert engine.has_image("there:1") and not engine.has_image("gone:1")


def test_a_refusal_has_its_remedy(engine: Engine) -> None:
    said = b'{"message": "network with name n already exists"}'
    _Handler.answers["POST /networks/create"] = (409, said)
    with pytest.raises(EngineError, match=r"network 'n': network with name n already exists\. .*`fleetfit clean`"):
        engine.create_network("n", {"a": "b"}, internal=True)
    ((_, _, body),) = _Handler.asked
    assert body["Internal"] is True and body["Labels"] == {"a": "b"} and body["Driver"] == "bridge"
    _Handler.answers["GET /info"] = (500, b"not JSON")
    with pytest.raises(EngineError, match=r"the container engine cannot describe itself: not JSON\."):
        engine.info()
    for nothing in (b"", b'{"message": " "}', b'{"message": null}', b"[]", b"null"):
        _Handler.answers["GET /info"] = (503, nothing)
        with pytest.raises(EngineError, match=r"cannot describe itself: it gave no reason \(HTTP status 503\)\.$"):
            engine.info()


def test_a_connection_to_a_container_carries_both_ways(engine: Engine) -> None:
    _Handler.answers["POST /containers/c/attach"] = (101, b"")
    with engine.attach("c", PLAN) as stream:
        stream.sendall(b"hello\n")
        assert stream.recv(100) == b"HELLO\n"
    assert _Handler.asked[0][1]["stdin"] == ["1"]
    with pytest.raises(AbsentError, match="attach to a container"):
        engine.attach("none", PLAN)
    told = b'{"message": "unable to start: exec: \\"train\\": stat train: no such file or directory"}'
    _Handler.answers["POST /containers/podmans/attach"] = (500, told)
    with pytest.raises(EngineError, match="image 'image:1' has no executable program 'train'"):
        engine.attach("podmans", PLAN)


def test_what_is_gone_is_removed(engine: Engine) -> None:
    engine.remove_container("gone")
    engine.remove_network("gone")
    engine.kill("gone", "SIGKILL")
    assert engine.inspect("gone") is None
    _Handler.answers["DELETE /containers/c"] = (409, b'{"message": "removal of container c is already in progress"}')
    engine.remove_container("c")
    _Handler.answers["DELETE /containers/c"] = (500, b'{"message": "the disk is wet"}')
    with pytest.raises(EngineError, match="the disk is wet"):
        engine.remove_container("c")


@pytest.mark.leaves("files")
@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (KeyError("Id"), "the container engine's answer cannot be understood: KeyError('Id')."),
        (ValueError("no JSON"), "the container engine's answer cannot be understood: ValueError('no JSON')."),
        (EngineError("refused"), "refused"),
        (OSError(28, "the disk is full"), "[Errno 28] the disk is full"),
    ],
)
def test_an_answer_that_cannot_be_understood_is_an_error_of_the_engine(
    asyncio_loop: AsyncioLoop, raised: Exception, told: str
) -> None:
    def work() -> None:
        raise raised

    with pytest.raises((EngineError, OSError)) as error:
        asyncio_loop.run(call(asyncio_loop, work))
    assert str(error.value) == told


@pytest.mark.parametrize(
    ("state", "code", "error"),
    [
        ({"Running": False, "OOMKilled": False, "Error": ""}, 3, ""),
        ({"Running": False, "OOMKilled": True, "Error": "it was too big"}, 137, "it was too big"),
        (None, 3, "the container was removed from outside"),
    ],
)
def test_how_a_container_ended(engine: Engine, state: Any, code: int, error: str) -> None:
    _Handler.answers["POST /containers/c/wait"] = (200, json.dumps({"StatusCode": code}).encode())
    if state is not None:
        _Handler.answers["GET /containers/c/json"] = (200, json.dumps({"State": state}).encode())
    ended = engine.wait("c")
    assert (ended.exit_code, ended.error, ended.out_of_memory) == (code, error, bool(state and state["OOMKilled"]))


def test_the_address_of_this_machine_in_a_network(engine: Engine) -> None:
    network = {"IPAM": {"Config": [{"Subnet": "172.17.0.0/16", "Gateway": "172.17.0.1/16"}]}}
    _Handler.answers["GET /networks/bridge"] = (200, json.dumps(network).encode())
    assert engine.gateway("bridge") == "172.17.0.1"
    options = {"Options": {"com.docker.network.bridge.name": "lo"}}  # which the engine has not told
    _Handler.answers["GET /networks/bridge"] = (200, json.dumps(options).encode())
    assert engine.gateway("bridge") == "127.0.0.1"
    _Handler.answers["GET /networks/bridge"] = (200, b"{}")
    with pytest.raises(EngineError, match="'bridge' has no gateway"):
        engine.gateway("bridge")


def test_what_has_a_label_is_found_by_it(engine: Engine) -> None:
    _Handler.answers["GET /containers/json"] = (200, b'[{"Id": "c"}]')
    _Handler.answers["GET /networks"] = (200, b'[{"Id": "n"}]')
    _Handler.answers["DELETE /containers/c"] = _Handler.answers["DELETE /networks/n"] = (204, b"")
    assert engine.remove_all({"fleetfit.job": "a b"}) == 2
    assert json.loads(_Handler.asked[0][1]["filters"][0]) == {"label": ["fleetfit.job=a b"]}
    assert [what for what, _, _ in _Handler.asked[2:]] == ["DELETE /containers/c", "DELETE /networks/n"]
