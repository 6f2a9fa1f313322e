"""The notebooks run from a clean checkout, at a small size; what is committed of their outputs is whole and tidy."""

from __future__ import annotations

import copy
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "notebooks"))
import displays  # noqa: E402
import execute  # noqa: E402

NOTEBOOKS = sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))
#: It needs containers; tests/integration/containers has it.
_CONTAINERS = "04-models-and-bandwidths.ipynb"
#: The first one says whether notebooks run at all.
_MARKS = {
    "01": pytest.mark.landing,
    **dict.fromkeys(("02", "06", "07", "08", "09", "10", "11", "13"), pytest.mark.soak),
}

#: Executes one notebook at a small size: the place, and where the copy with its outputs goes.
PROGRAM = """
import sys
from pathlib import Path
sys.path.insert(0, {folder!r})
import execute
execute.execute(Path(sys.argv[1]), Path(sys.argv[2]), timeout=500)
"""


def run(notebook: Path, folder: Path, **environment: str) -> nbformat.NotebookNode:
    """Execute a copy of a notebook, in a home of its own."""
    target = folder / notebook.name
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(folder=str(notebook.parent)), str(notebook), str(target)],
        env={
            **os.environ, "FLEETFIT_NOTEBOOKS": "small", "FLEETFIT_HOME": str(folder / "home"), **environment,
        },
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=570,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return nbformat.read(target, as_version=4)


@pytest.mark.tensorflow
@pytest.mark.horovod
@pytest.mark.parametrize(
    "notebook",
    [pytest.param(one, marks=_MARKS.get(one.name[:2], ())) for one in NOTEBOOKS if one.name != _CONTAINERS],
    ids=lambda path: path.stem,
)
def test_a_notebook_runs(notebook: Path, tmp_path: Path) -> None:
    executed = run(notebook, tmp_path)
    shown = [kind for cell in executed.cells for output in cell.get("outputs", ()) for kind in output.get("data", {})]
    assert "text/html" in shown
    assert all(text_of(executed).count(word) == 0 for word in ("Traceback (most recent", "| Failed"))
    if notebook.name.startswith("06"):
        # The worker that is killed is missed and the others went back to the commit, all of which the table says.
        assert all(word in text_of(executed) for word in ("is excluded for", "back to the last commit"))


def test_which_there_are() -> None:
    assert [path.name[:2] for path in NOTEBOOKS] == [f"{number:02}" for number in range(1, 14)]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_is_committed_has_outputs_and_speaks_of_no_machine(notebook: Path) -> None:
    found = nbformat.read(notebook, as_version=4)
    nbformat.validate(found)
    code = [cell for cell in found.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in code), "a cell was not executed"
    outputs = [output for cell in code for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error"]
    pictures = [output for output in outputs if "image/png" in output.get("data", {})]
    assert pictures or notebook.name.startswith("12"), "it shows no picture"  # 12 shows tables
    assert not re.findall(r"/(?:root|home/\w+|work|tmp/(?!probe)\w+)/[\w./-]*", text_of(found))
    assert notebook.stat().st_size < 2 << 20


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_is_committed_of_its_outputs_is_of_today(notebook: Path) -> None:
    """Its outputs are those that its code has made, and fleetfit would show its tables and plots in the same way."""
    reasons = execute.outdated(nbformat.read(notebook, as_version=4))
    assert not reasons, f"{' '.join(reasons)} Execute it again: python notebooks/execute.py {notebook.name}"


def test_outputs_that_were_edited_and_displays_that_have_changed_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    found = nbformat.read(ROOT / "notebooks" / "10-from-a-function.ipynb", as_version=4)
    assert not execute.outdated(found)
    edited = copy.deepcopy(found)
    edited.cells[0].source += " Prose may change."
    assert not execute.outdated(edited)
    output = next(output for cell in edited.cells for output in cell.get("outputs", ()) if "data" in output)
    output.data["text/plain"] += " "
    assert execute.outdated(edited) == ["Its code or its outputs have changed since it was executed."]
    monkeypatch.setattr(displays, "today", lambda today=displays.today(): {**today, "comparison": "another"})
    assert execute.outdated(found) == ["fleetfit shows these displays differently today: comparison."]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_links_lead_somewhere(notebook: Path) -> None:
    found = nbformat.read(notebook, as_version=4)
    text = "\n".join(cell.source for cell in found.cells if cell.cell_type == "markdown")
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert target.startswith("https://") or (notebook.parent / target).exists(), target


def text_of(notebook: nbformat.NotebookNode) -> str:
    """All texts that its cells put out."""
    texts = []
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            texts.append(output.get("text", ""))
            texts += [value for kind, value in output.get("data", {}).items() if kind.startswith("text/")]
    return "\n".join(texts)
