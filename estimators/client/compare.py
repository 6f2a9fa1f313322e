"""Run estimators one after another, and compare the runs with each other and with earlier jobs (``compare()``)."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Any

from container.contract import rules
from container.contract.names import suggests_arguments
from container.contract.wire import Event
from estimators.client.callbacks import Callback
from estimators.client.estimator import Estimator
from estimators.client.functions import packing
from estimators.client.functions.remote import RemoteFunction
from estimators.client.printing import LogPrinter, is_terminal, write_text
from estimators.client.progress import JobProgress
from estimators.client.training_job import TrainingJob
from estimators.job.errors import BackendError, ConfigurationError, JobUnreachableError, TrainingJobError, warn
from estimators.job.inputs import Inputs
from estimators.results.comparison.comparison import Comparison, Group
from estimators.results.result import Result
from estimators.results.tables import terminal_width

#: Maximum time to wait until the supervisor of an ended job has exited, in seconds. The next run starts afterwards.
_SETTLE_SECONDS = 75.0
_POLL_SECONDS = 0.05
#: The least time between two updates of the line that shows a run's progress, in seconds.
_LINE_SECONDS = 0.25


class ComparisonWarning(UserWarning):
    """A warning that the compared runs had different data or different global batch sizes."""


@suggests_arguments
def compare(
    *what: Any,
    inputs: Inputs = None,
    repeat: int = 1,
    names: Sequence[str] | None = None,
    prices: Mapping[str, float] | None = None,
    logs: bool = False,
) -> Comparison:
    """Compare runs in a table.

    Estimators run one after another, never at the same time. With ``repeat``, every second round runs in reverse order,
    so that no estimator has an advantage if the machine becomes slower or faster. If a run fails, the table shows the
    failed run with the cause, and the comparison continues.

    Args:
        what: The items to compare: estimators, functions and jobs, in any combination. A job is a handle, a name, a
            :class:`~estimators.Result` or the path of a ``result.json``. Instead of several items, a single mapping
            from row names to items can be passed. A function runs with the settings of its ``@remote`` decorator. Any
            other function runs as one process of this machine. An unchanged estimator from ``Estimator.attach(name)``
            does not run. The existing job is compared instead.
        inputs: The channels of the estimators' jobs, as in ``fit()``.
        repeat: The number of runs of each estimator.
        names: The items' names in the table, one for each item. Items with the same name form one row.
        prices: A mapping from instance types to prices in US dollars per host and hour. These prices replace the
            published prices.
        logs: Whether to print the jobs' logs.

    Warns:
        ComparisonWarning: the runs had different data or different global batch sizes. The table marks the rows of
            these runs.

    Raises:
        ConfigurationError: no item is given, an item cannot be compared, or an option is wrong.
        JobNotFoundError: no job has the given name.
        KeyboardInterrupt: the user interrupted a run. The table of the runs that have ended is printed to standard
            error.
    """
    things, given = _things(what, names)
    rules.whole(1)("compare(repeat=…)", repeat)
    for instance_type, price in (prices or {}).items():
        rules.number(0)(f"compare(prices=…): the price of {instance_type!r}", price)
    for thing in things:
        if isinstance(thing, Estimator):
            thing.plan(inputs)  # raise an error in any estimator's arguments before the first estimator runs
    found: list[list[Result]] = [[] if isinstance(thing, Estimator) else [_result(thing)] for thing in things]
    if inputs is not None and not any(isinstance(thing, Estimator) for thing in things):
        raise ConfigurationError("compare(inputs=…) is for estimators only. Jobs are not run again: leave inputs= out.")
    if repeat > 1 and not any(isinstance(thing, Estimator) for thing in things):
        raise ConfigurationError("compare(repeat=…) is for estimators only. Jobs are not run again: leave repeat= out.")
    turns = _turns([isinstance(thing, Estimator) for thing in things], repeat)
    for count, index in enumerate(turns, 1):
        title = f"compare: {count} of {len(turns)}: {given[index] or _name(things[index])}"
        write_text(sys.stderr, f"{title} …\n")
        line = _StatusLine(title) if not logs and is_terminal(sys.stderr) else None
        try:
            run = _run(things[index], inputs, line, logs=logs)
            found[index].append(run.result() if isinstance(run, TrainingJob) else run)
            if isinstance(run, TrainingJob):
                settle(run)
                found[index][-1] = run.result()  # from the complete record
        except KeyboardInterrupt:
            if line is not None:
                line.clear()
            _show_ended(found, given, prices)
            raise
    comparison = Comparison(_groups(found, given), prices=prices)
    for text in comparison.warnings:
        warn(text, ComparisonWarning)
    return comparison


def _show_ended(
    found: Sequence[Sequence[Result]], given: Sequence[str | None], prices: Mapping[str, float] | None
) -> None:
    """Print a table of the runs that ended before an interrupt. If no run has ended, print nothing.

    The table is printed to standard error.
    """
    ended = [(results, name) for results, name in zip(found, given, strict=True) if results]
    if ended:
        table = Comparison(_groups(*zip(*ended, strict=True)), prices=prices).as_text(terminal_width(sys.stderr))
        with contextlib.suppress(OSError, ValueError):  # Ctrl-C may also have ended the reader of standard error
            write_text(sys.stderr, f"compare: interrupted. The runs that have ended:\n\n{table}\n")


def _turns(runs: Sequence[bool], repeat: int) -> list[int]:
    """Return the order of the runs, as indices of items. Every second round is in reverse order.

    Args:
        runs: For each item, whether the item is an estimator. Only estimators run.
        repeat: The number of rounds.
    """
    places = [place for place, wanted in enumerate(runs) if wanted]
    return [place for number in range(repeat) for place in (places if number % 2 == 0 else reversed(places))]


def _things(what: Sequence[Any], names: Sequence[str] | None) -> tuple[list[Any], list[str | None]]:
    """Return the items to compare, and the name of each item for the table.

    The name is None if the user gave no name.
    """
    if len(what) == 1 and isinstance(what[0], Mapping):
        if names is not None:
            raise ConfigurationError("compare({name: …}) already gives the names. Leave out the argument names.")
        things = list(what[0].values())
        given: list[str | None] = [str(name) for name in what[0]]
    else:
        things = []
        for item in what:
            things += list(item) if isinstance(item, list | tuple) else [item]
        given = [None] * len(things)
        if names is not None:
            if isinstance(names, str) or len(names) != len(things):
                raise ConfigurationError(
                    f"compare(names=…) needs a list of {len(things)} names, one per estimator or job; got {names!r}."
                )
            given = [str(name) for name in names]
    if not things:
        raise ConfigurationError("compare() needs estimators or jobs; none was given.")
    functions = [packing.name_of(thing) if _is_function(thing) else None for thing in things]
    given = [
        name or (function if functions.count(function) == 1 else None)  # so that functions of one name share no row
        for name, function in zip(given, functions, strict=True)
    ]
    things = [_estimator_of(thing) if _is_function(thing) else thing for thing in things]
    for thing in things:
        if not isinstance(thing, Estimator | TrainingJob | Result | str | Path):
            raise ConfigurationError(
                "compare() takes estimators, functions, jobs, names of jobs, and results or their paths; got "
                f"{thing!r} ({type(thing).__name__})."
            )
    return [_attached_job(thing) for thing in things], list(given)


def _is_function(thing: Any) -> bool:
    return callable(thing) and not isinstance(thing, Estimator | TrainingJob | Result | str | Path)


def _estimator_of(function: Any) -> Estimator:
    if isinstance(function, RemoteFunction):
        return function.estimator()
    packing.check(function)
    return Estimator(entry_point=function)


def _attached_job(thing: Any) -> Any:
    """Return the existing job that an unchanged estimator represents. Return any other item unchanged."""
    if isinstance(thing, Estimator) and thing.stands_for_its_job:
        return thing.latest_training_job
    return thing


def _result(thing: Any) -> Result:
    if isinstance(thing, Result):
        return thing
    if isinstance(thing, TrainingJob):
        return thing.result()
    if isinstance(thing, Path) or "/" in thing or thing.endswith(".json"):
        return Result.load(thing)
    return TrainingJob.attach(thing).result()


class _StatusLine(Callback):
    """A line on the terminal that shows the progress of a run. The line replaces the logs, and is on standard error."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._printer = LogPrinter(sys.stderr)
        self._progress: JobProgress | None = None
        self._shown_at = float("-inf")

    def on_event(self, job: TrainingJob, event: Event) -> None:
        """Show the progress after an event. The line is updated at most every 0.25 seconds."""
        if self._progress is None:
            self._progress = JobProgress.of(job)
        self._progress.take([event])
        now = time.monotonic()
        if now - self._shown_at < _LINE_SECONDS:
            return
        self._shown_at = now
        self._progress.printed()  # the logs, which would show whether the script is still importing, are not read
        self._progress.stand(str(job.secondary_status), "")
        self._printer.status(" · ".join([self._title, *self._progress.parts(time.time())]))

    def on_end(self, job: TrainingJob) -> None:
        """Remove the line."""
        self.clear()

    def clear(self) -> None:
        """Remove the line."""
        self._printer.status("")


def _run(estimator: Estimator, inputs: Any, line: Callback | None, *, logs: bool) -> TrainingJob | Result:
    """Run an estimator, wait until its job has ended, and return the job.

    If the job could not be started, return a result with the status ``Failed`` instead.
    """
    try:
        watched: dict[str, Any] = (
            {"callbacks": line} if line is not None and "callbacks" in signature(estimator.fit).parameters else {}
        )
        job = estimator.fit(inputs, logs=logs, **watched)
    except TrainingJobError as error:
        if not isinstance(error.job, TrainingJob):
            raise
        job = error.job
    except (BackendError, JobUnreachableError) as error:
        # Nothing was started. The comparison continues, so that the other results are not lost.
        return not_started(estimator, str(error))
    return job


def not_started(estimator: Estimator, reason: str) -> Result:
    """Return a result with the status ``Failed`` for a run that could not be started."""
    settings = estimator.settings
    strategy = settings.distribution
    per_host = strategy.ranks_per_host if strategy is not None else 1
    return Result(
        job_name="(not started)",
        status="Failed",
        secondary_status="Failed",
        seconds=None,
        phases={},
        final_metrics={},
        model_data=None,
        checkpoints=None,
        logs="",
        failure_reason=reason,
        strategy=strategy.name if strategy is not None else None,
        instance_type=settings.instance_type,
        hosts=settings.instance_count or 1,
        processes=(settings.instance_count or 1) * per_host,
        processes_per_host=per_host,
    )


def _name(estimator: Estimator) -> str:
    settings = estimator.settings
    strategy = settings.distribution.name if settings.distribution is not None else "none"
    hosts = settings.instance_count
    return f"{strategy} on {hosts} host{'' if hosts == 1 else 's'}"


def settle(job: TrainingJob) -> None:
    """Wait until the supervisor of an ended job has exited, at most 75 seconds.

    Otherwise the supervisor could slow down the next run.
    """
    until = time.monotonic() + _SETTLE_SECONDS
    while job.record.is_supervised() and time.monotonic() < until:
        time.sleep(_POLL_SECONDS)


def _groups(found: Sequence[Sequence[Result]], names: Sequence[str | None]) -> list[Group]:
    """Return the rows of the table. If the user has named a job twice, its row contains the job only once."""
    labels = _labels([results[0] for results in found])
    groups: dict[str, list[Result]] = {}
    for results, name, label in zip(found, names, labels, strict=True):
        row = groups.setdefault(name if name is not None else label, [])
        known = {(result.job_name, result.created) for result in row if result.created is not None}
        row += [result for result in results if (result.job_name, result.created) not in known]
    return [Group(name, tuple(results)) for name, results in groups.items()]


def _labels(results: Sequence[Result]) -> list[str]:
    """Return a label for each run, for rows without a name. The labels differ as far as the runs differ.

    A label consists of the strategy and the numbers of hosts and processes. Where necessary, the instance type,
    hyperparameters and the job's name are added, in this order.
    """
    labels = [f"{result.strategy or 'none'} {result.hosts} × {result.processes_per_host}" for result in results]
    if len({result.instance_type for result in results}) > 1:
        labels = [f"{label}, {result.instance_type}" for label, result in zip(labels, results, strict=True)]
    keys = sorted({name for result in results for name in result.hyperparameters} - {"model_dir"})
    for key in keys:
        if len(set(labels)) == len(labels):
            break
        values = [
            f"{key} {result.hyperparameters[key]}" if key in result.hyperparameters else f"no {key}"
            for result in results
        ]
        if len(set(values)) > 1:
            labels = [f"{label}, {value}" for label, value in zip(labels, values, strict=True)]
    if len(set(labels)) < len(labels):
        labels = [
            f"{label}, {result.job_name}" if labels.count(label) > 1 else label
            for label, result in zip(labels, results, strict=True)
        ]
    return labels
