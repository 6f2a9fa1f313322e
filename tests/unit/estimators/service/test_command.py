"""What ``fleetfit serve`` refuses before it serves."""

from __future__ import annotations

import contextlib
import errno
import socket
from pathlib import Path
from typing import Any

import pytest

from estimators.cli import serve
from estimators.cli.main import _parse, main
from estimators.service.profile import Address
from estimators.service.settings import EndpointFiles, Keys


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--port", "70000"], "not a port"),
        (["--max-jobs", "0"], "at least 1"),
        (["--backend", "dokcer"], "Did you mean 'docker'"),
        (["--image-map", "mine"], "PATTERN=IMAGE"),
        (["--without", "VpcConfg"], "Did you mean 'VpcConfig'"),
        (["--region", "mars"], "not a region"),
        (["extra"], "unrecognized arguments"),
    ],
)
def test_arguments_that_cannot_be(words: list[str], said: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", *words]) == 2
    assert said in capsys.readouterr().err
    assert not home.exists()


def test_a_port_that_is_taken_is_said(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["serve", "--no-profile", "--port", str(taken.getsockname()[1])]) == 5
    assert "is not available" in capsys.readouterr().err
    assert not (home / "service" / "s3.json").exists()


def test_files_that_cannot_be_had_are_said(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = home / "service" / "keys.json"
    keys.mkdir(parents=True)
    assert main(["serve", "--no-profile", "--port", "0", "--s3-port", "0"]) == 2
    assert f"{keys}: Is a directory" in capsys.readouterr().err
    keys.rmdir()

    def full(*arguments: object, **more: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("container.system.files.replace", full)
    assert main(["serve", "--no-profile", "--port", "0", "--s3-port", "0"]) == 2
    assert "No space left on device. Correct the cause" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "own", "put"),
    [([], False, True), ([], True, False), (["--no-sdk-config"], False, False), (["--no-profile"], False, False)],
)
def test_the_sdks_configuration_is_put_where_it_looks_unless_the_user_has_one_or_says_no(
    words: list[str], own: bool, put: bool, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home))
    path = home / "sagemaker" / "config.yaml"
    if own:
        path.parent.mkdir(parents=True)
        path.write_text("SchemaVersion: '1.0'\n")
    address = Address(endpoint="http://x", s3_endpoint="http://y", region="us-east-1", keys=Keys("a", "b"))
    args = _parse(["serve", *words])
    with contextlib.ExitStack() as ended:
        assert serve._installed(args, EndpointFiles(home), address, ended) is put
        assert path.exists() is (own or put)
    assert path.exists() is own
    assert ("is not changed" in capsys.readouterr().err) is own
