"""Decides whether, when and on which hosts a job is started again after an attempt: pure functions of values.

An *attempt* is one start of a job. It ends by a failure (a crash, a lost host, a time limit of its start) or by a
preemption (a host was taken away, after a notice). Failures and preemptions are counted separately, because a
preemption is not a fault of the job.

All times are seconds on one clock, which the caller chooses; no function here reads a clock.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from container.contract import rules
from container.contract.failures import Cause, Failure
from container.contract.names import cut
from container.contract.rules import option
from estimators.job.bounds import MAX_SECONDS

#: SageMaker's limits of RetryStrategy.MaximumRetryAttempts.
RETRIES = (1, 30)

#: #: An attempt that raised an exception within this time of training, in seconds, failed "at once".
_AT_ONCE_S = 60.0

#: #: Exceptions that another attempt with the same code would raise again.
_FAULTS_OF_CODE = frozenset(
    {"SyntaxError", "IndentationError", "TabError", "ImportError", "ModuleNotFoundError", "NameError"}
)

#: #: How much of an earlier attempt's traceback is stored, in characters.
_TRACEBACK_LIMIT = 2000

#: The exit codes of a shell whose command cannot be run or found.
_NO_COMMAND = (126, 127)

_EXCEPTION = re.compile(r"(?:[A-Za-z_][\w.]*\.)?([A-Za-z_]\w*)(?::|$)")
_FRAME = re.compile(r'^\s*File "([^"]+)", line (\d+)', re.MULTILINE)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FailurePolicy:
    """The reaction to failed and preempted attempts of a job.

    Attributes:
        max_failures: Number of failed attempts after which another attempt starts. None: the estimator's
            ``max_retry_attempts``, or 0 if this is not set.
        max_preemptions: Number of preempted attempts after which another attempt starts. None: no limit, as on
            SageMaker.
        cooldown: ``(first, longest)`` pause in seconds after a failed attempt. The pause doubles with each failure that
            follows without a new checkpoint. A preemption causes no pause.
        min_hosts: Minimum number of hosts with which the job continues if some hosts are lost. None: all hosts; the job
            waits for lost hosts to return, and fails if they do not return.
    """

    max_failures: int | None = option(rules.whole(0))
    max_preemptions: int | None = option(rules.whole(0))
    cooldown: tuple[float, float] = option(
        rules.pair("two numbers of seconds, (first, longest)", rules.seconds(0, MAX_SECONDS)), (0.5, 60.0)
    )
    min_hosts: int | None = option(rules.whole(1))

    def __post_init__(self) -> None:
        rules.check(self)

    def with_retries(self, attempts: int | None) -> FailurePolicy:
        """Return the policy with SageMaker's ``max_retry_attempts`` as ``max_failures``, unless that is set."""
        return dataclasses.replace(self, max_failures=attempts or 0) if self.max_failures is None else self


def pause_s(first: float, longest: float, failures: int) -> float:
    """Return the pause in seconds after as many failures in a row: the first pause, twice that, … up to the longest."""
    return min(longest, first * 2.0 ** min(max(failures, 1) - 1, 60))


# --- how an attempt ended ---


class EndedBy(enum.Enum):
    """Reason for the end of an attempt."""

    FAILURE = "failure"
    PREEMPTION = "preemption"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ending:
    """How one attempt ended.

    Attributes:
        attempt: The number of the attempt, from 0.
        kind: The reason for the end.
        failure: The failure; None after a preemption.
        hosts: The hosts on which the attempt ran.
        taken: The hosts that were taken away by a preemption.
        progressed: Whether the attempt left a new checkpoint.
        seconds: How long the attempt trained, in seconds.
    """

    attempt: int
    kind: EndedBy
    failure: Failure | None = None
    hosts: tuple[str, ...] = ()
    taken: tuple[str, ...] = ()
    progressed: bool = False
    seconds: float = 0.0

    def line(self) -> str:
        """Return one line for users: the reason for the end, and after how many seconds."""
        return f"attempt {self.attempt}, after {self.seconds:.1f} s: {cut(self.what(), 199)}"

    def what(self) -> str:
        """Return the reason for the end in one line."""
        if self.kind is EndedBy.PREEMPTION:
            return f"{', '.join(self.taken) or 'a host'} was interrupted"
        return " ".join(self.failure.summary().split()) if self.failure is not None else "it failed"

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable form; :meth:`from_dict` reads it."""
        failure = self.failure
        if failure is not None:  # a job may have thirty attempts; the logs have the full texts
            shortened = failure.traceback[-_TRACEBACK_LIMIT:] if failure.traceback else None
            failure = dataclasses.replace(failure, traceback=shortened, log_tail=None, places=None, attempts=())
        return {
            "attempt": self.attempt,
            "kind": self.kind.value,
            "failure": failure.to_dict() if failure is not None else None,
            "hosts": list(self.hosts),
            "taken": list(self.taken),
            "progressed": self.progressed,
            "seconds": round(self.seconds, 3),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Ending:
        """Read the result of :meth:`to_dict`."""
        failure = values.get("failure")
        return cls(
            attempt=int(values["attempt"]),
            kind=EndedBy(values["kind"]),
            failure=Failure.from_dict(failure) if failure else None,
            hosts=tuple(values.get("hosts") or ()),
            taken=tuple(values.get("taken") or ()),
            progressed=bool(values.get("progressed")),
            seconds=float(values.get("seconds") or 0.0),
        )


# --- the decision ---


@dataclasses.dataclass(frozen=True)
class Again:
    """Decision: start another attempt.

    Attributes:
        pause_s: The pause before the attempt, in seconds.
    """

    pause_s: float = 0.0


@dataclasses.dataclass(frozen=True)
class Final:
    """Decision: start no further attempt.

    Attributes:
        why: The reason for users; empty if no retries were requested.
    """

    why: str = ""


def decide(policy: FailurePolicy, endings: Sequence[Ending]) -> Again | Final:
    """Decide whether another attempt follows.

    A failure that another attempt would repeat is final, however many retries are left: see :func:`never_again` and
    :func:`place_of`.

    Args:
        policy: The user's policy.
        endings: The ends of all attempts so far; the last one has just ended.
    """
    last = endings[-1]
    of_kind = [ending for ending in endings if ending.kind is last.kind]
    if last.kind is EndedBy.PREEMPTION:
        if policy.max_preemptions is not None and len(of_kind) > policy.max_preemptions:
            return Final(
                f"the job was preempted {_times(len(of_kind))}, and max_preemptions is {policy.max_preemptions}."
            )
        return Again()
    allowed = policy.max_failures or 0
    if not allowed or last.failure is None:
        return Final()
    reason = never_again(last.failure)
    if reason:
        return Final(f"no retry: {reason}.")
    before = endings[-2] if len(endings) > 1 else None
    if before is not None and before.failure is not None and _repeats(before, last):
        return Final(
            "no further retry: two attempts in a row raised the same exception at the same place, soon after the start "
            "and without a new checkpoint."
        )
    if len(of_kind) > allowed:
        return Final(f"the job failed {_times(len(of_kind))}, and max_failures is {allowed}.")
    return Again(pause_s(*policy.cooldown, in_a_row(endings)))


def never_again(failure: Failure) -> str:
    """Return why another attempt would fail in the same way; empty if that is not certain.

    These failures would be repeated: wrong files and arguments, failures by ``on_undistributed`` and ``on_nan``, faults
    of fleetfit itself, code that cannot run (``SyntaxError``, ``ImportError``, ``NameError``, a missing command), and
    arguments that the script's parser rejects.
    """
    if failure.cause is Cause.CONFIGURATION:
        return "the job's files or arguments are wrong"
    if failure.cause is Cause.UNSOUND:
        return "a retry would fail in the same way"
    if failure.cause is Cause.INTERNAL:
        return "this is a fault of fleetfit"
    raised = exception_of(failure)
    if raised in _FAULTS_OF_CODE:
        return f"{raised} is an error in the code"
    if raised is None and failure.exit_code in _NO_COMMAND:
        return f"exit code {failure.exit_code} means that a command cannot be run"
    if raised is None and failure.exit_code == 2 and "usage: " in (failure.log_tail or ""):
        return "the script does not accept its arguments"
    return ""


def exception_of(failure: Failure) -> str | None:
    """Return the name of the exception that a traceback ends with, without its module; None without a traceback."""
    for line in reversed((failure.traceback or "").splitlines()):
        if line and not line[0].isspace() and (match := _EXCEPTION.match(line)) is not None:
            return match[1]
    return None


def place_of(failure: Failure) -> tuple[str | None, str, int] | None:
    """Return the exception and its place: exception, file, line; None without a traceback.

    The message is left out, because its numbers often differ.
    """
    frames = _FRAME.findall(failure.traceback or "")
    if not frames:
        return None
    file, line = frames[-1]
    return exception_of(failure), file.rpartition("/")[2], int(line)


def _repeats(before: Ending, last: Ending) -> bool:
    if before.failure is None or last.failure is None or last.progressed or last.seconds > _AT_ONCE_S:
        return False
    place = place_of(last.failure)
    return place is not None and place == place_of(before.failure)


def in_a_row(endings: Sequence[Ending]) -> int:
    """Return how many attempts failed in a row since the last one that left a new checkpoint, which counts."""
    count = 0
    for ending in reversed(endings):
        if ending.kind is not EndedBy.FAILURE:
            break
        count += 1
        if ending.progressed:
            break
    return max(count, 1)


def with_attempts(failure: Failure, endings: Iterable[Ending], why: str = "") -> Failure:
    """Return the failure of a job, with the ends of its earlier attempts, and the reason for no further one."""
    earlier = tuple(ending.line() for ending in endings)
    hints = (*failure.hints, why[:1].upper() + why[1:]) if why else failure.hints
    return dataclasses.replace(failure, attempts=earlier, hints=hints)


# # --- present hosts ---


@dataclasses.dataclass(frozen=True, kw_only=True)
class PresentHosts:
    """The hosts of a job that are present.

    Attributes:
        hosts: All hosts of the job, in rank order.
        gone: Absent host -> the time of its return; infinite for never.
    """

    hosts: tuple[str, ...]
    gone: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def without(self, host: str, *, until: float = math.inf) -> PresentHosts:
        """Return the hosts after a host has gone."""
        return dataclasses.replace(self, gone={**self.gone, host: until})

    def returned(self, host: str) -> PresentHosts:
        """Return the hosts after a host has come back."""
        return dataclasses.replace(self, gone={name: until for name, until in self.gone.items() if name != host})

    def present(self, now: float) -> tuple[str, ...]:
        """Return the present hosts, in rank order."""
        return tuple(host for host in self.hosts if self.gone.get(host, -math.inf) <= now)

    def enough_at(self, least: int, now: float) -> float:
        """Return when at least ``least`` hosts are present: ``now``, later, or infinite for never."""
        times = sorted(max(now, self.gone.get(host, now)) for host in self.hosts)
        return times[least - 1] if 0 < least <= len(times) else (now if least <= 0 else math.inf)


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")
