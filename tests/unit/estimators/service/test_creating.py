"""Archives that are refused when a job is created, and a request that is sent twice at once."""

from __future__ import annotations

import gzip
import tarfile
from pathlib import Path
from typing import Any

import pytest
from serving import write_archive
from unserved import REQUEST, Endpoint

from estimators.client import launch
from estimators.records.record import JobRecord
from estimators.service import training
from estimators.service.errors import ServiceError
from estimators.service.source import bring_source
from estimators.service.storage import Storage


@pytest.mark.parametrize(
    ("name", "size", "message"),
    [("/".join("d" * 3000), 0, "more than 128 folders deep"), ("bomb", 6 << 30, "unpacks to more than 1,073,741,824")],
)
def test_an_archive_beyond_bounds_is_refused_and_leaves_nothing(
    tmp_path: Path, name: str, size: int, message: str
) -> None:
    place = tmp_path / "s3" / "bucket" / "sourcedir.tar.gz"
    place.parent.mkdir(parents=True)
    entry = tarfile.TarInfo(name)
    entry.size = size
    with gzip.open(place, "wb", compresslevel=1) as file:
        file.write(entry.tobuf(format=tarfile.PAX_FORMAT))
        file.write(b"\0" * 20480)  # of the bomb the beginning is enough: it is refused by what it says
    endpoint = Endpoint(tmp_path)
    for _ in range(2):
        with pytest.raises(ServiceError, match=message) as caught:
            endpoint.training.create(REQUEST)
        assert caught.value.status == 400
    assert list((tmp_path / "jobs").iterdir()) == []


def test_a_request_that_is_sent_again_meanwhile_makes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_archive(tmp_path / "s3" / "bucket" / "sourcedir.tar.gz", {"train.py": "print('x')"})
    endpoint = Endpoint(tmp_path)
    monkeypatch.setattr(launch, "start", endpoint.start)
    met: list[str] = []

    def bring(spec: Any, record: JobRecord, storage: Storage) -> None:
        """Another client's turn, in the middle of it."""
        with pytest.raises(ServiceError) as caught:
            endpoint.training.create(REQUEST)
        met.append(caught.value.code)
        bring_source(spec, record, storage)

    monkeypatch.setattr(training, "bring_source", bring)
    endpoint.training.create(REQUEST)
    assert met == ["ResourceInUse"] and endpoint.started == ["job"]
    assert [path.name for path in (tmp_path / "jobs").iterdir()] == ["job"]
