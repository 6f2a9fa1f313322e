"""The files that tell clients where the endpoint is."""

from __future__ import annotations

import configparser
import os
import shlex
import stat
from pathlib import Path

import boto3
import pytest
import yaml

from container.system import locks
from estimators.job.errors import ConfigurationError
from estimators.service import profile
from estimators.service.settings import EndpointFiles, Keys, default_bucket, region_of

ADDRESS = profile.Address(
    endpoint="http://127.0.0.1:1",
    s3_endpoint="http://127.0.0.1:2",
    region="us-east-1",
    keys=Keys("FLEETFITKEY", "s3cret"),
)


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    return tmp_path


def private(path: Path) -> bool:
    return stat.S_IMODE(path.stat().st_mode) == 0o600


def test_boto3_finds_everything_by_the_profile(files: Path) -> None:
    profile.write_profile("fleetfit", ADDRESS)
    assert private(files / "config") and private(files / "credentials")
    session = boto3.session.Session(profile_name="fleetfit")
    assert session.get_credentials().secret_key == "s3cret"
    assert session.client("sagemaker").meta.endpoint_url == "http://127.0.0.1:1"
    assert session.client("s3").meta.endpoint_url == "http://127.0.0.1:2"


def test_what_is_not_ours_stays_byte_for_byte(files: Path) -> None:
    before = "# mine\n[default]\nregion=eu-west-1\n\n[profile work]\n  s3 =\n    addressing_style = path\n"
    after = "\n[profile last]\nregion = x"
    (files / "config").write_text(before)
    profile.write_profile("fleetfit", ADDRESS)
    (files / "config").write_text((files / "config").read_text() + after)
    for _ in range(2):
        profile.write_profile("fleetfit", ADDRESS)
    text = (files / "config").read_text()
    assert text.startswith(before)
    assert text.endswith(after)
    assert text.count("[profile fleetfit]") == text.count("[services fleetfit]") == 1
    read = configparser.RawConfigParser()
    read.read_string(text)
    assert read["profile fleetfit"]["endpoint_url"] == "http://127.0.0.1:1"


def test_a_profile_of_the_users_is_not_taken(files: Path) -> None:
    (files / "config").write_text("[profile mine]\nregion = a\n")
    with pytest.raises(ConfigurationError, match="not fleetfit's: choose another name"):
        profile.write_profile("mine", ADDRESS)
    for name in ("default", "", "a b", "]\n[x"):
        with pytest.raises(ConfigurationError, match="profile's name"):
            profile.write_profile(name, ADDRESS)


def test_a_link_stays_one(files: Path) -> None:
    (files / "dotfiles").write_text("[default]\n")
    (files / "config").symlink_to("dotfiles")
    profile.write_profile("fleetfit", ADDRESS)
    assert (files / "config").is_symlink()
    assert "[profile fleetfit]" in (files / "dotfiles").read_text()


def test_the_sdks_configuration(files: Path) -> None:
    config = yaml.safe_load(profile.sdk_config(ADDRESS))
    assert config["SageMaker"]["TrainingJob"] == {"RoleArn": "arn:aws:iam::000000000000:role/fleetfit"}
    settings = config["SageMaker"]["PythonSDK"]["Modules"]
    assert settings == {"Session": {"DefaultS3Bucket": default_bucket("us-east-1")}, "TelemetryOptOut": True}


def test_the_sdks_configuration_is_where_it_looks_while_the_endpoint_runs(files: Path) -> None:
    path = files / "sagemaker" / "config.yaml"
    place, other = EndpointFiles(files / "home"), EndpointFiles(files / "other")
    for _ in range(2):  # a killed endpoint left it
        assert profile.install_sdk_config(place, ADDRESS, path)
    assert private(path)
    assert path.read_text().endswith(profile.sdk_config(ADDRESS).partition("\n")[2])
    assert profile.install_sdk_config(other, ADDRESS, path)
    profile.remove_sdk_config(place, ADDRESS, path)
    assert path.exists(), "it is the other endpoint's by now"
    profile.remove_sdk_config(other, ADDRESS, path)
    assert not path.exists()
    path.write_text("SchemaVersion: '1.0'\n")
    assert not profile.install_sdk_config(place, ADDRESS, path)
    profile.remove_sdk_config(place, ADDRESS, path)
    assert path.read_text() == "SchemaVersion: '1.0'\n"
    with pytest.raises(ConfigurationError, match="--no-sdk-config"):
        profile.install_sdk_config(place, ADDRESS, path / "below" / "config.yaml")


def test_the_env_file_is_for_the_user_only_and_goes_with_the_endpoint_unless_it_is_anothers(files: Path) -> None:
    path = files / "env"
    profile.write_env_file(path, EndpointFiles(files), ADDRESS)
    assert private(path)
    lines = dict(word.split("=", 1) for word in shlex.split(path.read_text()))
    assert lines["AWS_ENDPOINT_URL_S3"] == "http://127.0.0.1:2"
    assert lines["SAGEMAKER_USER_CONFIG_OVERRIDE"] == str(files / "service" / "sagemaker.yaml")
    profile.remove_env_file(path, EndpointFiles(files / "another"), ADDRESS)
    assert path.exists()
    for _ in range(2):
        profile.remove_env_file(path, EndpointFiles(files), ADDRESS)
        assert not path.exists()


def test_jobs_see_the_endpoint_and_no_profile_of_the_users() -> None:
    base = {"PATH": "/bin", "AWS_PROFILE": "work", "AWS_SESSION_TOKEN": "x"}
    environment = profile.job_environment(base, ADDRESS)
    assert environment["AWS_ENDPOINT_URL_S3"] == "http://127.0.0.1:2"
    assert environment["PATH"] == "/bin"
    assert not {"AWS_PROFILE", "AWS_SESSION_TOKEN"} & set(environment)


def test_keys_are_made_once_and_are_private(tmp_path: Path) -> None:
    place = EndpointFiles(tmp_path / "home")
    keys = place.keys()
    assert place.keys() == keys
    assert "secret" not in repr(keys).replace("secret_key", "") or keys.secret_key not in repr(keys)
    assert private(place.keys_file)
    assert stat.S_IMODE(place.folder.stat().st_mode) == 0o700
    place.keys_file.write_text("{")
    with pytest.raises(ConfigurationError, match="damaged"):
        place.keys()


def test_locks_and_regions(tmp_path: Path) -> None:
    held = locks.take(tmp_path / "lock")
    assert held is not None
    assert locks.is_held(tmp_path / "lock")
    assert locks.take(tmp_path / "lock") is None
    os.close(held)
    assert not locks.is_held(tmp_path / "lock")
    assert region_of("eu-central-1") == "eu-central-1"
    with pytest.raises(ConfigurationError, match="not a region"):
        region_of("here")
