"""Simulate jobs without starting anything, for users' tests of their own code around ``fit()``.

The job's record, status, logs, metrics and handle are real. The outcome of the training is scripted::

    from estimators import TensorFlow
    from estimators.testing import FakeOutcome


    def test_a_failed_training_is_reported():
        estimator = TensorFlow(
            entry_point="train.py",
            instance_type="local_fake",
            run_options=FakeOutcome(lines=["epoch 1", "loss: 0.5"], exit_code=3).run_options(),
        )
        with pytest.raises(TrainingJobError):
            estimator.fit()
"""

from __future__ import annotations

import dataclasses
import functools
import io
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from container.contract import rules, wire
from container.contract.failures import Cause, Failure, describe_end
from container.contract.frozen import dataclass
from container.contract.names import suggests_arguments
from container.contract.rules import option
from estimators.backends.base import Backend, BackendQueries
from estimators.backends.events import HostEnd, OutputsCollected, StatusTold
from estimators.backends.local import output_dir
from estimators.backends.placement import ClusterPlacement, on_this_machine
from estimators.job.errors import ConfigurationError
from estimators.job.request import RunOptions, TrainingJobSpec

_STOPPED = 128 + signal.SIGTERM


def _lines(where: str, value: Any) -> tuple[str | tuple[int, str], ...]:
    return tuple(_line(where, line) for line in rules.items_of(where, value))


def _line(where: str, line: Any) -> str | tuple[int, str]:
    if isinstance(line, str):
        return line
    if isinstance(line, list | tuple) and len(line) == 2 and isinstance(line[0], int) and isinstance(line[1], str):
        return line[0], line[1]
    raise ConfigurationError(f"{where}: each must be a string or (rank, string), got {line!r}.")


@suggests_arguments
@dataclass(frozen=True, kw_only=True)
class FakeOutcome:
    """The scripted outcome of a job on ``local_fake``.

    Attributes:
        seconds: The duration of the training in seconds. The lines are printed at even intervals over this time.
        lines: The lines that the ranks print. A string is a line of rank 0, and ``(rank, string)`` is a line of the
            given rank. The estimator's ``metric_definitions`` find metrics in these lines.
        metrics: The values that rank 0 reports, in the order of the reports, by the metric's name.
        failure: The failure with which the job ends, or None for a job that completes.
        exit_code: A short form of ``failure``. If not 0, rank 0 exits with this code and the job fails.
        model: The files in ``model.tar.gz``: path -> text. Without files, there is no model.
    """

    seconds: float = option(rules.number(), 0.0)
    lines: Sequence[str | tuple[int, str]] = option(_lines, ())
    metrics: Mapping[str, Sequence[float]] = dataclasses.field(default_factory=dict)
    failure: Failure | None = None
    exit_code: int = 0
    model: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        rules.check(self)
        if isinstance(self.exit_code, bool) or not isinstance(self.exit_code, int):
            raise ConfigurationError(f"FakeOutcome(exit_code=…) must be a whole number, got {self.exit_code!r}.")

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as a dict that can be stored as JSON. :meth:`from_dict` restores the outcome."""
        return {
            "seconds": self.seconds,
            "lines": [list(line) if isinstance(line, tuple) else line for line in self.lines],
            "metrics": {name: list(values) for name, values in self.metrics.items()},
            "failure": self.failure.to_dict() if self.failure is not None else None,
            "exit_code": self.exit_code,
            "model": dict(self.model),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> FakeOutcome:
        """Create an outcome from the result of :meth:`to_dict`.

        Raises:
            ConfigurationError: an option is unknown.
        """
        given = dict(values)
        if given.get("failure") is not None:
            given["failure"] = Failure.from_dict(given["failure"])
        return rules.from_dict(cls, given, "option of the backend 'local_fake'")  # type: ignore[no-any-return]

    def run_options(self, **options: Any) -> RunOptions:
        """Return the RunOptions with which a job on ``local_fake`` has this outcome.

        Args:
            **options: Additional arguments of RunOptions.
        """
        return RunOptions(backend_options=self.to_dict(), **options)

    def failure_of(self, host: str) -> Failure | None:
        """Return the failure that ``host``, the first host, reports. Return None if the job completes."""
        if self.failure is not None:
            return dataclasses.replace(self.failure, host=self.failure.host or host)
        if self.exit_code == 0:
            return None
        return Failure(
            cause=Cause.PROCESS,
            message=f"the script {describe_end(self.exit_code, None)}.",
            host=host,
            process="rank 0",
            rank=0,
            exit_code=self.exit_code,
        )


class FakeBackend(Backend, BackendQueries):
    """A backend that simulates a :class:`FakeOutcome`.

    See :class:`estimators.backends.base.Backend` for the interface.
    """

    name = "local_fake"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._outcome = FakeOutcome.from_dict(self.options.backend_options)
        self._running: list[str] = []

    @classmethod
    def placement(cls, spec: TrainingJobSpec, options: RunOptions, record: Path) -> ClusterPlacement:
        """Return the placement of hosts that are processes on this machine."""
        return on_this_machine(spec, options, record)

    @classmethod
    def check(cls, spec: TrainingJobSpec, options: RunOptions) -> None:
        """Raise ConfigurationError if the outcome in ``backend_options`` is invalid."""
        outcome = FakeOutcome.from_dict(options.backend_options)
        for line in outcome.lines:
            if isinstance(line, tuple) and not 0 <= line[0] < spec.size:
                raise ConfigurationError(
                    f"FakeOutcome(lines=…): there is no rank {line[0]}; number of ranks: {spec.size}."
                )

    @property
    def running(self) -> bool:
        """Return whether the simulated hosts are running."""
        return bool(self._running)

    def start(self, attempt: int) -> None:
        """Start the simulation: schedule the outcome's lines, metrics and end."""
        self.attempt = attempt
        self._running = list(self.spec.hosts)
        self.events.put_nowait(StatusTold("Training"))
        for host in self._running:
            self.hand_on(host, b"")
        lines = [functools.partial(self._print, *_rank_and_text(line)) for line in self._outcome.lines]
        reports = [
            functools.partial(self._report, name, float(value))
            for name, values in self._outcome.metrics.items()
            for value in values
        ]
        steps = [*lines, *reports]
        for index, step in enumerate(steps):
            self.loop.call_later(self._outcome.seconds * (index + 1) / (len(steps) + 1), step)
        self.loop.call_later(self._outcome.seconds, self._end)

    def stop(self) -> None:
        """End all simulated hosts at once with exit code 143, as if their scripts did not handle SIGTERM."""
        self._all_end(exit_code=_STOPPED)

    def kill_host(self, host: str) -> None:
        """End all simulated hosts as if SIGKILL had killed them: the loss of one host also ends the other hosts."""
        self._all_end(signal=int(signal.SIGKILL))

    def end_now(self) -> None:
        """End all simulated hosts as if SIGKILL had killed them."""
        self._all_end(signal=int(signal.SIGKILL))

    def collect_outputs(self) -> None:
        """Write ``model.tar.gz`` if the outcome has a model."""
        folder = output_dir(self.spec)
        if self._outcome.model and folder is not None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                (folder / "model.tar.gz").write_bytes(_archive(self._outcome.model))
            except OSError as error:
                failure = Failure(cause=Cause.CONFIGURATION, message=f"the outputs could not be written: {error}")
                self.events.put_nowait(OutputsCollected(failure))
                return
        self.events.put_nowait(OutputsCollected(None))

    def cleanup(self) -> None:
        """Do nothing, because the backend has created nothing that has to be removed."""

    def _print(self, rank: int, text: str) -> None:
        host = self._host_of(rank)
        tag = wire.prefix(host, f"rank {rank}").encode()
        self._say(host, b"".join(wire.encode_piece(tag, line.encode() + b"\n") for line in text.split("\n")))

    def _report(self, name: str, value: float) -> None:
        host = self._host_of(0)
        data = {"name": name, "value": value}
        self._say(host, wire.Event(kind="metric", host=host, rank=0, attempt=self.attempt, data=data).to_line())

    def _say(self, host: str, data: bytes) -> None:
        if host in self._running:
            self.hand_on(host, data)

    def _host_of(self, rank: int) -> str:
        per_host = self.spec.size // self.spec.instance_count
        return self.spec.hosts[rank // per_host]

    def _end(self) -> None:
        if not self._running:
            return
        host = self._running[0]
        failure = self._outcome.failure_of(host)
        if failure is None:
            self._all_end(exit_code=0)
            return
        event = wire.Event(kind="failure", host=host, attempt=self.attempt, data=failure.to_dict())
        self.hand_on(host, event.to_line())
        self._all_end(exit_code=1)

    def _all_end(self, *, exit_code: int | None = None, signal: int | None = None) -> None:
        running, self._running = self._running, []
        for host in running:
            self.events.put_nowait(HostEnd(host=host, exit_code=exit_code, signal=signal))


def _rank_and_text(line: str | tuple[int, str]) -> tuple[int, str]:
    return line if isinstance(line, tuple) else (0, line)


def _archive(files: Mapping[str, str]) -> bytes:
    import tarfile

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, text in files.items():
            data = text.encode()
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()
