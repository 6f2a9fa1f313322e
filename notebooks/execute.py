"""Executes notebooks: ``python notebooks/execute.py [NOTEBOOK …]`` brings their outputs up to date in place.

``FLEETFIT_NOTEBOOKS=small`` makes them small enough for tests, which execute copies. Paths of this machine do not get
into the outputs that are committed.

The metadata of an executed notebook has a digest of the code with its outputs, and the digests of the displays in the
outputs. ``outdated()`` compares them with the notebook and with the displays of today.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
NAMES = tuple(sorted(path.name for path in HERE.glob("[0-9]*.ipynb")))


def execute(source: Path, target: Path | None = None, *, timeout: float = 1800.0) -> nbformat.NotebookNode:
    """Execute a notebook from the checkout's root, and write it with its outputs.

    Args:
        source: The notebook.
        target: Where it goes; default: where it was.
        timeout: Seconds for each cell.

    Raises:
        CellExecutionError: a cell failed.
    """
    notebook = nbformat.read(source, as_version=4)
    NotebookClient(notebook, timeout=timeout, resources={"metadata": {"path": str(ROOT)}}).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if "outputs" in cell:  # what is on stderr is of this machine, such as Spark's Java
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
        for output in cell.get("outputs", ()):
            _tidy(output)
    notebook.metadata.pop("widgets", None)
    notebook = nbformat.reads(nbformat.writes(notebook), as_version=4)  # as it will be read
    notebook.metadata["fleetfit"] = {"executed": digest(notebook), "displays": displays_of(notebook)}
    nbformat.write(notebook, target or source)
    return notebook


def digest(notebook: nbformat.NotebookNode) -> str:
    """Return a text that changes with the code of a notebook and with its outputs, but not with its prose."""
    code = [[cell.source, cell.execution_count, cell.outputs] for cell in notebook.cells if cell.cell_type == "code"]
    return hashlib.sha256(json.dumps(code, sort_keys=True).encode()).hexdigest()[:16]


def displays_of(notebook: nbformat.NotebookNode) -> dict[str, str]:
    """Return today's digests of the displays that a notebook shows, by their names (see ``displays.py``)."""
    import displays

    shown: set[str] = set()
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            shown.update(re.findall(r'class="fleetfit-([\w-]+)"', data.get("text/html", "")))
            shown.update(re.findall(r"^<Plot '(.*)'>$", data.get("text/plain", "")))
    return {name: text for name, text in displays.today().items() if name in shown}


def outdated(notebook: nbformat.NotebookNode) -> list[str]:
    """Return the reasons why a notebook must be executed again, as sentences."""
    said = notebook.metadata.get("fleetfit", {})
    reasons = []
    if said.get("executed") != digest(notebook):
        reasons.append("Its code or its outputs have changed since it was executed.")
    was, now = said.get("displays", {}), displays_of(notebook)
    changed = sorted(name for name in {*was, *now} if was.get(name) != now.get(name))
    if changed:
        reasons.append(f"fleetfit shows these displays differently today: {', '.join(changed)}.")
    return reasons


def _tidy(output: nbformat.NotebookNode) -> None:
    """Have texts speak of ``~`` and the checkout instead of this machine's folders."""
    places = [(os.environ.get("FLEETFIT_HOME"), "~/.fleetfit"), (str(ROOT), "."), (str(Path.home()), "~")]

    def tidied(text: str) -> str:
        for place, name in places:
            if place:
                text = re.sub(re.escape(place) + r"(?![\w-])", name, text)  # not the beginning of another's name
        text = re.sub(r"/tmp/ipykernel_\d+/\d+\.py", "<cell>", text)
        return re.sub(r"/tmp/[\w.-]*probe-\w+", "/tmp/probe", text)

    if "text" in output:
        output["text"] = tidied(output["text"])
    for kind, value in output.get("data", {}).items():
        if isinstance(value, str) and kind.startswith(("text/", "application/json")):
            output["data"][kind] = tidied(value)


def main() -> int:
    """Execute what is named, or all."""
    for name in sys.argv[1:] or NAMES:
        path = HERE / Path(name).name
        began = time.monotonic()
        print(path.name, end=" ", flush=True)
        execute(path)
        print(f"{time.monotonic() - began:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
