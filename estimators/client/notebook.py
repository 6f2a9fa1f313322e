"""Shows the progress and the logs of a job in a foldable pane, while ``fit()`` waits in a notebook.

The pane is a single display of the cell, and is updated in place. Therefore a saved notebook contains the final state.
This is the job's table, and the last lines of the logs in a folded part.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import math
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from estimators.client.progress import JobProgress
    from estimators.client.training_job import TrainingJob
    from estimators.job.settings import Settings

#: Number of last lines that are shown. ``job.logs()`` shows all lines.
_LINES = 200
_LINE_LIMIT = 2000

#: Size of the plot of the loss, in pixels.
_WIDTH, _HEIGHT = 120.0, 22.0
#: Modules -> names for people.
_NAMES = {"tensorflow": "TensorFlow", "torch": "PyTorch", "tf_keras": "Keras", "keras": "Keras", "horovod": "Horovod"}


def pane_for(job: TrainingJob, progress: JobProgress) -> Pane | None:
    """Return a pane in the running notebook, or None if IPython is not installed."""
    with contextlib.suppress(ImportError):
        from IPython.display import HTML, display

        return Pane(job, progress, display, HTML)
    return None


_said: list[str] = []


def keep(settings: Settings) -> Settings:
    """Return the settings with the default keep-alive period if no period is set.

    With such a period, the next run of the notebook's cell starts faster. The settings are returned unchanged if the
    backend does not keep processes between jobs.
    """
    if settings.keep_alive_period_in_seconds is None and settings.capabilities.keeps_imports:
        from estimators.backends.hosts import kept

        return dataclasses.replace(settings, keep_alive_period_in_seconds=kept.SECONDS)
    return settings


class Pane:
    """The display of one call that waits for a job in a notebook.

    Args:
        job: The job.
        progress: The job's progress.
        display: IPython's ``display``.
        as_html: IPython's ``HTML``.

    Attributes:
        stream: A stream whose text appears in the foldable part of the pane.
    """

    def __init__(self, job: TrainingJob, progress: JobProgress, display: Any, as_html: Any) -> None:
        self._job = job
        self._progress = progress
        self._display = display
        self._as_html = as_html
        self._handle: Any = None
        self._kernel = _kernel_id()
        self._lines: deque[str] = deque(maxlen=_LINES)
        self._rest = ""
        self._count = 0
        self.stream: io.TextIOBase = _Stream(self)
        self.refresh()

    def write(self, text: str) -> None:
        """Add text to the log. The text may contain incomplete lines."""
        *whole, rest = (self._rest + text).split("\n")
        self._rest = rest[:_LINE_LIMIT]  # the line may never end
        self._count += len(whole)
        self._lines.extend(line[:_LINE_LIMIT] for line in whole)

    def refresh(self) -> None:
        """Send the whole pane to the browser again, with the current content."""
        self._show()

    def finish(self) -> None:
        """Show the table of the ended job, with the logs folded."""
        from estimators.results.display import job_html

        if self._rest:
            self.write("\n")
        self._show(job_html(self._job.result()), kept=self._kept())

    def _kept(self) -> str:
        """Return a text about the modules that stay loaded after the job, and about their memory.

        The text is returned only once per process, and ``""`` later.
        """
        seconds = (self._job.record.read_request().get("ResourceConfig") or {}).get("KeepAlivePeriodInSeconds")
        if _said or not seconds:
            return ""
        from estimators.backends.hosts import kept
        from estimators.results.summary import bytes_text, seconds_text

        found = kept.find(self._job.record.home)
        if not found:
            return ""
        _said.append(self._job.name)
        modules = {name.partition(".")[0] for one in found for name in one.packages}
        names = list(dict.fromkeys(title for name, title in _NAMES.items() if name in modules)) or sorted(modules)
        period = f"{seconds // 60} minutes" if seconds % 60 == 0 and seconds > 60 else seconds_text(seconds)
        stay = "stays" if len(names) == 1 else "stay"
        return f"{' and '.join(names)} {stay} loaded for {period} ({bytes_text(sum(one.bytes for one in found))})"

    def _show(self, table: str | None = None, kept: str = "") -> None:
        from estimators.results.html import render

        progress = self._progress
        left_out = self._count - len(self._lines)
        lines = f"{self._count} line{'' if self._count == 1 else 's'}"
        page = render(
            "client/templates/pane",
            table=table,
            kept=kept,
            kernel=self._kernel,
            stopping=bool(progress.interrupted),
            job=self._job.name,
            done=progress.done,
            total=progress.total,
            curve=_curve(progress.loss),
            size=(_WIDTH, _HEIGHT),
            parts=progress.parts(time.time()),
            title=f"logs ({lines}, the last {len(self._lines)})" if left_out > 0 else f"logs ({lines})",
            text="\n".join([*self._lines, *([self._rest] if self._rest else [])]),
        )
        if self._handle is None:
            self._handle = self._display(self._as_html(page), display_id=True)
        else:
            self._handle.update(self._as_html(page))


def _curve(values: Sequence[float]) -> str:
    """Return the points of an SVG line through the values, or ``""`` for fewer than two finite values."""
    known = [value for value in values if math.isfinite(value)]
    if len(known) < 2:
        return ""
    least, most = min(known), max(known)
    step, scale = _WIDTH / (len(known) - 1), (_HEIGHT - 2) / ((most - least) or 1.0)
    return " ".join(f"{index * step:.1f},{1 + (most - value) * scale:.1f}" for index, value in enumerate(known))


def _kernel_id() -> str:
    """Return the id of this kernel at Jupyter's server, or ``""`` if the id is unknown."""
    with contextlib.suppress(Exception):  # no kernel, or no connection file
        from ipykernel.connect import get_connection_file

        return Path(get_connection_file()).stem.removeprefix("kernel-")
    return ""


class _Stream(io.TextIOBase):
    """A stream that passes the text of the log's printer to a pane."""

    def __init__(self, pane: Pane) -> None:
        self._pane = pane

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self._pane.write(text)
        return len(text)
