"""uv: how it is set up, why it fails, and what is left when it is killed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from estimators.provision import uv
from estimators.provision.errors import IndexUnreachable, ProvisionError
from estimators.provision.packages import Installation


def test_a_package_killed_half_way_is_installed_again(
    real_venv: Installation, make_wheel: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = make_wheel("halfway", "1.0", size=100)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    arguments = [f"halfway @ {wheel.as_uri()}"]
    real_venv.install(arguments, log="first")
    unfinished = real_venv.state / "unfinished"
    assert not unfinished.exists()
    module = real_venv.packages / "halfway.py"
    whole = module.read_text()
    # As SIGKILL leaves it: metadata and list of files there, files not, or cut short, or no list of files.
    for left in ("", whole[:20], whole):
        unfinished.touch()
        module.unlink()  # first, since the file may be the cache's too
        if left:
            module.write_text(left)
        if left == whole:
            (real_venv.packages / "halfway-1.0.dist-info" / "RECORD").unlink()
        assert "halfway" in real_venv.would_install(arguments) and unfinished.exists()
        real_venv.install(arguments, log="second")
        assert module.read_text() == whole
        assert not unfinished.exists()


def test_a_failure_before_the_first_change_leaves_no_mark(
    real_venv: Installation, make_wheel: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    unfinished = real_venv.state / "unfinished"
    wanted = [f"small @ {make_wheel('small', '1.0').as_uri()}", "small==2.0"]
    with pytest.raises(ProvisionError):
        real_venv.would_install(wanted)
    with pytest.raises(ProvisionError):
        real_venv.install(wanted, log="packages")
    assert not unfinished.exists()


def test_another_installation_keeps_the_mark_of_a_killed_one(
    real_venv: Installation, make_wheel: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    unfinished = real_venv.state / "unfinished"
    killed, other = ([f"{name} @ {make_wheel(name, '1.0').as_uri()}"] for name in ("killed", "other"))
    real_venv.install(killed, log="first")
    unfinished.write_text("killed")  # as SIGKILL leaves the environment
    module = real_venv.packages / "killed.py"
    module.unlink()
    real_venv.install(other, log="second")
    real_venv.uninstall(["other"])
    with pytest.raises(ProvisionError):
        real_venv.install(["killed==3.0"], log="second")
    assert unfinished.read_text() == "killed"
    assert "may be incomplete (killed). Run the interrupted command again." in str(real_venv.interrupted())
    real_venv.install(killed, log="third")
    assert module.exists() and not unfinished.exists()
    assert real_venv.interrupted() is None


def test_the_first_installation_after_a_removal_repairs_what_a_killed_one_left(
    real_venv: Installation, make_wheel: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    unfinished = real_venv.state / "unfinished"
    removed, shared = ([f"{name} @ {make_wheel(name, '1.0').as_uri()}"] for name in ("removed", "shared"))
    real_venv.install([*removed, *shared], log="first")
    unfinished.write_text("removed")  # as SIGKILL leaves the environment
    module = real_venv.packages / "shared.py"  # of a dependency of both
    module.unlink()
    real_venv.uninstall(["removed"])
    assert real_venv.interrupted() is None and unfinished.exists()
    real_venv.install(shared, log="third")
    assert module.exists() and not unfinished.exists()
    real_venv.uninstall(["shared"])
    assert not unfinished.exists()


def test_settings_of_pip_hold_for_uv_and_its_own_come_before_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pip.conf").write_text("[global]\nindex-url = https://user:secret@file/simple\ntimeout = 7\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    monkeypatch.delenv("PIP_DEFAULT_TIMEOUT", raising=False)
    monkeypatch.setenv("UV_HTTP_TIMEOUT", "9")
    found = uv.environment(tmp_path / "log")
    assert found["UV_DEFAULT_INDEX"] == "https://user:secret@file/simple"
    assert found["UV_HTTP_TIMEOUT"] == "9"
    assert found["UV_PYTHON_DOWNLOADS"] == "never"
    assert not (tmp_path / "log").exists() or "secret" not in (tmp_path / "log").read_text()


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
