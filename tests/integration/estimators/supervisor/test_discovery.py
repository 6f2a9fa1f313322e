"""Lines of hosts from outside, in Horovod's form; a script and a file of them, watched."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from loops import RunUntil
from waiting import until

from container.system.asyncio_loop import AsyncioLoop
from estimators.backends.hosts import discovery


class Told:
    """What a source has told; see :class:`estimators.backends.hosts.membership.MembershipListener`."""

    def __init__(
        self,
        said: list[Mapping[str, int | None]],
        wrong: list[str],
        hopeless: list[str] | None = None,
        then: Callable[[], None] = lambda: None,
    ) -> None:
        self._said = said
        self._then = then
        self.problem = wrong.append
        self.hopeless = (hopeless if hopeless is not None else []).append

    def places(self, found: Mapping[str, int | None]) -> None:
        self._said.append(dict(found))
        self._then()

    def leaving(self, name: str, seconds: float) -> None:
        raise AssertionError(name)


@pytest.fixture
def run_until(asyncio_loop: AsyncioLoop) -> RunUntil:
    """Runs the loop until a condition holds, or fails."""
    return lambda condition: until(condition, between=lambda: asyncio_loop.run(asyncio.sleep(0.01)))


def test_a_file_and_a_script_are_watched(
    asyncio_loop: AsyncioLoop, run_until: RunUntil, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "SCRIPT_EVERY_S", 0.02)
    for executable in (False, True):
        said: list[Mapping[str, int | None]] = []
        wrong: list[str] = []
        path = tmp_path / f"hosts-{executable}"

        def write(text: str, path: Path = path, executable: bool = executable) -> None:
            new = path.with_suffix(".new")
            new.write_text(f"#!/bin/sh\nprintf '{text}'\n" if executable else text)
            new.chmod(0o755 if executable else 0o644)
            new.replace(path)

        write("a")
        watch = discovery.PlaceDiscovery(asyncio_loop, path, default_slots=2, folder=tmp_path)
        watch.start(Told(said, wrong))
        run_until(lambda said=said: said)
        write("a:1 b")
        run_until(lambda wrong=wrong: wrong)
        assert "neither" in wrong[0]
        write("b")
        run_until(lambda said=said: len(said) == 2)
        watch.close()
        assert said == [{"a": 2}, {"b": 2}]
        assert len(wrong) == 1  # said once, however often it was seen


@pytest.mark.parametrize(
    ("script", "wrong"),
    [
        (None, "does not exist"),
        ("#!/bin/sh\nexit 3\n", "ended with exit code 3"),
        ("#!/bin/sh\nexec sleep 60\n", "did not end within 0.1 s"),
        ("#!/no/such/shell\n", "cannot be run: No such file or directory"),
        ("#!/bin/sh\necho two words\n", "'two words' is neither"),
    ],
)
def test_what_never_says_a_host_is_hopeless_and_what_did_once_is_only_told(
    asyncio_loop: AsyncioLoop,
    run_until: RunUntil,
    script: str | None,
    wrong: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(discovery, "SCRIPT_EVERY_S", 0.02)
    monkeypatch.setattr(discovery, "HOPELESS_S", 0.2)
    path = tmp_path / "discover.sh"
    for first in (None, "#!/bin/sh\necho a\n"):
        said: list[Mapping[str, int | None]] = []
        told: list[str] = []
        hopeless: list[str] = []

        def write(text: str | None) -> None:
            # Only what never ends is given up soon: any other script has all the time that it needs.
            monkeypatch.setattr(discovery, "SCRIPT_TIMEOUT_S", 0.1 if "sleep" in (text or "") else 30.0)
            path.unlink(missing_ok=True)
            if text is not None:
                path.write_text(text)
                path.chmod(0o755)

        write(first or script)
        watch = discovery.PlaceDiscovery(asyncio_loop, path, default_slots=1, folder=tmp_path)
        watch.start(Told(said, told, hopeless, then=lambda: write(script)))  # here the first has ended, nothing runs
        run_until(lambda seen=hopeless if first is None else told: seen)
        watch.close()
        assert told == [f"{path} {wrong}" if "neither" not in wrong else f"{path}: {wrong} 'host' nor 'host:slots'."]
        assert hopeless[:1] == (told if first is None else [])
        assert said == ([] if first is None else [{"a": 1}])
