"""The long counts. Each writes what it found as JSON beside the benchmarks' results."""

from __future__ import annotations

import datetime
import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


#: Where results go; another folder with FLEETFIT_SOAK_RESULTS.
RESULTS = Path(os.environ.get("FLEETFIT_SOAK_RESULTS") or ROOT / "benchmarks" / "results")

#: Multiplies the counts: FLEETFIT_SOAK_SCALE=0.1 for a short one.
SCALE = float(os.environ.get("FLEETFIT_SOAK_SCALE") or 1)


@pytest.fixture(autouse=True)
def own_home(home: Path) -> None:
    """A home, also where a test does not ask for it."""


@pytest.fixture
def count() -> Callable[[int], int]:
    """A count, scaled."""
    return lambda number: max(1, round(number * SCALE))


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """A fixed seed, or a ``"new"`` one, which is printed; FLEETFIT_SOAK_SEED is another one, run alone."""
    given = os.environ.get("FLEETFIT_SOAK_SEED")
    if request.param != "new":
        if given:
            pytest.skip("FLEETFIT_SOAK_SEED is run alone")
        return int(request.param)
    new = int(given or time.time())
    print(f"FLEETFIT_SOAK_SEED={new}")
    return new


@pytest.fixture
def record(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Writes a result: ``record("kills", jobs=200, …)``; each seed has a file of its own."""
    parameters = request.node.callspec.params if hasattr(request.node, "callspec") else {}

    def write(name: str, **values: Any) -> None:
        if "seed" in parameters:
            name += f"-{parameters['seed']}"
        RESULTS.mkdir(parents=True, exist_ok=True)
        content = {
            "test": request.node.nodeid,
            "time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "machine": {"cores": os.cpu_count(), "system": platform.platform(), "python": platform.python_version()},
            "scale": SCALE,
            **values,
        }
        path = RESULTS / f"soak-{name}.json"
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")

    return write
