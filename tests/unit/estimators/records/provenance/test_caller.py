"""The caller's share: command lines, notebook cells, seeds, variables."""

import os
import sys
import time
import types
from pathlib import Path

import pytest

from estimators.records.provenance import caller, caller_facts


@pytest.mark.parametrize(
    ("name", "is_seed"),
    [
        ("seed", True),
        ("random_seed", True),
        ("random-state", True),
        ("np-seed", True),
        ("SEED", True),
        ("seeds", True),
        ("seed_tensorflow", True),
        ("seedling", False),
        ("processed", False),
        ("epochs", False),
    ],
)
def test_seeds_are_found_by_name(name: str, is_seed: bool) -> None:
    assert caller.seeds({name: 7}, {}) == ({name: 7} if is_seed else {})


def test_variables_that_make_runs_repeatable_are_seeds_too() -> None:
    assert caller.seeds({}, {"PYTHONHASHSEED": "0", "HOME": "/"}) == {"PYTHONHASHSEED": "0"}


def test_only_variables_that_matter_are_kept_and_secrets_masked() -> None:
    kept = caller.visible_environment(
        {
            "TF_CONFIG": "{}",
            "HOROVOD_CYCLE_TIME": "1",
            "FLEETFIT_JOB_TOKEN": "hidden",
            "TF_API_TOKEN": "hidden",
            "AWS_SECRET_ACCESS_KEY": "hidden",
            "PYTHONPATH": "x" * 10_000,
            "HOME": "/home/somebody",
        }
    )
    assert sorted(kept) == ["HOROVOD_CYCLE_TIME", "PYTHONPATH", "TF_API_TOKEN", "TF_CONFIG"]
    assert kept["TF_API_TOKEN"] == "***"
    assert len(kept["PYTHONPATH"]) == 4096
    assert "hidden" not in str(kept)


class Shell:
    """Stands in for IPython's, with the members that are read."""

    def __init__(self, cells: list[str], *, kernel: bool, names: dict | None = None) -> None:
        self.history_manager = types.SimpleNamespace(input_hist_raw=["", *cells])
        self.user_ns = names or {}
        if kernel:
            self.kernel = object()


def facts_in(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> dict:
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    return caller_facts()["caller"]


def test_a_notebook_gives_its_path_and_cells(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    notebook = tmp_path / "tour.ipynb"
    notebook.write_text("{}")
    cells = ["a = 1", 'token = "abc"', "job = estimator.fit()"]
    facts = facts_in(Shell(cells, kernel=True, names={"__vsc_ipynb_file__": str(notebook)}), monkeypatch)
    assert facts["kind"] == "notebook"
    assert facts["notebook"] == str(notebook)
    assert facts["cell"] == "job = estimator.fit()"
    assert facts["execution_count"] == 3
    assert facts["earlier_cells"] == [[1, "a = 1"], [2, 'token = "***"']]


def test_jupyter_server_names_the_notebook_below_its_own_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "tour.ipynb").write_text("{}")
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("JPY_SESSION_NAME", "work/tour.ipynb")
    assert facts_in(Shell(["x"], kernel=True), monkeypatch)["notebook"] == str(tmp_path / "work" / "tour.ipynb")


def test_a_notebook_whose_front_end_does_not_tell_its_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    facts = facts_in(Shell(["x"], kernel=True), monkeypatch)
    assert facts["notebook"] is None
    assert facts["cell"] == "x"


def test_huge_cells_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = facts_in(Shell(["a" * 300_000, "b" * 1000, "c" * 1_000_000], kernel=False), monkeypatch)
    assert facts["kind"] == "ipython"
    assert len(facts["cell"]) == 256 << 10
    assert facts["earlier_cells"] == [[2, "b" * 1000]]


def test_time_is_now() -> None:
    assert abs(caller_facts()["time"] - time.time()) < 5
    assert caller_facts()["caller"]["hostname"] == os.uname().nodename
