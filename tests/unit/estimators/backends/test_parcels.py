"""What goes to a dispatcher: the job, with names that mean the same there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from estimators import ConfigurationError, ElasticHorovod, RunOptions, TensorFlow
from estimators.backends.dispatchers import load, parcels
from estimators.client.launch import fill
from estimators.records.record import JobRecord


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLEETFIT_HOME", str(tmp_path / "a home"))
    (tmp_path / "train.py").touch()
    (tmp_path / "data").mkdir()
    (tmp_path / "hosts.sh").write_text("#!/bin/sh\necho node-1\n")
    (tmp_path / "hosts.sh").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def parcel(inputs: Any = None, backend_options: Any = None, **settings: Any) -> Any:
    options = RunOptions(dispatcher="ann@login-1", backend_options=backend_options or {})
    estimator = TensorFlow(entry_point="train.py", run_options=options, **settings)
    draft = estimator._draft(inputs, "job")
    draft.check()
    record = JobRecord.create("job")
    fill(record, draft.spec, draft.options, draft.source, 1.0)
    made = parcels.of(record, draft.spec, draft.options)
    record.release()
    return made, record


def test_paths_below_the_records_become_those_there(place: Path) -> None:
    made, record = parcel({"train": str(place / "data"), "far": "s3://bucket/x"}, model_dir=None)
    there = parcels.relocated(made.header["request"], made.header["jobs"], "/home/ann/.fleetfit/jobs")
    assert str(place) not in str(there)
    uris = [channel["DataSource"]["S3DataSource"]["S3Uri"] for channel in there["InputDataConfig"]]
    assert uris == ["file:///home/ann/.fleetfit/jobs/job/inputs/train", "s3://bucket/x"]
    assert there["OutputDataConfig"]["S3OutputPath"] == "file:///home/ann/.fleetfit/jobs"
    assert there["HyperParameters"]["model_dir"] == '"/home/ann/.fleetfit/jobs/job/model"'
    assert (place / "data", "inputs/train") in made.files
    assert (record.source_dir, "source") in made.files
    assert made.header["options"]["dispatcher"] is None


def test_a_discovery_script_goes_along(place: Path) -> None:
    strategy = ElasticHorovod(min_hosts=1, discovery=str(place / "hosts.sh"))
    made, record = parcel(instance_type="ssh", distribution=strategy)
    assert (place / "hosts.sh", "attached/hosts.sh") in made.files
    assert str(record.path / "attached" / "hosts.sh") in str(made.header["request"]["HyperParameters"])


def test_hosts_are_named_by_what_they_are(place: Path) -> None:
    (place / "hostfile").write_text("ann@node-1 slots=2 address=10.0.0.1\n")
    made, _ = parcel(instance_type="ssh", backend_options={"host_file": str(place / "hostfile")})
    named = {"host": "node-1", "user": "ann", "slots": 2, "address": "10.0.0.1"}
    assert made.header["options"]["backend_options"] == {"hosts": [named]}


FUNCTION = ElasticHorovod(min_hosts=1, discovery=dict)


@pytest.mark.parametrize(
    ("settings", "inputs", "said"),
    [
        ({"output_path": "/somewhere"}, None, "output_path='/somewhere' is a folder of this machine"),
        ({"checkpoint_s3_uri": "/somewhere"}, None, "checkpoint_s3_uri="),
        ({}, {"train": "/no/such/data"}, "/no/such/data does not exist"),
        ({"instance_type": "ssh", "distribution": FUNCTION}, None, "is a function of this process"),
    ],
)
def test_what_means_nothing_there_is_refused(settings: dict[str, Any], inputs: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        parcel(inputs, **settings)


@pytest.mark.parametrize(
    ("place", "options", "said"),
    [
        ("ann@login-1:4", {}, "has no slots"),
        ("-oProxyCommand=x", {}, "is not the name or address of a host"),
        ("login-1", {"pyton": "x"}, "Did you mean 'python'"),
        ("login-1", {"python": 3}, "must be a string"),
        ("login-1", {"ssh_config": "/no/such/config"}, "/no/such/config is not a file"),
        ("ray", {"adress": "http://head:8265"}, "Did you mean 'address'"),
        ("ray", {"address": "head"}, "must be the address of Ray's Jobs API"),
        ("ray", {"python": 3}, "must be a string"),
        ("ray", {"runtime_env": "pip"}, "must be a dict"),
        ("ray", {"runtime_env": {"working_dir": "."}}, "fleetfit sets 'working_dir' itself"),
        ("ray", {"runtime_env": {"env_vars": ["A"]}}, "must be a dict of variables"),
    ],
)
def test_a_dispatcher_that_cannot_be_is_refused(place: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        load(place).check(place, options)


@pytest.mark.parametrize(
    ("given", "variables", "address"),
    [
        ({}, {}, "http://127.0.0.1:8265"),
        ({}, {"RAY_ADDRESS": "10.0.0.1:6379"}, "10.0.0.1:6379"),
        ({}, {"RAY_ADDRESS": "10.0.0.1:6379", "RAY_API_SERVER_ADDRESS": "http://head:80"}, "http://head:80"),
        ({"address": "https://head"}, {"RAY_ADDRESS": "10.0.0.1:6379"}, "https://head"),
    ],
)
def test_a_ray_cluster_stays_the_same_where_variables_change(
    given: dict[str, Any], variables: dict[str, str], address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert dict(load("ray").pinned(given)) == {"address": address}


@pytest.mark.parametrize(
    ("value", "changed"),
    [
        ("/a/jobs", "/b"),
        ("/a/jobs/x", "/b/x"),
        ("file:///a/jobs/x y", "file:///b/x y"),
        ('"/a/jobs/x"', '"/b/x"'),
        ("/a/jobs-2", "/a/jobs-2"),
        ("see /a/jobs/x", "see /a/jobs/x"),
        ({"n": ["/a/jobs/x", 7]}, {"n": ["/b/x", 7]}),
    ],
)
def test_only_whole_paths_are_renamed(value: Any, changed: Any) -> None:
    assert parcels.relocated(value, "/a/jobs", "/b") == changed


@pytest.mark.parametrize(
    ("value", "changed"),
    [("/jobs/x", "/my jobs/x"), ('"/jobs/x"', '"/my jobs/x"'), ("file:///jobs/x", "file:///my%20jobs/x")],
)
def test_a_path_is_escaped_where_it_is_a_uri(value: str, changed: str) -> None:
    assert parcels.relocated(value, "/jobs", "/my jobs") == changed
    assert parcels.relocated(changed, "/my jobs", "/jobs") == value
    assert parcels.relocated("file:///my jobs/x", "/my jobs", "/jobs") == "file:///jobs/x"
