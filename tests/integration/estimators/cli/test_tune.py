"""``fleetfit tune`` and ``fleetfit tuning`` with a real study."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from estimators.cli import Exit
from estimators.cli import main as cli

pytestmark = pytest.mark.usefixtures("home")


def test_a_study_from_the_shell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "runs").as_uri()
    script = tmp_path / "train.py"
    script.write_text("import sys\nprint('loss=', abs(float(sys.argv[sys.argv.index('--lr') + 1]) - 1))\n")
    report = tmp_path / "study.html"
    words = ["tune", str(script), "--range", "lr=1,2", "--objective", "loss", "--minimize", "--search", "grid"]
    more = ["--parallel", "2", "-m", "loss=loss= (.*)", "--name", "study", "--report", str(report)]
    more += ["--track", f"mlflow={uri}", "--", "--epochs", "1"]
    assert cli.main([*words, *more]) == Exit.OK
    shown = capsys.readouterr()
    assert "best: study-001-" in shown.out
    assert "--lr 1" in shown.out
    assert "continues without this command" in shown.err
    assert "Parallel coordinates" in report.read_text()
    assert cli.main(["tuning"]) == Exit.OK
    assert "2 of 2 trials" in capsys.readouterr().out
    assert cli.main(["tuning", "stu", "--json"]) == Exit.OK
    assert json.loads(capsys.readouterr().out)["BestTrainingJob"]["TunedHyperParameters"] == {"lr": "1"}
    assert cli.main(["tuning", "study"]) == Exit.OK
    first, second = [line.split() for line in capsys.readouterr().out.splitlines() if " study-0" in line]
    assert (first[:3], second[:3]) == (["1", "Completed", "0"], ["2", "Completed", "1"])
    assert cli.main(["tuning", "study", "--stop"]) == Exit.OK  # of one that is over: nothing
    assert cli.main(["tuning", "nobody"]) == Exit.NOT_FOUND
    assert cli.main([*words[:2], "--range", "lr=2:1", "--objective", "loss"]) == Exit.USAGE
    assert "--range lr: " in capsys.readouterr().err

    # Trials are runs below the study's.
    for _ in range(2):  # again, it changes nothing
        client = MlflowClient(uri)
        runs = client.search_runs([client.get_experiment_by_name("fleetfit").experiment_id])
        [study] = [run for run in runs if run.info.run_name == "study"]
        trials = [run for run in runs if run is not study]
        assert {run.data.tags["mlflow.parentRunId"] for run in trials} == {study.info.run_id}
        assert sorted((run.data.params["lr"], run.data.metrics["loss"]) for run in trials) == [("1", 0.0), ("2", 1.0)]
        assert {run.info.status for run in runs} == {"FINISHED"}
        assert cli.main(["track", f"mlflow={uri}", "study"]) == Exit.OK
