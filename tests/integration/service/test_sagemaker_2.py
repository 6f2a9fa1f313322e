"""The SageMaker SDK 2.x, unchanged, with scripts as they are written for SageMaker."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from serving import Serving

SCRIPTS = Path(__file__).parent / "scripts"
NAMES = (
    *("mpi", "parameter_server", "multi_worker", "pipe", "spot", "failing", "aws_images", "tuning"),
    "torch_distributed",
)

pytestmark = pytest.mark.network


def test_scripts_as_they_are_written_for_sagemaker(served: Serving, sagemaker_2: Path, tmp_path: Path) -> None:
    """All of them at once, each in a process of its own; then everything that they printed and left is looked at.

    One test, so that tests that are spread over several workers start them once.
    """
    outputs = run_scripts(served, sagemaker_2, tmp_path)
    failed = []
    for check in CHECKS:
        try:
            check(served, outputs)
        except AssertionError as error:
            failed.append(f"{check.__name__}: {error}")
    assert not failed, "\n\n".join(failed)


def run_scripts(served: Serving, sagemaker_2: Path, out: Path) -> Mapping[str, str]:
    """Run the scripts; returns what each printed."""
    done = subprocess.run(
        [sagemaker_2, Path(__file__).parent / "forking.py", out, *(SCRIPTS / f"{name}.py" for name in NAMES)],
        env=served.by_profile(),
        cwd=out,
        capture_output=True,
        text=True,
        timeout=400,
    )
    texts = {name: (out / f"{name}.out").read_text() for name in NAMES}
    assert [name for name in served.by_profile() if name.startswith(("AWS_P", "SAGEMAKER_"))] == ["AWS_PROFILE"]
    printed = (done.stdout, done.stderr, *(f"{name}.py:\n{text}" for name, text in texts.items()), served.said())
    assert done.returncode == 0, "\n".join(printed)  # a tuple would be cut
    return texts


def said(text: str) -> list[dict[str, object]]:
    """What the ranks said, in the order of their logs."""
    return [json.loads(match) for match in re.findall(r"said (\{.*\})", text)]


def model_of(served: Serving, text: str) -> Path:
    match = re.search(r"model: s3://(\S+)", text)
    assert match is not None
    return served.home / "s3" / match[1]


def mpi(served: Serving, outputs: Mapping[str, str]) -> None:
    text = outputs["mpi"]
    ranks = said(text)
    assert sorted(int(str(rank["rank"])) for rank in ranks) == [0, 1, 2, 3]
    assert {(rank["size"], rank["sum"], rank["epochs"], rank["name"]) for rank in ranks} == {(4, 10, 3, 'it\'s a "b"')}
    assert model_of(served, text).is_file()
    for rank, host in enumerate(("algo-1", "algo-1", "algo-2", "algo-2")):
        assert f"[{host}:rank {rank}] said" in text
    for words in ("Starting - ", "Training - ", "Uploading - ", "Completed - ", "Training seconds: ", "Billable sec"):
        assert words in text


def attach_and_analytics(served: Serving, outputs: Mapping[str, str]) -> None:
    text = outputs["mpi"]
    match = re.search(r"attached: (\S+) (s3://\S+/output/model.tar.gz) (\S+)", text)
    assert match is not None
    assert match[1] in match[2]
    assert match[3] == "3"
    values = [float(value) for value in re.findall(r"^\d +[\d.]+ +loss +([\d.]+)$", text, re.MULTILINE)]
    assert values, text
    assert sum(values) / len(values) == pytest.approx((1 + 1 / 2 + 1 / 3) / 3, rel=1e-3)


def parameter_servers(served: Serving, outputs: Mapping[str, str]) -> None:
    tasks = said(outputs["parameter_server"])
    found = sorted((str(task["host"]), json.dumps(task["task"])) for task in tasks)
    assert found == [
        ("algo-1", '{"type": "master", "index": 0}'),
        ("algo-2", '{"type": "worker", "index": 0}'),
    ]
    assert all(task["cluster"] == {"master": 1, "worker": 1, "ps": 2} for task in tasks)


def multi_worker_mirrored(served: Serving, outputs: Mapping[str, str]) -> None:
    tasks = said(outputs["multi_worker"])
    assert [task["host"] for task in sorted(tasks, key=lambda task: str(task["host"]))] == ["algo-1", "algo-2"]
    assert all(task["cluster"] == {"worker": 2} for task in tasks)


def pytorch_as_torchrun_starts_it(served: Serving, outputs: Mapping[str, str]) -> None:
    ranks = said(outputs["torch_distributed"])
    assert sorted(str(rank["host"]) for rank in ranks) == ["algo-1", "algo-2"]
    assert all((rank["RANK"], rank["WORLD_SIZE"]) == (rank["GROUP_RANK"], 2) for rank in ranks)
    assert all(int(str(rank["MASTER_PORT"])) > 0 for rank in ranks)


def pipe_mode_with_sharded_objects(served: Serving, outputs: Mapping[str, str]) -> None:
    shares = {str(share["host"]): share["lines"] for share in said(outputs["pipe"])}
    assert sorted(shares) == ["algo-1", "algo-2"]
    lines = [line for share in shares.values() for line in list(share)]  # type: ignore[call-overload]
    assert sorted(lines) == [f"line-{number}" for number in range(6)]
    assert all(len(list(share)) == 3 for share in shares.values())  # type: ignore[call-overload]


def spot_with_checkpoints(served: Serving, outputs: Mapping[str, str]) -> None:
    assert re.findall(r"resumed after epoch (\d)", outputs["spot"]) == ["0", "1"]
    assert "Managed Spot Training savings: " in outputs["spot"]
    kept = {path.name for path in (served.bucket / "checkpoints" / "spot").iterdir()}
    assert {"epoch-1", "epoch-2"} <= kept


def a_script_that_fails_raises_with_the_reason(served: Serving, outputs: Mapping[str, str]) -> None:
    text = outputs["failing"]
    caught = text[text.index("caught:") :]
    assert "Failed" in caught
    assert "there is no column 'price' in the data" in caught
    assert "ValueError" in text[: text.index("caught:")]


def awss_images_by_tensorflows_version(served: Serving, outputs: Mapping[str, str]) -> None:
    text = outputs["aws_images"]
    assert re.findall(r"^image: (.*)$", text, re.MULTILINE) == [
        "763104351884.dkr.ecr.eu-west-1.amazonaws.com/tensorflow-training:2.16-cpu-py310",
        "763104351884.dkr.ecr.eu-west-1.amazonaws.com/tensorflow-training:2.16-gpu-py310",
    ]
    assert "refused: AWS has no such TensorFlow image: Unsupported tensorflow version: 1.99" in text


def a_tuner(served: Serving, outputs: Mapping[str, str]) -> None:
    text = outputs["tuning"]
    assert "trials: 3 ['Completed']" in text
    best = re.search(r"^best: \"?([\d.]+)\"? ([\d.]+)$", text, re.MULTILINE)
    assert best is not None, text
    assert float(best[1]) == pytest.approx(float(best[2]))
    assert "attached: ['learning-rate', 'optimizer'] Bayesian" in text
    assert "listed: Completed 3" in text
    assert "stopped: The request was rejected because the tuning job is in status Completed." in text
    assert "status: Stopped" in text


def our_tuner_has_the_originals_names_and_forms(served: Serving, outputs: Mapping[str, str]) -> None:
    """The SDK's signature, methods, requests and columns beside ours."""
    from estimators import analytics
    from estimators import tuner as ours

    match = re.search(r"^original: (.*)$", outputs["tuning"], re.MULTILINE)
    assert match is not None
    original = json.loads(match[1])
    parameters = inspect.signature(ours.HyperparameterTuner).parameters
    defaults = {name: repr(value.default) for name, value in parameters.items() if name in original["defaults"]}
    assert defaults == original["defaults"]
    left_out = {
        "DEFAULT_ESTIMATOR_CLS_NAME", "DEFAULT_ESTIMATOR_MODULE", "SAGEMAKER_ESTIMATOR_CLASS_NAME",
        "SAGEMAKER_ESTIMATOR_MODULE",  # of its requests
        "hyperparameter_ranges_dict", "override_resource_config", "sagemaker_session",  # of create() and instances
        "delete_endpoint",  # of deploy()
        "visualize_job", "visualize_jobs",  # by Amtviz; ours is the HTML
    }  # fmt: skip
    assert {name for name in original["names"] if not hasattr(ours.HyperparameterTuner, name)} <= left_out
    assert original["forms"] == [
        ours.ContinuousParameter(0.1, 1).as_tuning_range("a"),
        ours.IntegerParameter(1, 5, "Logarithmic").as_tuning_range("a"),
        ours.CategoricalParameter(["x", "y"]).as_json_range("a"),
        ours.CategoricalParameter([1, 2]).as_tuning_range("a"),
        ours.WarmStartConfig(ours.WarmStartTypes.TRANSFER_LEARNING, {"b"}).to_input_req(),
        ours.StrategyConfig(ours.HyperbandStrategyConfig(9, 1)).to_input_req(),
        ours.TuningJobCompletionCriteriaConfig(3, True, 0.5).to_input_req(),
    ]
    frame = analytics.HyperparameterTuningJobAnalytics("tuned", home=served.home).dataframe()
    assert list(frame.columns)[: len(original["columns"])] == original["columns"]


CHECKS = (
    mpi,
    attach_and_analytics,
    parameter_servers,
    multi_worker_mirrored,
    pytorch_as_torchrun_starts_it,
    pipe_mode_with_sharded_objects,
    spot_with_checkpoints,
    a_script_that_fails_raises_with_the_reason,
    awss_images_by_tensorflows_version,
    a_tuner,
    our_tuner_has_the_originals_names_and_forms,
)
