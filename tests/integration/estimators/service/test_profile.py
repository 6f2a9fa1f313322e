"""The files that tell clients where the endpoint is."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from estimators.job.errors import ConfigurationError
from estimators.service import profile
from estimators.service.settings import EndpointFiles, Keys

ADDRESS = profile.Address(
    endpoint="http://127.0.0.1:1",
    s3_endpoint="http://127.0.0.1:2",
    region="us-east-1",
    keys=Keys("FLEETFITKEY", "s3cret"),
)


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    return tmp_path


def test_a_shell_reads_the_env_file_whatever_the_home_is_called(files: Path) -> None:
    home = files / 'a home\'s \\ $HOME `x` # "é"'
    home.mkdir()
    profile.write_env_file(home / "env", EndpointFiles(home), ADDRESS)
    lines = ["set -a", f". {shlex.quote(str(home / 'env'))}", "exec env -0"]
    done = subprocess.run(["/bin/sh", "-c", "\n".join(lines)], capture_output=True, text=True, check=True)
    read = dict(item.split("=", 1) for item in done.stdout.split("\0") if item)
    assert ADDRESS.environment(EndpointFiles(home)).items() <= read.items()
    plain = ADDRESS.environment(EndpointFiles(files))
    profile.write_env_file(files / "env", EndpointFiles(files), ADDRESS)  # as programs without quotes read it, too
    assert (files / "env").read_text() == "".join(f"{name}={value}\n" for name, value in plain.items())
    with pytest.raises(ConfigurationError, match="line break"):
        profile.write_env_file(files / "env", EndpointFiles(files / "a\nb"), ADDRESS)
