"""Job files: what they say, where they are wrong, and that what is written reads back."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimators import ConfigurationError
from estimators.client.jobfiles import building, reading, writing
from estimators.client.jobfiles.schema import schema

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import jsonschema

WHOLE = """
# A comment, and every kind of value.
framework: tensorflow
entry_point: train.py
source_dir: code
dependencies: [lib]
hyperparameters:
  epochs: 3
  rate: 1e-3
  name: no
  layers: [64, 32]
  nested: {deep: {deeper: null}}
  text: "1e-3"
environment: {LEVEL: "3"}
distribution:
  mpi: {enabled: true, processes_per_host: 2}
instance_count: 2
inputs:
  train: data/digits
  test:
    s3_data: s3://bucket/test
    distribution: ShardedByS3Key
    shuffle_config: {seed: 7}
  files: {file_system_id: fs-1, file_system_type: EFS, directory_path: /data}
metric_definitions:
  - Name: loss
    Regex: "loss: ([0-9.]+)"
tags: {team: vision}
max_run: 3600
max_retry_attempts: 2
use_spot_instances: true
model_dir: null
run_options:
  on_nan: fail
  failure_policy: {min_hosts: 1}
  spot_market: {rate: 6}
  faults:
    - {do: kill, rank: 1, at_step: 50}
"""


def document_of(folder: Path, text: str) -> reading.Document:
    (folder / "job.yaml").write_text(text)
    return reading.read(str(folder / "job.yaml"))


def refusal(folder: Path, text: str) -> str:
    """The error's message behind the folder's name."""
    with pytest.raises(ConfigurationError) as caught:
        building.build(document_of(folder, text))
    return str(caught.value).replace(f"{folder}/", "")


def test_everything_that_a_file_may_say(tmp_path: Path) -> None:
    document = document_of(tmp_path, WHOLE)
    building.make_paths_absolute(document)
    estimator, inputs = building.build(document)
    assert type(estimator).__name__ == "TensorFlow"
    assert estimator.source_dir == str(tmp_path / "code")
    assert estimator.dependencies == (str(tmp_path / "lib"),)
    assert estimator.settings.hyperparameters == {
        "epochs": 3, "rate": 0.001, "name": "no", "layers": [64, 32], "nested": {"deep": {"deeper": None}},
        "text": "1e-3",
    }  # fmt: skip
    assert estimator.distribution.processes_per_host == 2
    assert estimator.run_options.failure_policy.min_hosts == 1
    assert estimator.run_options.spot_market.rate == 6
    assert estimator.run_options.faults[0].at_step == 50
    assert estimator.model_dir is None
    assert inputs["train"] == str(tmp_path / "data" / "digits")
    assert inputs["test"].config["ShuffleConfig"] == {"Seed": 7}
    assert "FileSystemDataSource" in inputs["files"].config["DataSource"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("entry_point: a.py\ninstance_cuont: 2\n", "job.yaml:2: unknown argument 'instance_cuont'. Did you mean"),
        ("entry_point: a.py\n\ninstance_count: two\n", "job.yaml:3: instance_count must be a whole number"),
        ("entry_point: a.py\nhyperparameters:\n  a: 1\n  sagemaker_b: 2\n", "job.yaml:4: hyperparameter 'sagemaker_b'"),
        ("entry_point: a.py\nenvironment:\n  A: x\n  B: 3\n", "job.yaml:4: environment['B'] must be a string"),
        ("distribution:\n  mpi:\n    enabled: true\n    processes: 2\n", "job.yaml:4: "),
        ("distribution:\n  mpii:\n    enabled: true\n", "job.yaml:2: unknown distribution 'mpii'"),
        ("run_options:\n  stop_grace: 5\n  on_nan: fial\n", "job.yaml:3: unknown RunOptions(on_nan=…) 'fial'"),
        ("run_options:\n  backend: x\n", "job.yaml:2: unknown run option 'backend'"),
        ("run_options:\n  failure_policy:\n    min_hots: 1\n", "job.yaml:3: unknown option of FailurePolicy"),
        ("run_options: 3\n", "job.yaml:1: run_options must be a mapping of names"),
        ("inputs:\n  train: data\n  test:\n    s3_dat: x\n", "job.yaml:4: unknown option of channel 'test' 's3_dat'"),
        ("inputs:\n  train: 3\n", "job.yaml:2: inputs: channel 'train' must be a path or a URI; got 3"),
        ("inputs:\n  train: {distribution: x}\n", "job.yaml:2: inputs: channel 'train' has no s3_data"),
        ("inputs:\n  a:\n    s3_data: d\n    input_mode: Tube\n", "job.yaml:4: unknown TrainingInput(input_mode"),
        ("metric_definitions:\n- {Name: a, Regex: (}\n", "job.yaml:"),
        ("entry_point: a.py\nentry_point: b.py\n", "job.yaml:2: 'entry_point' is given twice, first in line 1"),
        ("train_instance_count: 2\n", "job.yaml:1: train_instance_count is a name of the SageMaker SDK 1.x. Use"),
        ("rules: [1]\n", "job.yaml:1: rules=[1] is refused"),
        ("sagemaker_session: x\n", "job.yaml:1: sagemaker_session is not available in job files"),
        ("framework: caffe\n", "job.yaml:1: unknown framework 'caffe'"),
        ("max_run: 100\nuse_spot_instances: true\nmax_wait: 50\n", "job.yaml:3: max_wait=50 is less than max_run=100"),
        ("framework: torch\nmodel_dir: x\n", "job.yaml:2: model_dir is for TensorFlow scripts"),
        ("a: [1\nb: 2\n", "job.yaml:2: this is not YAML"),
        ("a: \x07\n", "job.yaml: this is not YAML"),
        ("a: 1\n---\nb: 2\n", "job.yaml:2: this is not YAML"),
        ("- a\n", "job.yaml:1: a job file must be a mapping of arguments"),
        ("", "job.yaml: the file is empty"),
        ("image_uri: !!python/object:os.system x\n", "job.yaml:1: the tag 'tag:yaml.org,2002:python/object"),
        ("hyperparameters: &a\n  b: *a\n", "job.yaml:1: the job file is too large"),
        ("? [a]\n: 1\n", "job.yaml:1: a name must be a string"),
        ("image_uri: ${env:NOT_SET_ANYWHERE}\n", "job.yaml:1: the environment variable NOT_SET_ANYWHERE is not set"),
        ("image_uri: ${env:a-b}\n", "job.yaml:1: '${env:a-b}' is not a valid variable"),
        ("a: " + "[" * 1500, "job.yaml"),
    ],
)
def test_mistakes_are_refused_with_their_line(tmp_path: Path, text: str, message: str) -> None:
    assert message in refusal(tmp_path, text)


def test_aliases_that_grow_are_refused(tmp_path: Path) -> None:
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    assert "the job file is too large" in refusal(tmp_path, "\n".join(lines))


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigurationError, match="not UTF-8"):
        reading.read(str(tmp_path / "job.yaml"))
    for path in (str(tmp_path), str(tmp_path / "none.yaml"), "a\0b"):
        with pytest.raises(ConfigurationError, match="cannot be read"):
            reading.read(path)


def test_variables_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOSTS", "3")
    monkeypatch.setenv("NAME", "x: [")
    text = 'a: ${env:HOSTS}\nb: "${env:HOSTS}"\nc: in-${env:NAME}-${env:HOSTS}\nd: $${env:HOSTS}\ne: ${other}\n'
    values = document_of(tmp_path, text).values
    assert values == {"a": 3, "b": "3", "c": "in-x: [-3", "d": "${env:HOSTS}", "e": "${other}"}


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats(allow_nan=False) | st.text(max_size=20)
    | st.sampled_from(["1e-3", "no", "${env:X}", "$${env:X}", "$$${env:X}", "~", "0o7", "2026-01-01", ".inf", "a: b"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(min_size=1, max_size=8), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(st.dictionaries(st.text(min_size=1, max_size=8), VALUES, min_size=1, max_size=3))
def test_what_is_written_reads_back_equal(tmp_path_factory: pytest.TempPathFactory, values: dict[str, Any]) -> None:
    folder = tmp_path_factory.mktemp("file")
    kept, _ = writing.without_secrets({"other": values})
    assert document_of(folder, writing.render(kept)).values == {"other": values}


def test_secrets_are_not_written(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    variables = writing.save(
        str(path),
        {
            "hyperparameters": {"api-key": "s3cret", "max_tokens": 3},
            "environment": {"DB_PASSWORD": "s3cret"},
            "arguments": ["--hf-token", "s3cret", "--db-password=s3cret", "--url", "http://me:s3cret@x", "--fp16",
                          "--hf-token=s3cret-2", "--passwords", "s3cret", "s3cret-3"],
        },
    )  # fmt: skip
    assert variables == ["API_KEY", "DB_PASSWORD", "HF_TOKEN", "URL", "HF_TOKEN_2", "PASSWORDS", "PASSWORDS_2"]
    assert "s3cret" not in path.read_text()
    assert "--db-password=${env:DB_PASSWORD}" in path.read_text()
    with pytest.raises(ConfigurationError, match="the file exists already"):
        writing.save(str(path), {})
    with pytest.raises(ConfigurationError, match="cannot be written"):
        writing.save(str(tmp_path / "none" / "job.yaml"), {})


def test_paths_are_written_relative_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jobs").mkdir()
    monkeypatch.chdir(tmp_path)
    given_paths = {"source_dir": "code", "inputs": {"a": "data", "b": "/elsewhere", "c": "s3://b/c"},
                   "dependencies": ["lib"]}  # fmt: skip
    writing.save("jobs/job.yaml", given_paths)
    document = reading.read("jobs/job.yaml")
    assert document.values["source_dir"] == "../code"
    assert document.values["inputs"] == {"a": "../data", "b": "/elsewhere", "c": "s3://b/c"}
    building.make_paths_absolute(document)
    assert document.values["dependencies"] == [str(tmp_path / "lib")]


def test_the_schema_takes_what_the_checks_take(tmp_path: Path) -> None:
    known = schema()
    jsonschema.Draft7Validator.check_schema(known)
    validator = jsonschema.Draft7Validator(json.loads(json.dumps(known)))
    assert [error.message for error in validator.iter_errors(document_of(tmp_path, WHOLE).values)] == []
    assert set(known["properties"]) == {*building.argument_names(), *building.OWN_KEYS}
    for wrong in (
        {"instance_cuont": 1},
        {"instance_count": "two"},
        {"run_options": {"on_nan": "fial"}},
        {"distribution": {"mpi": {"processes_per_host": 2}}},
        {"inputs": {"a": {"s3_dat": "x"}}},
    ):
        assert list(validator.iter_errors(wrong)), wrong
    assert not list(validator.iter_errors({"instance_count": "${env:HOSTS}"}))
