"""Real studies, of plain scripts: trials that end in every way, a tuner that is killed, one that is stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import clusters
import pytest
from waiting import until

from estimators import ElasticHorovod, Estimator, TuningJobError
from estimators.analytics import HyperparameterTuningJobAnalytics
from estimators.records.record import job_names
from estimators.tuner import (
    CategoricalParameter,
    ContinuousParameter,
    HyperparameterTuner,
    IntegerParameter,
    PopulationConfig,
    SharedFleetConfig,
    WarmStartConfig,
    WarmStartTypes,
)
from estimators.tuning import running
from estimators.tuning.display import held_up_by, report, study_html
from estimators.tuning.plots import hosts_over_time
from estimators.tuning.record import TuningRecord

SCRIPT = """
import argparse, os, signal, sys, time
parser = argparse.ArgumentParser()
parser.add_argument("--level", type=float, default=1)
parser.add_argument("--mode", default="ok")
parser.add_argument("--note", default="")
given = parser.parse_args()
while given.mode == "waits" and given.level >= 3 and not os.path.exists(given.note):
    time.sleep(0.02)
if given.mode == "fail":
    sys.exit("there is no column 'price'")
value = {"nan": "nan", "silent": None, "bad": 0.1}.get(given.mode, given.level)
for step in range(3):
    if value is not None:
        print(f"score={value}", flush=True)
    if step == 0 and (given.mode in ("bad", "stays") or (given.mode == "gets there" and given.level >= 0.9)):
        signal.pause()  # until it is stopped
"""


@pytest.fixture
def script(tmp_path: Path, home: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def tuner(script: Path, ranges: dict[str, Any], **more: Any) -> HyperparameterTuner:
    estimator = Estimator(
        entry_point=str(script), base_job_name="study", hyperparameters=more.pop("hyperparameters", None) or {}
    )
    return HyperparameterTuner(
        estimator, "score", ranges, metric_definitions=[{"Name": "score", "Regex": r"score=(\S+)"}],
        **{"max_parallel_jobs": 2, **more},
    )  # fmt: skip


@pytest.mark.landing
def test_trials_end_in_every_way_and_the_study_goes_on(
    script: Path, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    modes = CategoricalParameter(["ok", "nan", "fail"])
    searched = tuner(script, {"mode": modes}, strategy="Grid", hyperparameters={"level": 0.5, "mode": "unused"})
    searched.fit()
    frame = searched.analytics().dataframe().set_index("mode")
    assert dict(frame["TrialState"]) == {"ok": "Completed", "nan": "Failed", "fail": "Failed"}
    assert frame["FinalObjectiveValue"]["ok"] == 0.5
    assert "nan, which is not a finite number" in frame["Reason"]["nan"]
    assert "there is no column 'price'" in frame["Reason"]["fail"]
    assert "best so far" in capsys.readouterr().out
    described = searched.describe()
    assert described["HyperParameterTuningJobStatus"] == "Completed"
    assert described["TrainingJobStatusCounters"] == {
        "Completed": 2, "InProgress": 0, "RetryableError": 0, "NonRetryableError": 1, "Stopped": 0
    }  # fmt: skip
    assert described["BestTrainingJob"]["TrainingJobName"] == searched.best_training_job()
    best = searched.best_estimator()
    assert best.settings.hyperparameters == {"level": 0.5, "mode": "ok"}
    again = HyperparameterTuner.attach(searched.name)
    assert again.best_training_job() == searched.best_training_job()
    assert again.estimator.settings.hyperparameters == {"level": 0.5}
    assert len(HyperparameterTuningJobAnalytics(searched.name).training_job_summaries()) == 3
    record = searched.latest_tuning_job
    assert record is not None
    html = study_html(record)
    assert "score" in html
    assert searched.best_training_job() in html
    page = report(record, tmp_path / "study.html").read_text()
    assert page.startswith("<!doctype html>")
    assert page.count("<svg") >= 1

    # What it has found out, another one starts with.
    warm = tuner(
        script, {"mode": CategoricalParameter(["ok", "other"])}, max_jobs=1, hyperparameters={"level": 0.25},
        warm_start_config=WarmStartConfig(WarmStartTypes.TRANSFER_LEARNING, [searched.name]),
    )  # fmt: skip
    warm.fit()
    assert len(warm.analytics().dataframe()) == 1
    assert warm.latest_tuning_job is not None
    assert '"parent"' in warm.latest_tuning_job.journal.read_text()


def test_a_tuner_that_is_killed_loses_no_trial(script: Path, home: Path, tmp_path: Path) -> None:
    mark = tmp_path / "killed"
    searched = tuner(
        script,
        {"level": IntegerParameter(1, 4)},
        strategy="Grid",
        hyperparameters={"mode": "waits", "note": str(mark)},
        max_parallel_jobs=2,
    )
    searched.fit(wait=False)
    record = searched.latest_tuning_job
    assert record is not None

    def states() -> list[str]:
        return [row["state"] for row in record.trials()]

    until(lambda: states() == ["Completed", "Completed", "Running", "Running"])
    before = [row for row in record.trials() if row["state"] == "Completed"]
    os.kill(record.status()["Fleetfit"]["pid"], signal.SIGKILL)
    until(lambda: not record.is_supervised())
    mark.touch()
    assert searched.describe()["HyperParameterTuningJobStatus"] == "InProgress"
    searched.wait()
    rows = record.trials()
    assert [row for row in rows if row["number"] in {one["number"] for one in before}] == before
    assert sorted(json.loads(row["values"]["level"]) for row in rows) == [1, 2, 3, 4]
    assert {row["state"] for row in rows} == {"Completed"}
    assert job_names() == sorted(row["job"] for row in rows)
    assert searched.best_estimator().settings.hyperparameters["level"] == 4


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
@pytest.mark.filterwarnings("ignore::estimators.PreflightWarning")
def test_a_study_waits_for_room_on_the_disk(script: Path, home: Path, tmp_path: Path) -> None:
    """The trials to come would all fail for it."""
    mark = tmp_path / "full"
    home.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(home)], check=True)
    try:
        given = {"mode": "waits", "note": str(mark)}
        searched = tuner(script, {"level": IntegerParameter(3, 5)}, strategy="Grid", hyperparameters=given)
        searched.fit(wait=False)
        record = searched.latest_tuning_job
        assert record is not None
        until(lambda: [job.describe()["SecondaryStatus"] for job in searched.trials()] == ["Training"] * 2)
        with (home / "filler").open("wb", 0) as filler:
            with pytest.raises(OSError, match="No space left"):
                while True:
                    filler.write(bytes(4096))
        mark.touch()
        until(lambda: "No space left on device" in (held_up_by(record) or ""))
        (home / "filler").unlink()
        searched.wait()
        assert record.trials()[2]["value"] == 5.0  # the others may have had no room for their own words
        assert held_up_by(record) is None
    finally:
        clusters.kill_everything_of(home)
        subprocess.run(["umount", "--lazy", str(home)], check=True)


def test_a_tuning_job_is_stopped(script: Path, home: Path) -> None:
    searched = tuner(script, {"level": IntegerParameter(1, 9)}, max_jobs=9, hyperparameters={"mode": "stays"})
    searched.fit(wait=False)
    record = searched.latest_tuning_job
    assert record is not None
    until(lambda: [row["reports"] for row in record.trials()] == [1, 1])
    # A second process of the same tuning job leaves it alone.
    assert running.start(record).wait(30) == 0
    assert record.is_supervised()
    searched.stop_tuning_job()
    searched.wait()
    assert searched.describe()["HyperParameterTuningJobStatus"] == "Stopped"
    assert [row["state"] for row in record.trials()] == ["Stopped", "Stopped"]
    assert [str(job.status) for job in searched.trials()] == ["Stopped", "Stopped"]
    searched.stop_tuning_job()  # of one that is over: nothing


CLIMBING = """
import argparse, os, time
parser = argparse.ArgumentParser()
parser.add_argument("--rate", type=float)
rate = parser.parse_args().rate
step = 0
while True:
    step += 1
    print(f"score={rate * step / (step + 1)}", flush=True)
    time.sleep(0.1)
"""


def test_hosts_of_a_shared_fleet_go_to_the_best_trial_until_the_deadline(
    script: Path, home: Path, tmp_path: Path
) -> None:
    """Of two trials that never end by themselves the better one has all hosts at the end, and its value counts."""
    script.write_text(CLIMBING)
    searched = tuner(
        script, {"rate": CategoricalParameter([0.1, 0.9])}, strategy="Grid", max_parallel_jobs=1,
        max_runtime_in_seconds=20, shared_fleet=SharedFleetConfig(hosts=2, explore=0.2),
    )  # fmt: skip
    searched.estimator.distribution = ElasticHorovod(min_hosts=1, max_hosts=2)
    searched.fit()
    assert searched.latest_tuning_job is not None
    worst, best = searched.latest_tuning_job.trials()
    assert (worst["state"], worst["reason"]) == ("Pruned", "pruned: its hosts went to better trials")
    assert (best["state"], best["reason"], best["hosts"]) == ("Completed", "the deadline was reached", 2)
    assert searched.best_training_job() == best["job"]
    assert searched.describe()["HyperParameterTuningJobStatus"] == "Completed"
    assert [len(job.membership) for job in searched.trials()] == [1, 2]
    again = HyperparameterTuner.attach(searched.name)
    assert again.shared_fleet == searched.shared_fleet
    hosts = {number: [size for _, size in rows] for number, rows in hosts_over_time(searched.latest_tuning_job).items()}
    assert hosts == {0: [1, 0], 1: [1, 2, 0]}
    assert "trial 2" in report(searched.latest_tuning_job, tmp_path / "study.html").read_text()


def test_asha_stops_a_trial_that_is_no_good(script: Path, home: Path) -> None:
    """The first trial is good; the second is worse at the first rung, and would never end."""
    searched = tuner(
        script, {"mode": CategoricalParameter(["good", "bad"])}, strategy="ASHA", max_jobs=2, max_parallel_jobs=1,
        reduction_factor=2, random_seed=seed_of(["good", "bad"]),
    )  # fmt: skip
    searched.fit()
    assert searched.latest_tuning_job is not None
    good, bad = searched.latest_tuning_job.trials()
    assert (good["state"], bad["state"]) == ("Completed", "Pruned")
    assert bad["reason"] == "pruned after 1 values of score"
    assert searched.trials()[1].status == "Stopped"


def seed_of(wanted: list[str]) -> int:
    """A seed with which a random search over two choices begins with these."""
    from estimators.tuning import search

    for seed in range(50):
        study = search.optuna.create_study(sampler=search.optuna.samplers.RandomSampler(seed=seed))
        if [study.ask().suggest_categorical("mode", ["good", "bad"]) for _ in wanted] == wanted:
            return seed
    raise AssertionError("no seed")


def test_how_soon_a_trial_gets_there(script: Path, home: Path) -> None:
    """The one that gets there would never end by itself, and is ended; the other has no value."""
    ranges = {"level": CategoricalParameter([0.5, 0.9])}
    searched = tuner(script, ranges, strategy="Grid", hyperparameters={"mode": "gets there"})
    searched.objective_metric_name = "time_to:score>=0.9"
    searched.fit()
    assert searched.latest_tuning_job is not None
    slow, quick = searched.latest_tuning_job.trials()
    assert (slow["state"], slow["value"]) == ("Failed", None)
    assert slow["reason"] == "it never reached score>=0.9. The last value was 0.5"
    assert quick["state"] == "Completed"
    assert quick["value"] >= 0
    assert searched.best_training_job() == quick["job"]
    assert (
        searched.describe()["HyperParameterTuningJobConfig"]["HyperParameterTuningJobObjective"]["Type"] == "Minimize"
    )


def test_a_population_goes_on_from_the_best_ones_checkpoints(script: Path, home: Path) -> None:
    """A script that adds its step to what it finds in its checkpoint: the worst of two goes on from the best."""
    script.write_text(
        """
import argparse, os, pathlib
parser = argparse.ArgumentParser()
parser.add_argument("--step", type=float)
parser.add_argument("--epochs", type=int)
given = parser.parse_args()
weights = pathlib.Path(os.environ["SM_CHECKPOINT_DIR"]) / "weights"
began, value = eval(weights.read_text()) if weights.exists() else (0, 0.0)
for epoch in range(began, given.epochs):
    value += given.step
weights.write_text(repr((given.epochs, value)))
print(f"from {began} to {given.epochs}")
print(f"score={value}")
"""
    )
    searched = tuner(
        script, {"step": ContinuousParameter(0.5, 10.0)}, strategy="PBT", max_jobs=4, random_seed=2,
        population_config=PopulationConfig(size=2, interval=2, quantile=0.5, resample_probability=0.0),
    )  # fmt: skip
    searched.fit()
    assert searched.latest_tuning_job is not None
    rows = searched.latest_tuning_job.trials()
    steps = [float(row["values"]["step"]) for row in rows]
    best, worst = sorted((0, 1), key=lambda member: -steps[member])
    assert [row["values"]["epochs"] for row in rows] == ["2", "2", "4", "4"]
    assert [row["value"] for row in rows[:2]] == pytest.approx([2 * step for step in steps[:2]])
    assert {row["origin"] for row in rows[2:]} == {rows[best]["job"]}
    assert rows[2 + best]["value"] == pytest.approx(4 * steps[best])
    assert steps[2 + worst] in (pytest.approx(0.8 * steps[best]), pytest.approx(min(10.0, 1.2 * steps[best])))
    assert rows[2 + worst]["value"] == pytest.approx(2 * steps[best] + 2 * steps[2 + worst])


def test_hyperparameters_are_tried_once_and_a_space_that_is_used_up_ends_the_study(script: Path, home: Path) -> None:
    ranges = {
        "level": ContinuousParameter(3, 3),
        "mode": CategoricalParameter(["ok", "fine"]),
        "note": IntegerParameter(1, 2),
    }
    searched = tuner(script, ranges, max_jobs=9, strategy="Random", max_parallel_jobs=3)
    searched.fit()
    record = TuningRecord.open(searched.name)
    found = [(row["values"]["mode"], row["values"]["note"]) for row in record.trials()]
    assert sorted(found) == [('"fine"', "1"), ('"fine"', "2"), ('"ok"', "1"), ('"ok"', "2")]
    assert record.status()["Fleetfit"]["ended_because"] == "all 4 points of the search space were tried"
    again = tuner(script, {"level": IntegerParameter(1, 1)}, max_jobs=2, repeats=True)
    again.fit()
    assert len(TuningRecord.open(again.name).trials()) == 2


def test_a_metric_that_is_never_reported_ends_the_study(script: Path, home: Path) -> None:
    searched = tuner(script, {"note": CategoricalParameter(["a", "b", "c"])}, strategy="Grid", max_parallel_jobs=1,
                     hyperparameters={"mode": "silent"})  # fmt: skip
    with pytest.raises(
        TuningJobError,
        match=r"never reported 'score', nor any other metric: the regex .* matched no line of the output",
    ):
        searched.fit()
    assert len(TuningRecord.open(searched.name).trials()) == 1
