"""The scripts in ``entrypoints/`` under ``fit()``: strategy × Keras of the one for all, and those that users bring.

``tests/training/distributed`` starts some of them by hand; here fleetfit's launchers do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from estimators import (
    MPI,
    CollectiveAllReduce,
    ParameterServer,
    TensorFlow,
    TrainingJob,
    TrainingJobError,
)
from estimators.client.callbacks import Callback, Metric

ROOT = Path(__file__).resolve().parents[3]
pytestmark = [pytest.mark.tensorflow, pytest.mark.horovod, pytest.mark.filterwarnings("ignore::UserWarning")]


@pytest.fixture
def digits(prepared_digits: Path) -> dict[str, str]:
    """The digits, as a job's channels."""
    return {"train": str(prepared_digits / "train"), "validation": str(prepared_digits / "validation")}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEETFIT_HOME", str(tmp_path / "home"))
    for name in ("TF_USE_LEGACY_KERAS", "TF_CONFIG"):
        monkeypatch.delenv(name, raising=False)


def fit(
    script: str,
    distribution: Any,
    inputs: dict[str, str],
    hyperparameters: dict[str, Any],
    environment: Mapping[str, str] | None = None,
    callbacks: Any = None,
    hosts: int = 2,
) -> TrainingJob:
    """Train on local hosts."""
    estimator = TensorFlow(
        entry_point=script,
        source_dir=str(ROOT / "entrypoints"),
        instance_count=hosts,
        instance_type="local_process",
        distribution=distribution,
        hyperparameters=hyperparameters,
        environment=dict(environment or {}),
    )
    job = estimator.fit(inputs, callbacks=callbacks)
    assert job.result().warnings == ()  # it is distributed, and nothing diverged
    return job


def printed(job: TrainingJob) -> dict[str, str]:
    """What each process printed, by ``host:process``."""
    found: dict[str, str] = {}
    for line in job.log_lines():
        key = f"{line[1]}:{line[2]}"
        found[key] = found.get(key, "") + line[4].decode("utf-8", "replace")
    return found


def accuracy(text: str) -> float:
    """The last one that was printed."""
    values = re.findall(r"(?:val_accuracy|validation accuracy): ([0-9.]+)", text)
    assert values, text
    return float(values[-1])


@pytest.mark.parametrize(
    "distribution",
    [MPI(), pytest.param(CollectiveAllReduce(), marks=pytest.mark.soak)],
    ids=["mpi", "collective_all_reduce"],
)
def test_keras_3_with_the_synchronous_strategies(distribution: Any, digits: dict[str, str], tmp_path: Path) -> None:
    seen: list[float] = []

    class Watch(Callback):
        def on_metric(self, job: TrainingJob, metric: Metric) -> None:
            if metric.name == "val_accuracy":
                seen.append(metric.value)

    job = fit("train.py", distribution, digits, {"epochs": 4}, {"TF_USE_LEGACY_KERAS": "0"}, callbacks=[Watch()])
    metrics = job.metrics()
    values = metrics[metrics["name"] == "val_accuracy"]
    assert values["value"].iloc[-1] >= 0.9
    assert set(values["rank"]) == {0}
    # The job's own metrics arrive while it runs, without a regex.
    assert seen == values["value"].tolist()
    assert all(seconds is not None for seconds in job.phases.values()), job.phases
    assert Path(job.model_data or "").is_file()
    assert len(list(Path(job.checkpoints).glob("checkpoint-*"))) >= 3


@pytest.mark.soak
def test_keras_3_with_parameter_servers_is_refused(digits: dict[str, str]) -> None:
    with pytest.raises(TrainingJobError, match=r"parameter_server needs tf_keras.*Set TF_USE_LEGACY_KERAS=1"):
        fit("train.py", ParameterServer(), digits, {"epochs": 1}, {"TF_USE_LEGACY_KERAS": "0"})


@pytest.mark.parametrize(
    ("script", "distribution", "hyperparameters", "words"),
    [
        ("train_horovod.py", MPI(), {"epochs": 4, "batch-size": 32}, ""),
        pytest.param("train_multi_worker.py", CollectiveAllReduce(), {"epochs": 8}, "", marks=pytest.mark.soak),
        # No update of the iteration counter is lost.
        ("train_parameter_server.py", ParameterServer(), {"epochs": 5, "learning-rate": 0.002}, "updates: 220 of 220"),
        ("train_mpi4py.py", MPI(processes_per_host=2), {}, "rank 3 of 4"),
        pytest.param("train_session.py", MPI(), {}, "rank 1 of 2, with MPI", marks=pytest.mark.soak),
    ],
    ids=["horovod", "multi_worker", "parameter_server", "mpi4py", "session"],
)
def test_scripts_that_users_bring(
    script: str, distribution: Any, hyperparameters: dict[str, Any], words: str, digits: dict[str, str]
) -> None:
    job = fit(script, distribution, digits, hyperparameters)
    text = "".join(printed(job).values())
    assert accuracy(text) >= 0.85 and words in text, accuracy(text)
    assert Path(job.model_data or "").is_file()


def test_the_session_script_trains_alone_where_mpi_is_off(digits: dict[str, str]) -> None:
    job = fit("train_session.py", None, digits, {}, hosts=1)
    text = "".join(printed(job).values())
    assert accuracy(text) >= 0.95 and "without MPI" in text
    # The SageMaker SDK names a place outside the host's tree for it, where MPI is off.
    [checkpoints] = Path(job.record.path).parent.parent.glob(f"**/{job.name}/model/checkpoint")
    assert checkpoints.is_file()


@pytest.mark.soak
def test_horovods_settings_reach_it(digits: dict[str, str]) -> None:
    """Fusion, cycle time, autotune; fp16 gradients, Adasum and warm-up are the script's own."""
    settings = MPI(fusion_threshold_mb=16, cycle_time_ms=2.5, autotune=True, hierarchical_allreduce=True)
    job = fit(
        "train.py",
        settings,
        digits,
        {"epochs": 10, "op": "adasum", "warmup-epochs": 2, "learning-rate": 0.002},
        {"HOROVOD_LOG_LEVEL": "debug"},
    )
    text = "".join(printed(job).values())
    assert accuracy(text) >= 0.95
    assert "Autotuner" in text or "autotune" in text.lower(), text[-3000:]
