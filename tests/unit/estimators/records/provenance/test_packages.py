"""The package listing."""

import json
from pathlib import Path

import pytest

from estimators.records.provenance import packages


@pytest.mark.parametrize(
    ("direct", "reference"),
    [
        (
            {"url": "https://e.org/p.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}, "subdirectory": "s"},
            "git+https://e.org/p.git@abc#subdirectory=s",
        ),
        ({"url": "https://e.org/p.whl", "archive_info": {"hash": "sha256=12"}}, "https://e.org/p.whl#sha256=12"),
        ({"url": "https://u:p@e.org:8/p.whl", "archive_info": {}}, "https://***@e.org:8/p.whl"),
    ],
)
def test_direct_references(tmp_path: Path, direct: dict, reference: str) -> None:
    info = tmp_path / "p-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: p\nVersion: 1\n")
    (info / "direct_url.json").write_text(json.dumps(direct))
    assert packages.freeze([str(tmp_path)]) == [f"p @ {reference}"]


@pytest.mark.parametrize(("installer", "url"), [("conda\n", "file:///"), ("pip\n", "file:///no/such/folder")])
def test_packages_from_folders_that_are_gone_are_named_by_version(tmp_path: Path, installer: str, url: str) -> None:
    install(tmp_path, "six", "1.17.0")
    (tmp_path / "six-1.17.0.dist-info" / "INSTALLER").write_text(installer)
    (tmp_path / "six-1.17.0.dist-info" / "direct_url.json").write_text(json.dumps({"url": url, "dir_info": {}}))
    assert packages.freeze([str(tmp_path)]) == ["six==1.17.0"]


def install(folder: Path, name: str, version: str) -> None:
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")


def test_versions_and_lines_of_whatever_folders_hold(tmp_path: Path) -> None:
    install(tmp_path, "tf_keras", "2.21.0")
    (tmp_path / "old-1.0-py3.11.egg-info").mkdir()
    (tmp_path / "old-1.0-py3.11.egg-info" / "PKG-INFO").write_text("Name: old\nVersion: 1.0\n")
    (tmp_path / "flat-2.0-py3.11.egg-info").write_text("Name: flat\nVersion: 2.0\n")
    (tmp_path / "~orphan-1.dist-info").mkdir()
    for name, text in ("empty", ""), ("half", "Name: half\n"):
        (tmp_path / f"{name}-1.dist-info").mkdir()
        (tmp_path / f"{name}-1.dist-info" / "METADATA").write_text(text)
    folders = [str(tmp_path), str(tmp_path / "missing")]
    found = packages.versions(("tf-keras", "old", "flat", "half", "empty", "absent"), folders=folders)
    assert found == {"tf-keras": "2.21.0", "old": "1.0", "flat": "2.0"}
    assert packages.freeze(folders) == ["flat==2.0", "half", "old==1.0", "tf_keras==2.21.0"]
    pytest.importorskip("importlib_metadata").distributions()  # replaces what the standard library finds packages with
    assert packages.freeze(folders) == ["flat==2.0", "half", "old==1.0", "tf_keras==2.21.0"]
