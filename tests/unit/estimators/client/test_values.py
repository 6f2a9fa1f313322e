"""What a function returned or raised: the exception is known by its job's failure, also where the reason was cut."""

from __future__ import annotations

import pickle
import time
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle
import pytest

from container.contract.failures import Cause, Failure
from estimators import ConfigurationError, TrainingJob
from estimators.client.functions import runner, values
from estimators.job.log_redaction import mask_failure, text_mask
from estimators.records import status as statuses
from estimators.records.record import JobRecord


class MyError(Exception):
    pass


def raised(error: Exception) -> str:
    try:
        raise error
    except (MyError, ValueError):
        return traceback.format_exc()


def printed(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


@pytest.mark.parametrize(
    "message",
    ["x" * 5000, "first line\n" + "many more\n" * 500 + "last", "short", "", "at https://me:pass@host/", "\udcff"],
)
@pytest.mark.parametrize("whole", [True, False])
def test_an_exception_is_known_by_what_is_left_of_it(
    message: str, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = MyError(message)
    text = raised(error)
    headline = text[text.index(f"{__name__}.MyError") :]
    said = [
        values._Said(name, pickle.dumps({"error": one, "text": raised(one), "rank": 0, "time": time}))
        for name, one, time in (("error-algo-1-0.pkl", error, 2.0), ("error-algo-2-1.pkl", ValueError("before"), 1.0))
    ]
    monkeypatch.setattr(values, "_left", lambda record: said)
    reason = f"AlgorithmError: algo-1, rank 0: {headline}" if whole else f"algo-1, rank 0: {headline[:900]}"
    failure = mask_failure(Failure(cause=Cause.PROCESS, message=printed(reason), rank=0), text_mask({}))
    record: Any = SimpleNamespace(name="job", read_request=dict, hosts_dir="hosts")
    found = values.exception_of(record, failure)
    assert isinstance(found, MyError) and found.args == error.args
    other = Failure(cause=Cause.HOST_LOST, message="algo-2 was lost", rank=None)
    assert values.exception_of(record, other) is None


def test_an_exception_whose_pickle_is_none_comes_back_all_the_same() -> None:
    class OddError(Exception):
        def __reduce__(self) -> tuple[Any, ...]:
            return str, ("nothing of it",)

    found = pickle.loads(cloudpickle.dumps(runner._portable_error(OddError("no data", 3), cloudpickle)))
    assert type(found).__name__ == "OddError" and found.args == ("no data", 3)


@pytest.fixture
def job(tmp_path: Path) -> TrainingJob:
    """A job on record, of a script."""
    record = JobRecord.create("job", tmp_path)
    record.source_dir.mkdir()
    record.write_status(statuses.new_status({"TrainingJobName": "job"}, time.time()))
    record.release()
    return TrainingJob(record)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"logs": "All"}, "(logs=…) must be True or False, got 'All'. To show every line, use all=True."),
        ({"logs": 1}, "(logs=…) must be True or False, got 1."),
        ({"all": "no"}, "(all=…) must be True or False, got 'no'."),
    ],
)
def test_what_is_shown_is_a_boolean(job: TrainingJob, arguments: dict[str, Any], said: str) -> None:
    for name, call in (("wait", job.wait), ("resume", job.resume)):
        with pytest.raises(ConfigurationError) as caught:
            call(**arguments)
        assert str(caught.value).startswith(f"{name}{said}")


def test_a_script_has_no_value(job: TrainingJob) -> None:
    with pytest.raises(ConfigurationError, match="ran a script"):
        job.value()
