"""The environment that the processes of a host get."""

from __future__ import annotations

import os
import sys

import pytest

from container.toolkit.process_group import base_environment


def test_the_environment_has_nothing_of_a_surrounding_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PRTE_X", "ORTE_X", "OMPI_MCA_orte_x", "FLEETFIT_JOB_TOKEN"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("OMPI_MCA_btl", "self,tcp")  # a user's own
    monkeypatch.setenv("MINE", "x")
    monkeypatch.setenv("PATH", "/usr/bin")
    env = base_environment({"SM_HOSTS": "[]"})
    assert (env["MINE"], env["OMPI_MCA_btl"], env["SM_HOSTS"]) == ("x", "self,tcp", "[]")
    assert env["PATH"] == f"{os.path.dirname(sys.executable)}:/usr/bin"
    assert not [name for name in env if name.startswith(("PMIX", "PRTE", "ORTE", "OMPI_COMM")) or "TOKEN" in name]
