"""What `make train` runs: digits under each strategy in turn."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
import tarfile
from pathlib import Path

import horovod_torch
import pytest

ROOT = Path(__file__).resolve().parents[3]


def run(*argv: str | Path, home: Path) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("SM_", "SAGEMAKER_", "TF_"))}
    return subprocess.run(
        [sys.executable, *map(str, argv)],
        env={**inherited, "FLEETFIT_HOME": str(home), "COLUMNS": "200"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )


def shown(text: str) -> dict[str, tuple[float, Path, str]]:
    """What the example prints of each strategy: its accuracy, its model below the home's jobs, its checkpoint."""
    _, _, end = text.partition(" strategy ")
    table, _, below = end.partition("Models and checkpoints, in ")
    assert table and max(map(len, table.splitlines())) <= 80, text
    made = [line.strip() for line in below.splitlines()[1:]]
    jobs = [made[start : start + 3] for start in range(0, len(made), 3)]
    rows = re.findall(r"^ +(\w+) +[0-9.]+ s +[0-9,]+ +([0-9.]+) *$", table, re.MULTILINE)
    return {
        strategy: (float(accuracy), Path(job, model), checkpoint)
        for (strategy, accuracy), (job, model, checkpoint) in zip(rows, jobs, strict=True)
    }


@pytest.mark.landing
@pytest.mark.tensorflow
@pytest.mark.horovod
def test_every_strategy_trains_one_script(tmp_path: Path, prepared_digits: Path) -> None:
    example = [ROOT / "examples" / "train_digits.py", "--data", prepared_digits, "--epochs", "5"]
    ended = run(*example, home=tmp_path / "home")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    rows = shown(ended.stdout)
    # 1,437 records in batches of 64: workers of parameter servers leave the rest to the next epoch.
    steps = {"collective_all_reduce": 5 * 23, "parameter_server": 5 * 22, "mpi": 5 * 23}
    assert list(rows) == list(steps), ended.stdout
    for strategy, (accuracy, model, checkpoint) in rows.items():
        # Workers of parameter servers wait for nobody: after few epochs their accuracy differs from run to run.
        assert accuracy >= (0.8 if strategy == "parameter_server" else 0.95)
        assert re.fullmatch(rf"checkpoints/checkpoint-\d+-step-{steps[strategy]}", checkpoint)
        assert (tmp_path / "home" / "jobs" / model).is_file()
    # Both synchronous strategies make the same steps, whatever reduces their gradients.
    assert rows["mpi"][0] == pytest.approx(rows["collective_all_reduce"][0], abs=0.01)


@pytest.mark.torch
def test_the_other_framework_trains_as_well(tmp_path: Path) -> None:
    prepared = run(ROOT / "entrypoints" / "prepare_digits.py", "--output", tmp_path / "digits", home=tmp_path)
    assert prepared.returncode == 0, prepared.stderr
    example = [ROOT / "examples" / "train_digits.py", "--framework", "torch", "--data", tmp_path / "digits"]
    ended = run(*example, "--epochs", "7", home=tmp_path / "home")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    rows = shown(ended.stdout)
    assert list(rows) == ["torch_distributed", *(["mpi"] if "torch" in horovod_torch.BUILT else [])]
    for accuracy, model, checkpoint in rows.values():
        assert accuracy >= 0.9 and checkpoint == f"checkpoints/checkpoint-00000007-step-{7 * 23}"
        with tarfile.open(tmp_path / "home" / "jobs" / model) as archive:
            assert "model.pth" in archive.getnames()
    words = ["--framework", "torch", "--strategies", "parameter_server"]
    other = run(ROOT / "examples" / "train_digits.py", *words, home=tmp_path)
    assert other.returncode == 2 and "is not for --framework torch" in other.stderr


def test_an_unknown_strategy_is_refused(tmp_path: Path) -> None:
    ended = run(ROOT / "examples" / "train_digits.py", "--strategies", "horovd", home=tmp_path)
    assert ended.returncode == 2 and "choose from" in ended.stderr and not (tmp_path / "jobs").exists()


@pytest.mark.parametrize(
    ("ends", "why"),
    [
        ("print('Environment made')", None),
        (
            "sys.exit('fleetfit: Horovod cannot be built: there is no C++ compiler')",
            "fleetfit: Horovod cannot be built",
        ),
        ("sys.exit(3)", "The whole output is in"),
    ],
)
def test_horovod_is_waited_for_and_its_absence_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ends: str, why: str | None
) -> None:
    example = runpy.run_path(str(ROOT / "examples" / "train_digits.py"))
    builder = tmp_path / "estimators" / "provision"
    builder.mkdir(parents=True)
    waited = "print('compiling 1/2', flush=True); time.sleep(1.2); print('compiling 2/2', flush=True)"
    (builder / "__main__.py").write_text(f"import sys, time\n{waited}\n{ends}\n")
    build = example["HorovodBuild"](tmp_path / "log")
    monkeypatch.setitem(build.run.__func__.__globals__, "ROOT", tmp_path)
    build.start()
    reason = build.wait()
    said = capsys.readouterr().out
    assert "compiling 2/2" in said and "compiling 2/2" in (tmp_path / "log").read_text()
    if why is None:
        assert reason is None and re.search(
            r"Horovod was ready after \d+ s, \d+ s of which were at the same time as", said
        )
    else:
        assert why in reason
