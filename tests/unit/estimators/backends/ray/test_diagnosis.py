"""What a job on Ray lacks here."""

from __future__ import annotations

import pytest

from estimators.backends.engine import EnginePackage
from estimators.backends.ray import diagnosis


@pytest.mark.parametrize(
    ("packages", "words"),
    [
        (("asyncio",), None),
        (("asyncio", "no_such_a"), "needs no_such_a, which is not installed here. Run `fleetfit install ray`."),
        (("no_such_a", "no_such_b"), "needs no_such_a and no_such_b, which are not installed here."),
    ],
)
def test_missing_packages_of_the_jobs_client(
    packages: tuple[str, ...], words: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnosis, "_RAY", EnginePackage("Ray", "pytest", (0, 0), extra="ray"))  # installed, whatever
    monkeypatch.setattr(diagnosis, "_OF_JOBS", packages)
    said = diagnosis.refusal(jobs=True)
    assert said is None if words is None else said is not None and words in said
    assert diagnosis.refusal() is None
