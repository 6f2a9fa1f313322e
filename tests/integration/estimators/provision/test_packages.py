"""pip: what it prints, why it fails, and what is left when it is killed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from estimators.provision.errors import (
    IndexUnreachable,
)
from estimators.provision.packages import Installation


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
