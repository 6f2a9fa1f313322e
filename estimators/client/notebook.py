"""What ``fit()`` shows in a notebook while it waits: how far the job is, and its logs in a pane that folds.

It is one display of the cell that is brought up to date in place, so that a saved notebook has the final state of it:
the job's table, and the end of its logs, folded.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import sys
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from estimators.client.callbacks import Callback, Metric
from estimators.client.printing import write_text

if TYPE_CHECKING:
    from container.contract.wire import Event
    from estimators.client.training_job import TrainingJob
    from estimators.job.settings import Settings

#: Between two updates, in seconds: each sends the whole pane to the browser.
_PERIOD_SECONDS = 0.25
#: So many of the last lines are shown; ``job.logs()`` shows all.
_LINES = 200
_LINE_LIMIT = 2000

_STAGES = {
    "ranks_started": "importing", "imported": "meeting", "rendezvous": "first step", "first_step": "training",
    "training_ended": "finishing", "ranks_ended": "finishing",
}  # fmt: skip
#: Hyperparameters that say how many epochs there will be.
_EPOCHS = ("epochs", "num-epochs", "num_epochs")
_SHOWN = 4


def pane_for(job: TrainingJob) -> Pane | None:
    """Return a pane in the running notebook; None where there is no IPython to show it."""
    with contextlib.suppress(ImportError):
        from IPython.display import HTML, display

        return Pane(job, display, HTML)
    return None


_said: list[str] = []


def keep(settings: Settings) -> Settings:
    """Return the settings of a notebook's job: unless they say otherwise, the next run of the cell finds it warm."""
    if settings.keep_alive_period_in_seconds is None and settings.capabilities.keeps_imports:
        from estimators.backends.hosts import kept

        return dataclasses.replace(settings, keep_alive_period_in_seconds=kept.SECONDS)
    return settings


class Pane(Callback):
    """The display of one waiting call.

    Args:
        job: The job.
        display: IPython's ``display``.
        as_html: IPython's ``HTML``.

    Attributes:
        stream: What is written to it stands in the folding part.
    """

    def __init__(self, job: TrainingJob, display: Any, as_html: Any) -> None:
        self._job = job
        self._display = display
        self._as_html = as_html
        self._handle: Any = None
        self._lines: deque[str] = deque(maxlen=_LINES)
        self._rest = ""
        self._count = 0
        self._began = time.monotonic()
        self._updated = float("-inf")
        self._stage = "launching"
        self._metrics: dict[str, float] = {}
        self._epochs = _epochs_of(job)
        self.stream: io.TextIOBase = _Stream(self)
        self.refresh(force=True)

    # --- what is new ---

    def write(self, text: str) -> None:
        """Take a piece of the log."""
        *whole, rest = (self._rest + text).split("\n")
        self._rest = rest[:_LINE_LIMIT]  # it may never end
        self._count += len(whole)
        self._lines.extend(line[:_LINE_LIMIT] for line in whole)

    def on_metric(self, job: TrainingJob, metric: Metric) -> None:
        """A metric of the lowest rank that reports it."""
        if metric.rank in (None, 0):
            self._metrics[metric.name] = metric.value

    def on_event(self, job: TrainingJob, event: Event) -> None:
        """A phase begins."""
        if event.kind == "phase":
            self._stage = _STAGES.get(str(event.data.get("name")), self._stage)

    # --- showing it ---

    def refresh(self, *, force: bool = False) -> None:
        """Bring the display up to date, a few times a second at most."""
        now = time.monotonic()
        if not force and now - self._updated < _PERIOD_SECONDS:
            return
        self._updated = now
        self._show()

    def say_what_is_kept(self) -> None:
        """Say once in this process what is kept after a job, and the memory that it takes."""
        if _said or not (self._job.record.read_request().get("ResourceConfig") or {}).get("KeepAlivePeriodInSeconds"):
            return
        from estimators.backends.hosts import kept

        for one in kept.find(self._job.record.home):
            _said.append(self._job.name)
            write_text(
                sys.stdout,
                f"fleetfit keeps {one}: the next job starts faster. keep_alive_period_in_seconds=0 turns this off, and "
                "`fleetfit clean` ends it.\n",
            )

    def finish(self) -> None:
        """The job is over: its table, with the logs folded."""
        from estimators.results.display import job_html

        if self._rest:
            self.write("\n")
        self._show(job_html(self._job.result()))

    def _show(self, table: str | None = None) -> None:
        from estimators.results.html import render

        left_out = self._count - len(self._lines)
        lines = f"{self._count} line{'' if self._count == 1 else 's'}"
        epoch = self._metrics.get("epoch")
        page = render(
            "client/templates/pane",
            table=table,
            job=self._job.name,
            epoch=epoch,
            epochs=self._epochs if epoch is not None else None,
            parts=self._progress(epoch),
            title=f"logs ({lines}, the last {len(self._lines)})" if left_out > 0 else f"logs ({lines})",
            text="\n".join([*self._lines, *([self._rest] if self._rest else [])]),
        )
        if self._handle is None:
            self._handle = self._display(self._as_html(page), display_id=True)
        else:
            self._handle.update(self._as_html(page))

    def _progress(self, epoch: float | None) -> list[str]:
        stage = self._stage
        if epoch is not None:
            stage = f"epoch {epoch:g}" + (f" of {self._epochs}" if self._epochs else "")
        names = [name for name in self._metrics if name != "epoch"][:_SHOWN]
        elapsed_s = time.monotonic() - self._began
        return [stage, f"{elapsed_s:.0f} s", *(f"{name} {self._metrics[name]:.4g}" for name in names)]


class _Stream(io.TextIOBase):
    """Lets the log's printer write to a pane."""

    def __init__(self, pane: Pane) -> None:
        self._pane = pane

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self._pane.write(text)
        return len(text)


def _epochs_of(job: TrainingJob) -> int | None:
    from container.contract import hyperparameters as codec

    found = codec.decode(job.record.read_request().get("HyperParameters") or {})
    for name in _EPOCHS:
        value = found.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None
