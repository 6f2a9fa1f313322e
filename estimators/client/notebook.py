"""Show the progress and the logs of a job in the output of a notebook's cell, while ``fit()`` waits.

The output is a single pane, which is updated in place. Therefore a saved notebook contains only the last update: the
table with the job's result, and the last lines of the logs in a section that can be unfolded.
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

#: Maximum number of log lines in the pane. The last lines are shown. ``job.logs()`` shows all lines.
_LINES = 200
_LINE_LIMIT = 2000

#: Size of the plot of the loss, in pixels.
_WIDTH, _HEIGHT = 120.0, 22.0
#: Names of Python modules -> names of the frameworks for people.
_NAMES = {"tensorflow": "TensorFlow", "torch": "PyTorch", "tf_keras": "Keras", "keras": "Keras", "horovod": "Horovod"}


def pane_for(job: TrainingJob, progress: JobProgress) -> Pane | None:
    """Display a new pane in the current cell and return it. Return None if IPython is not installed."""
    with contextlib.suppress(ImportError):
        from IPython.display import HTML, display

        return Pane(job, progress, display, HTML)
    return None


def this_cell() -> int | None:
    """Return the number of the notebook's cell that is running. Return None outside of notebooks."""
    with contextlib.suppress(ImportError, AttributeError):
        from IPython.core.getipython import get_ipython

        return int(get_ipython().execution_count)
    return None


_said: list[str] = []


def keep(settings: Settings) -> Settings:
    """Return the settings, with the default keep-alive period if no period is set.

    For this period, a process with the imported modules stays alive after a job. Therefore the next job from the
    notebook starts faster. If the backend does not keep such processes, return the settings unchanged.
    """
    if settings.keep_alive_period_in_seconds is None and settings.capabilities.keeps_imports:
        from estimators.backends.hosts import kept

        return dataclasses.replace(settings, keep_alive_period_in_seconds=kept.SECONDS)
    return settings


class Pane(io.TextIOBase):
    """The pane in a notebook's cell that shows one job while a call of ``fit()`` or ``wait()`` waits.

    Text that is written to the pane appears in the section with the logs, which the user can fold.

    Args:
        job: The job.
        progress: The job's progress.
        display: IPython's ``display``.
        as_html: IPython's ``HTML``.
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
        self.refresh()

    def write(self, text: str) -> int:
        """Add text to the pane's log. The text may end in an incomplete line."""
        *whole, rest = (self._rest + text).split("\n")
        self._rest = rest[:_LINE_LIMIT]  # a process may never end its line
        self._count += len(whole)
        self._lines.extend(line[:_LINE_LIMIT] for line in whole)
        return len(text)

    def finish(self) -> None:
        """Show the table with the result of the ended job, and fold the logs.

        The table does not contain the reason of a failure, because the error below the cell contains this reason.
        """
        from estimators.results.display import job_html

        if self._rest:
            self.write("\n")
        self._job._shown_in = this_cell()
        self.refresh(job_html(dataclasses.replace(self._job.result(), failure_reason=None)), kept=self._kept())

    def _kept(self) -> str:
        """Return a text that says which modules stay loaded after the job, for how long, and how much memory they use.

        Only the first call in a process returns the text. Later calls return ``""``.
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

    def refresh(self, table: str | None = None, kept: str = "") -> None:
        """Send the whole pane to the browser again, with the current content.

        Args:
            table: The table with the result of an ended job as HTML.
            kept: A text about the modules that stay loaded after the job.
        """
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
    """Return the id under which the Jupyter server knows this kernel, or ``""`` if the id is unknown."""
    with contextlib.suppress(Exception):  # no kernel, or no connection file
        from ipykernel.connect import get_connection_file

        return Path(get_connection_file()).stem.removeprefix("kernel-")
    return ""
