"""``model.tar.gz`` and ``output.tar.gz``."""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path

import pytest
from host_trees import Job

from container.agent.artifacts import collect
from container.contract.errors import AgentError


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def contents(archive: Path | None) -> dict[str, str]:
    assert archive is not None
    with tarfile.open(archive, "r:gz") as tar:
        found = {}
        for member in tar.getmembers():
            if member.isreg():
                found[member.name] = tar.extractfile(member).read().decode()  # type: ignore[union-attr]
            else:
                found[member.name] = "/" if member.isdir() else f"-> {member.linkname}"
        return found


def test_the_union_in_order(job: Job) -> None:
    job.write(1, "model/b/weights", "two")
    job.write(0, "model/saved_model.pb", "one")
    job.write(0, "model/b.txt", "text")
    job.write(1, "output/data/log", "said")
    (job.bases[0] / "model" / "assets").mkdir()
    model, output = job.collect()
    assert model == job.output / "model.tar.gz"
    assert output == job.output / "output.tar.gz"
    packed = contents(model)
    assert list(packed.items()) == [
        ("assets", "/"),
        ("b", "/"),
        ("b/weights", "two"),
        ("b.txt", "text"),
        ("saved_model.pb", "one"),
    ]
    assert contents(output) == {"log": "said"}
    assert sorted(os.listdir(job.output)) == ["model.tar.gz", "output.tar.gz"]
    assert job.warnings == []
    assert job.events[-1].kind == "artifacts"
    assert job.events[-1].data == {"model": str(model), "output": str(output)}


def test_nothing_is_packed_of_nothing(job: Job) -> None:
    assert job.collect() == (None, None)
    assert not job.output.exists()
    job.write(0, "model/x")
    job.bases[1].joinpath("model").rmdir()
    assert job.collect() == (job.output / "model.tar.gz", None)


def test_the_first_host_wins_and_a_warning_says_so(job: Job) -> None:
    for host in (0, 1):
        job.write(host, "model/same", "same")
        job.write(host, "model/other", f"host {host}")
        job.write(host, "model/long", "x" * (host + 1))
    job.write(0, "model/kind", "a file")
    job.write(1, "model/kind/inner", "a folder")
    model, _ = job.collect()
    packed = contents(model)
    assert packed["other"] == "host 0"
    assert packed["kind"] == "a file"
    assert "kind/inner" not in packed
    (warning,) = job.warnings
    assert all(name in warning for name in ("'other'", "'long'", "'kind'", "'kind/inner'"))
    assert "'same'" not in warning
    assert job.events[0].host == "algo-2"


def test_a_host_says_its_own_name(job: Job) -> None:
    job.write(1, "input/config/resourceconfig.json", json.dumps({"current_host": "worker-b"}))
    job.write(0, "model/x", "1")
    job.write(1, "model/x", "2")
    job.collect()
    assert job.events[0].host == "worker-b"


def test_links_and_special_files(job: Job, tmp_path: Path) -> None:
    weights = job.write(0, "model/1/weights")
    model = job.bases[0] / "model"
    (model / "latest").symlink_to("1")
    (model / "absolute").symlink_to(weights)
    (model / "1" / "up").symlink_to("../latest")
    (model / "secret").symlink_to("/etc/passwd")
    (model / "out").symlink_to("../../../..")
    os.mkfifo(model / "pipe")
    packed, _ = job.collect()
    assert contents(packed) == {
        "1": "/",
        "1/up": "-> ../latest",
        "1/weights": "x",
        "absolute": "-> 1/weights",
        "latest": "-> 1",
    }
    (warning,) = job.warnings
    assert all(name in warning for name in ("'secret'", "'out'", "'pipe'"))


def test_equal_content_gives_equal_bytes(job: Job) -> None:
    path = job.write(0, "model/x")
    os.utime(path, (1e9, 1e9))
    model, _ = job.collect()
    assert model is not None
    before = model.read_bytes()
    job.collect()
    assert model.read_bytes() == before


def test_long_and_odd_names(job: Job) -> None:
    names = ["é" * 60, "/".join(["d" * 60] * 4) + "/f", " a b", "new\nline"]
    for name in names:
        job.write(0, f"model/{name}", name)
    model, _ = job.collect()
    assert contents(model).items() >= {name: name for name in names}.items()


def test_a_file_url(job: Job, tmp_path: Path) -> None:
    job.write(0, "model/x")
    target = tmp_path / "a b"
    model, _ = collect(job.bases, target.as_uri(), tell=job.lines.append)
    assert model == str(target / "model.tar.gz")


@pytest.mark.parametrize("output", ["gs://bucket/x", "relative/x"])
def test_an_output_that_is_not_here(job: Job, output: str) -> None:
    with pytest.raises(AgentError, match=output):
        collect(job.bases, output, tell=job.lines.append)


def test_an_output_that_cannot_be_written(job: Job) -> None:
    job.write(0, "model/x")
    job.output.parent.mkdir(parents=True)
    job.output.write_text("a file")
    with pytest.raises(AgentError) as caught:
        job.collect()
    assert str(job.output) in str(caught.value)
    assert str(job.bases[0] / "model") in str(caught.value)


def test_a_file_that_shrinks_is_named(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    path = job.write(0, "model/log", "x" * 100)
    real = os.fstat

    def longer(fd: int) -> os.stat_result:
        status = real(fd)
        if os.path.samestat(status, os.stat(path)):
            return os.stat_result((*status[:6], status.st_size + 5, *status[7:]))
        return status

    monkeypatch.setattr(os, "fstat", longer)
    with pytest.raises(AgentError, match="became shorter") as caught:
        job.collect()
    assert str(path) in str(caught.value)
    assert os.listdir(job.output) == []
