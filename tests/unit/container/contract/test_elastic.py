"""A worker's name says where it is; Horovod's driver takes plain values only."""

from __future__ import annotations

import os
import pickle

import pytest

from container.contract.elastic import split_worker, worker_name
from container.contract.strategies import ElasticHorovod


def test_a_workers_name() -> None:
    assert worker_name("algo-12", 1, 3) == "algo-12.1.3"
    assert split_worker("my.host.1.3") == ("my.host", 1, 3)


@pytest.mark.horovod
def test_the_rendezvous_unpickles_plain_values_only() -> None:
    driver = pytest.importorskip("container.toolkit.elastic.driver")
    assert driver.load_plain(pickle.dumps(({"lo": [("127.0.0.1", 5)]}, b"key"))) == ({"lo": [("127.0.0.1", 5)]}, b"key")

    class Evil:
        def __reduce__(self):  # type: ignore[no-untyped-def]
            return (print, ("owned",))

    with pytest.raises(pickle.UnpicklingError, match=r"builtins\.print"):
        driver.load_plain(pickle.dumps(Evil()))


def test_a_path_starts_from_the_callers_working_directory() -> None:
    found = ElasticHorovod(discovery="hosts.sh").to_hyperparameters()["fleetfit_elastic_discovery"]
    assert found == os.path.abspath("hosts.sh")
    assert ElasticHorovod(discovery=found).to_hyperparameters()["fleetfit_elastic_discovery"] == found
    rule = ElasticHorovod(exclusion="rules.py:Rule").to_hyperparameters()["fleetfit_elastic_exclusion"]
    assert os.path.isabs(rule) and rule.endswith("rules.py:Rule")
    installed = ElasticHorovod(exclusion="rules:Rule").to_hyperparameters()
    assert installed["fleetfit_elastic_exclusion"] == "rules:Rule"
    with pytest.raises(ValueError, match=r"is not 'path/of/file.py:Name' or"):
        ElasticHorovod(exclusion="rules.py")
