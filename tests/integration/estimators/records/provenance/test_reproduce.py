"""The commands that run a job again, as a shell takes them."""

import subprocess
from typing import Any

import pytest
from synthetic import provenance

from estimators.records.provenance import reproduce

NOTEBOOK = {
    "kind": "notebook", "argv": ["python", "-m", "ipykernel"], "cwd": "/repo", "notebook": "/repo/a.ipynb",
    "cell": "job = fit()\nprint(job)", "execution_count": 3, "earlier_cells": [[1, "import x"], [2, "y = 1"]],
}  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"caller": NOTEBOOK},
        {"caller": {"kind": "command", "argv": ["python", "-"], "cwd": None}, "git": None},
        {"packages": {"freeze": ["a==1"]}, "data": {"a": {"path": "/gone", "error": "No such"}}},
        {"git": None, "caller": {}, "packages": {}, "data": None, "environment": None},
    ],
)
def test_a_shell_takes_the_script(changes: dict[str, Any]) -> None:
    text = reproduce.script("job", provenance(**changes))
    subprocess.run(["sh", "-n"], input=text, text=True, check=True)
