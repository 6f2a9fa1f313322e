"""What makes no sense is refused before anything starts, under every strategy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import clusters
import pytest
import shapes

from estimators import MPI, CollectiveAllReduce, FleetfitError
from estimators.records.record import job_names


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"entry_point": "trian.py"}, ["trian.py", "train.py"]),
        ({"source_dir": "no/such/folder"}, ["no/such/folder"]),
        ({"instance_count": 0}, ["instance_count", "0"]),
        ({"instance_type": "local_proces"}, ["local_proces", "local_process"]),
        ({"metric_definitions": [{"Name": "loss", "Regex": "loss: ("}]}, ["loss: ("]),
        ({"inputs": {"train": "/no/such/data"}}, ["train", "/no/such/data"]),
        ({"job_name": "no_underscores"}, ["no_underscores"]),
        ({"output_path": "/proc/nowhere"}, ["/proc/nowhere"]),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
@shapes.every
def test_it_is_refused(
    shape: shapes.Shape, arguments: dict[str, Any], words: list[str], make: clusters.Make, home: Path
) -> None:
    given = {name: value for name, value in arguments.items() if name not in ("inputs", "job_name")}
    with pytest.raises((ValueError, FleetfitError)) as caught:
        estimator = make("print('never')", **{**shape.settings, **given})
        clusters.fit(estimator, arguments.get("inputs"), job_name=arguments.get("job_name"), logs=False)
    for word in words:
        assert word in str(caught.value)
    assert job_names() == []


@pytest.mark.parametrize("strategy", [MPI, CollectiveAllReduce])
@pytest.mark.parametrize("number", [0, -1, 1.5, True, "two"])
def test_numbers_of_processes_that_make_no_sense(strategy: Any, number: Any) -> None:
    with pytest.raises(ValueError, match="processes_per_host") as caught:
        strategy(processes_per_host=number)
    assert repr(number) in str(caught.value)


@pytest.mark.parametrize("strategy", [MPI, CollectiveAllReduce])
def test_more_processes_than_a_machine_of_amazons_has_slots(strategy: Any, make: clusters.Make) -> None:
    with pytest.raises((ValueError, FleetfitError), match=r"processes_per_host|slots"):
        make("print('never')", instance_type="ml.m5.xlarge", hosts=2, distribution=strategy(processes_per_host=64))
