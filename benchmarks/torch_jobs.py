"""``TorchDistributed`` beside torchrun, of this environment: launch, steps, failure to exception, kill −9."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks import harness, peers
from benchmarks.harness import Bar, Numbers, Quiet, Row, median_with_interval

OURS, THEIRS = "fleetfit", "torchrun"
_SCRIPTS = harness.HERE / "scripts" / "peers"
_SECONDS = 4.0
#: What is measured -> what it is called, the key of its numbers, its unit, and what ours must be of theirs.
_WHAT = {
    "launch": ("two processes that do nothing", "seconds", "s", 0.35, False),
    "steps": ("steps of a small model in DDP, two ranks", "rate", "steps/s", 0.99, True),
    "failure": ("from one process's exception to the caller's, the other one sleeping", "seconds", "s", None, False),
    "kill": ("processes alive 2 s after kill −9 of the launcher", "left", "processes", None, False),
}
_ROUNDS = {"launch": 6, "steps": 6, "failure": 4, "kill": 3}
#: From the exception to the caller's, in seconds; and processes that may be left.
_FAILURE_S, _LEFT = 0.2, 0.0


def run(options: argparse.Namespace) -> None:
    """Measure and record."""
    quiet = Quiet(options.patience, repeats=False)
    rows: list[Row] = []
    samples: dict[str, dict[str, list[Numbers]]] = {}
    with harness.own_home(), tempfile.TemporaryDirectory(prefix="bench-") as folder, harness.terminable():
        for what in _WHAT:
            samples[what] = {}
            ways = _ways(what, Path(folder), options.seconds or _SECONDS)
            harness.alternate(options.alternations or _ROUNDS[what], ways, quiet, values=samples[what])
            rows += _rows(what, samples[what])
    harness.record("torch", rows, samples, quiet, dry=options.dry)


def _ways(what: str, folder: Path, seconds: float) -> dict[str, Callable[[], Numbers]]:
    script = "torch_steps.py" if what == "steps" else "script.py"
    torchrun = str(Path(sys.executable).with_name("torchrun"))
    commands = {
        OURS: [sys.executable, str(_SCRIPTS / "with_torch_distributed.py"), script],
        THEIRS: [torchrun, "--standalone", "--nproc-per-node", "2", str(_SCRIPTS / script)],
    }
    measure = {"launch": peers._launch, "failure": peers._failure, "kill": peers._kill}.get(what)

    def steps(command: list[str], place: Path) -> Numbers:
        peers._launch(["env", f"PEERS_SECONDS={seconds}", *command], place)
        return {"rate": float(json.loads((place / "steps").read_text()))}

    return {
        name: lambda command=command, name=name: (measure or steps)(command, folder / f"{what}-{name}")  # type: ignore[misc]
        for name, command in commands.items()
    }


def _rows(what: str, values: dict[str, list[Numbers]]) -> list[Row]:
    """A row for each way, and where a bar is one of both, a row of ours ÷ theirs."""
    title, key, unit, limit, at_least = _WHAT[what]
    ours, theirs = ([numbers[key] for numbers in values[way]] for way in (OURS, THEIRS))
    bars = {"failure": Bar(limit=_FAILURE_S), "kill": Bar(limit=_LEFT)}
    rows = [
        Row(what=f"{title}: {OURS}", estimate=median_with_interval(ours), unit=unit, bar=bars.get(what),
            beside={THEIRS: statistics.median(theirs)}),
    ]  # fmt: skip
    if limit is not None:
        ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
        rows.append(
            Row(what=f"{title}: {OURS} ÷ {THEIRS}", estimate=median_with_interval(ratios), unit="",
                bar=Bar(limit=limit, at_least=at_least))
        )  # fmt: skip
    return rows
