"""How the tests run a document: by a process of its own, in a folder and with a home of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import documents

from container.contract import variables

#: What the shell that runs the tests may have set and a reader has not.
_FOREIGN = ("SM_", "SAGEMAKER_", "TF_", "AWS_", "FLEETFIT_HOME", "COLUMNS")


def project_of(document: Path) -> str:
    """The name of a document's project: a folder of ``tests/integration/docs``."""
    return document.stem.replace("-", "_")


def run_document(
    document: Path, folder: Path, *given: str, digits: Path, environment: dict[str, str] | None = None
) -> str:
    """Run a document's blocks, and return what was printed.

    Args:
        document: The file.
        folder: An empty folder for the work and the home.
        given: What there is of what blocks need; then only the blocks that need it are run.
        digits: The prepared digits, of which the document has a copy.
        environment: More variables.
    """
    work, home = folder / "work", folder / "home"
    documents.lay_out(project_of(document), work)
    home.mkdir()
    if kept := os.environ.get(variables.KEEP_IMPORTERS):
        # Keras writes its settings at its first import; with another file nothing of what was imported is used again.
        (Path(kept) / "keras").mkdir(exist_ok=True)
        (home / ".keras").symlink_to(Path(kept) / "keras")
    shutil.copytree(digits, work / "data" / "digits")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    # Programs of this Python come first, as in an activated environment; caches are the user's own.
    inherited["PATH"] = f"{Path(sys.executable).parent}:{inherited['PATH']}"
    inherited.setdefault("FLEETFIT_CACHE", str(Path.home() / ".cache" / "fleetfit"))
    output = folder / "output.txt"
    with output.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, documents.__file__, str(document), project_of(document), *given],
            cwd=work,
            env={**inherited, "HOME": str(home), **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            process.wait(300)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    printed = output.read_text(encoding="utf-8", errors="replace")
    assert process.returncode == 0, printed
    return printed
