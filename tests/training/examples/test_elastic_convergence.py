"""What the experiment with a changing number of workers makes of its runs."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from container.contract.wire import Event
from estimators.callbacks import GrowWithEpochs, RandomResize

SCRIPT = Path(__file__).resolve().parents[3] / "examples" / "elastic_convergence.py"


@pytest.fixture(scope="module")
def convergence() -> Any:
    spec = importlib.util.spec_from_file_location("elastic_convergence", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


def run(setting: str, seed: int, accuracies: list[float], *, wall: float = 10.0, worker_s: float = 40.0) -> dict:
    curve = [[epoch, wall * epoch / len(accuracies), 0.1, value, 4] for epoch, value in enumerate(accuracies, 1)]
    return {
        "setting": setting, "seed": seed, "epochs": len(accuracies), "interval": 2.5, "curve": curve,
        "sizes": [[0.0, 4]], "wall_s": wall, "worker_s": worker_s,
    }  # fmt: skip


STEADY = [0.5, 0.8, 0.9, 0.95, 0.96, 0.96, 0.96, 0.96]


def all_runs(**changed: list[float]) -> list[dict]:
    runs = []
    for seed in (1, 2, 3):
        for name in ("fixed 4", "±1", "±3", "fixed 1", "doubling"):
            accuracies = changed.get(name.replace(" ", "_"), STEADY)
            wall = 20.0 if name == "fixed 1" else 10.0
            least = 25.0 if name == "doubling" else 40.0
            shifted = [value + 0.002 * seed for value in accuracies]
            runs.append(run(name, seed, shifted, wall=wall, worker_s=least))
    return runs


def verdicts(convergence: Any, runs: list[dict]) -> list[bool]:
    return [claim.verdict == convergence.REPRODUCED for claim in convergence.claims(runs)]


def test_claims_follow_from_the_runs_and_none_is_forced(convergence: Any) -> None:
    assert verdicts(convergence, all_runs()) == [True, False, True, False, False, True, False, True]
    hurt = all_runs(**{"±3": [*STEADY[:-3], 0.90, 0.91, 0.90]})
    assert convergence.worse(hurt, "±3") == [1, 2, 3] and convergence.worse(hurt, "±1") == []
    assert verdicts(convergence, hurt)[:2] == [False, True]
    uneven = all_runs(fixed_4=[*STEADY[:-4], 0.90, 0.99, 0.95, 0.96])
    assert verdicts(convergence, uneven)[2] is False
    slow = [{**one, "wall_s": 30.0} if one["setting"] in ("±1", "doubling") else one for one in all_runs()]
    assert verdicts(convergence, slow)[5:7] == [False, False]
    better = all_runs(**{name: [*STEADY[:-3], 0.97, 0.97, 0.97] for name in ("±3", "fixed_1")})
    assert verdicts(convergence, better)[3:5] == [True, True]
    assert verdicts(convergence, all_runs(doubling=[*STEADY[:-3], 0.97, 0.97, 0.97]))[6] is True
    late = [{**one, "sizes": [[0.0, 1], [5.0, 2]]} if one["setting"] == "doubling" else one for one in all_runs()]
    assert convergence.claims(late) == []  # it never got to four workers
    assert convergence.claims(all_runs()[:5]) == []  # one seed says nothing


def test_the_table_has_every_setting_and_claim(convergence: Any) -> None:
    text = convergence.table(all_runs())
    assert text.count("\n| fixed 4 ") == 1 and "| 0.9640 (0.9620 to 0.9660) | 10.0 s | 40 |" in text
    assert text.count("**reproduced**") == 4 and text.count("**not reproduced**") == 4
    assert "too few runs" in convergence.table([])


def test_what_is_kept_of_a_job(convergence: Any) -> None:
    def event(kind: str, second: float, **data: object) -> Event:
        return Event(kind=kind, host="algo-1", time_ns=int((1000 + second) * 1e9), data=data)

    def metrics(second: float, **values: float) -> list[Event]:
        return [event("metric", second, name=name, value=value) for name, value in values.items()]

    class Job:
        class record:
            @staticmethod
            def events() -> list[Event]:
                return [
                    event("resized", 0, size=1, before=0),
                    *metrics(2, epoch=1, loss=0.5, val_accuracy=0.7, workers=1),
                    *metrics(3, epoch=2, loss=0.4, val_accuracy=0.8, workers=1),
                    event("resized", 4, size=2, before=1),
                    *metrics(6, epoch=2, loss=0.3, val_accuracy=0.9, workers=2),  # went back to a commit
                ]

    found = convergence.kept(Job())
    assert found["curve"] == [[1, 2.0, 0.5, 0.7, 1], [2, 6.0, 0.3, 0.9, 2]]
    assert found["sizes"] == [[0.0, 1], [4.0, 2]]
    assert (found["wall_s"], found["worker_s"]) == (6.0, 4 * 1 + 2 * 2)


def test_runs_are_kept_and_not_repeated(convergence: Any, tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    assert convergence.load(file) == []
    runs = all_runs()
    convergence.save(file, runs)
    assert convergence.load(file) == json.loads(file.read_text())["runs"] == runs
    options = ["--output", str(file), "--seeds", "3", "--epochs", "8"]
    ended = subprocess.run([sys.executable, str(SCRIPT), *options], capture_output=True, text=True)
    assert ended.returncode == 0 and "seed" not in ended.stdout.split("|")[0], ended.stderr
    other = subprocess.run([sys.executable, str(SCRIPT), *options[:4]], capture_output=True, text=True)
    assert other.returncode == 2 and "another --output" in other.stderr


def test_the_settings_are_resized_by_the_published_rules(convergence: Any) -> None:
    found = {
        name: convergence.callback_of(setting, seed=1, epochs=24, interval=2.5)
        for name, setting in convergence.SETTINGS.items()
    }
    assert [type(found[name]) for name in found] == [type(None), RandomResize, RandomResize, type(None), GrowWithEpochs]
    assert found["doubling"]._left == [(8, 2), (16, 4)]
    assert (found["±1"]._step, found["±1"]._interval, found["±3"]._step, found["±3"]._interval) == (1, 2.5, 3, 7.5)


def test_the_pictures_show_every_setting(convergence: Any) -> None:
    runs = all_runs()
    assert len(convergence.draw_sizes(runs).figure.axes) == 5
    [epochs, time] = convergence.draw_curves(runs).figure.axes
    assert len(epochs.get_lines()) == len(time.get_lines()) == 5
    [accuracy, *_] = convergence.draw_summary(runs).figure.axes
    assert len(accuracy.get_lines()) == 10  # a cloud of points and a median for each
    for draw in (convergence.draw_sizes, convergence.draw_curves, convergence.draw_summary):
        assert [text.get_text() for text in draw([]).figure.axes[0].texts] == ["no run is recorded yet"]
