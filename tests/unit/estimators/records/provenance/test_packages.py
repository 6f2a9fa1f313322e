"""The package listing says what ``pip freeze`` says."""

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
        ({"url": "https://u:p@e.org:8/p.whl", "archive_info": {}}, "https://e.org:8/p.whl"),
    ],
)
def test_direct_references(tmp_path: Path, direct: dict, reference: str) -> None:
    info = tmp_path / "p-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: p\nVersion: 1\n")
    (info / "direct_url.json").write_text(json.dumps(direct))
    assert packages.freeze([str(tmp_path)]) == [f"p @ {reference}"]


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
    folders = [str(tmp_path), str(tmp_path / "missing")]
    found = packages.versions(("tf-keras", "old", "flat", "absent"), folders=folders)
    assert found == {"tf-keras": "2.21.0", "old": "1.0", "flat": "2.0"}
    assert packages.freeze(folders) == ["flat==2.0", "old==1.0", "tf_keras==2.21.0"]


def test_conda_lists_its_own_packages_and_those_of_pip(tmp_path: Path) -> None:
    (tmp_path / "conda-meta").mkdir()
    for record in (
        "numpy-1.26.4-py311h64a7726_0",
        "python-3.11.7-hab00c5b_1_cpython",
        "ca-certificates-2024.2.2-hbcca054_0",
    ):
        (tmp_path / "conda-meta" / f"{record}.json").write_text("{}")
    (tmp_path / "conda-meta" / "history").write_text("")
    site = tmp_path / "site-packages"
    install(site, "numpy", "1.26.4")
    install(site, "Horovod", "0.28.1")
    lines = packages.conda_export(tmp_path, [str(site)])
    assert lines[2] == "# platform: linux-64"
    assert lines[3:] == [
        "ca-certificates=2024.2.2=hbcca054_0",
        "horovod=0.28.1=pypi_0",
        "numpy=1.26.4=py311h64a7726_0",
        "python=3.11.7=hab00c5b_1_cpython",
    ]
