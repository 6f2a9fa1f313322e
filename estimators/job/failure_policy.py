"""Decide whether, when and on which hosts a job is started again after an attempt. All functions are pure.

An *attempt* is one run of a job from its start. An attempt that does not complete ends with a failure or with a
preemption. Examples of failures are a crash, a lost host, and hosts that do not start in time. In a preemption, a host
is taken away after a notice. Failures and preemptions are counted separately, because a job does not cause its
preemptions.

The caller chooses the clock on which all times are measured, in seconds. No function in this module reads a clock.
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
from container.contract.frozen import dataclass
from container.contract.names import cut, suggests_arguments
from container.contract.rules import option
from estimators.job.bounds import MAX_SECONDS

#: SageMaker's limits of RetryStrategy.MaximumRetryAttempts.
RETRIES = (1, 30)

#: The time within which a repeated failure is final, in seconds. If an attempt fails within this time of training, with
#: the same exception at the same line as the previous attempt, no retry follows.
_AT_ONCE_S = 60.0

#: Exceptions that another attempt with the same code would raise again.
_FAULTS_OF_CODE = frozenset(
    {"SyntaxError", "IndentationError", "TabError", "ImportError", "ModuleNotFoundError", "NameError"}
)

#: The number of characters of an earlier attempt's traceback that are stored.
_TRACEBACK_LIMIT = 2000

#: The exit codes of a shell whose command cannot be run or found.
_NO_COMMAND = (126, 127)

_EXCEPTION = re.compile(r"(?:[A-Za-z_][\w.]*\.)?([A-Za-z_]\w*)(?::|$)")
_FRAME = re.compile(r'^\s*File "([^"]+)", line (\d+)', re.MULTILINE)


@suggests_arguments
@dataclass(frozen=True, kw_only=True)
class FailurePolicy:
    """The reaction to failed and preempted attempts of a job.

    Attributes:
        max_failures: The number of failed attempts that are retried. After one more failed attempt, the job fails. None
            to use the estimator's ``max_retry_attempts``, or 0 if ``max_retry_attempts`` is not set.
        max_preemptions: The number of preempted attempts that are repeated. After one more preempted attempt, the job
            fails. None for no limit, as on SageMaker.
        cooldown: The first and the longest pause after a failed attempt, in seconds. The pause doubles with each
            failure that follows without a new checkpoint. A preemption causes no pause.
        min_hosts: The least number of hosts with which the job continues if some hosts are lost. With None, the job
            needs all hosts. The job then waits until lost hosts have returned. If the hosts never return, the job
            fails.
    """

    max_failures: int | None = option(rules.whole(0))
    max_preemptions: int | None = option(rules.whole(0))
    cooldown: tuple[float, float] = option(
        rules.pair("two numbers of seconds, (first, longest)", rules.seconds(0, MAX_SECONDS)), (0.5, 60.0)
    )
    min_hosts: int | None = option(rules.whole(1))

    def __repr__(self) -> str:
        return rules.text_of(self)

    def __post_init__(self) -> None:
        rules.check(self)

    def with_retries(self, attempts: int | None) -> FailurePolicy:
        """Return the policy with ``max_retry_attempts`` as ``max_failures``, unless ``max_failures`` is already set.

        Args:
            attempts: The value of ``max_retry_attempts``. None for no retries.
        """
        return dataclasses.replace(self, max_failures=attempts or 0) if self.max_failures is None else self


def pause_s(first: float, longest: float, failures: int) -> float:
    """Return the pause before the next attempt, in seconds, after a number of failures in a row.

    The pause doubles with each failure.

    Args:
        first: The pause after the first failure, in seconds.
        longest: The maximum of the pause, in seconds.
        failures: The number of failures. A number below 1 is treated as 1.
    """
    return min(longest, first * 2.0 ** min(max(failures, 1) - 1, 60))


# --- how an attempt ended ---


class EndedBy(enum.Enum):
    """The reason for the end of an attempt."""

    FAILURE = "failure"
    PREEMPTION = "preemption"


@dataclass(frozen=True, kw_only=True)
class Ending:
    """A description of how one attempt ended.

    Attributes:
        attempt: The number of the attempt, counted from 0.
        kind: The reason for the end.
        failure: The failure. None after a preemption.
        hosts: The hosts on which the attempt ran.
        taken: The hosts that were taken away by a preemption.
        progressed: Whether the attempt saved a new checkpoint.
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
        """Return the attempt's number, its duration in seconds and the reason for its end, as one line for users."""
        return f"attempt {self.attempt}, after {self.seconds:.1f} s: {cut(self.what(), 199)}"

    def what(self) -> str:
        """Return the reason for the attempt's end in one line."""
        if self.kind is EndedBy.PREEMPTION:
            return f"{', '.join(self.taken) or 'a host'} was interrupted"
        return " ".join(self.failure.summary().split()) if self.failure is not None else "it failed"

    def to_dict(self) -> dict[str, Any]:
        """Return the description as a JSON-serialisable dict, which :meth:`from_dict` can read."""
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
        """Create a description from the result of :meth:`to_dict`."""
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


@dataclass(frozen=True)
class Again:
    """The decision that another attempt starts.

    Attributes:
        pause_s: The pause before the attempt, in seconds.
    """

    pause_s: float = 0.0


@dataclass(frozen=True)
class Final:
    """The decision that no other attempt starts.

    Attributes:
        why: The reason, as a text for users. Empty if no retries were requested.
    """

    why: str = ""


def decide(policy: FailurePolicy, endings: Sequence[Ending]) -> Again | Final:
    """Decide whether another attempt follows.

    A failure that would happen again in another attempt is final, even if retries remain. See :func:`never_again` and
    :func:`place_of`.

    Args:
        policy: The user's policy.
        endings: The ends of all attempts so far. The last attempt has just ended.
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
    """Return the reason why another attempt would fail in the same way. Return an empty text if it might succeed.

    Another attempt would fail in the same way after these failures:

    * wrong files and arguments, and a full disk
    * failures because of ``on_undistributed="fail"`` or ``on_nan="fail"``
    * internal errors of fleetfit
    * code that cannot run (``SyntaxError``, ``ImportError``, ``NameError``, a missing command)
    * arguments that the script's parser rejects
    """
    if failure.cause is Cause.CONFIGURATION:
        return "the cause must be corrected first"
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
    """Return the name of the exception at the end of a traceback, without the exception's module.

    Return None if the failure has no traceback.
    """
    for line in reversed((failure.traceback or "").splitlines()):
        if line and not line[0].isspace() and (match := _EXCEPTION.match(line)) is not None:
            return match[1]
    return None


def place_of(failure: Failure) -> tuple[str | None, str, int] | None:
    """Return the exception, the file and the line of a failure. Return None if the failure has no traceback.

    The exception's message is omitted, because numbers in messages often differ between attempts.
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
    """Return how many of the last attempts failed in a row.

    Attempts before the last saved checkpoint are not counted. The attempt that saved this checkpoint is counted. The
    result is at least 1.
    """
    count = 0
    for ending in reversed(endings):
        if ending.kind is not EndedBy.FAILURE:
            break
        count += 1
        if ending.progressed:
            break
    return max(count, 1)


def with_attempts(failure: Failure, endings: Iterable[Ending], why: str = "") -> Failure:
    """Return a copy of a job's failure that also describes the ends of the job's earlier attempts.

    Args:
        failure: The failure of the last attempt.
        endings: The ends of the earlier attempts.
        why: The reason why no other attempt follows, which is added to the hints. Empty for no hint.
    """
    earlier = tuple(ending.line() for ending in endings)
    hints = (*failure.hints, why[:1].upper() + why[1:]) if why else failure.hints
    return dataclasses.replace(failure, attempts=earlier, hints=hints)


# --- present hosts ---


@dataclass(frozen=True, kw_only=True)
class PresentHosts:
    """The hosts of a job, and the times at which absent hosts will return.

    Attributes:
        hosts: All hosts of the job, in rank order.
        gone: For each absent host, the time at which the host will return. Infinite if the host never returns.
    """

    hosts: tuple[str, ...]
    gone: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def without(self, host: str, *, until: float = math.inf) -> PresentHosts:
        """Return a copy in which a host is absent.

        Args:
            host: The host that was taken away.
            until: The time at which the host will return. Infinite if the host never returns.
        """
        return dataclasses.replace(self, gone={**self.gone, host: until})

    def returned(self, host: str) -> PresentHosts:
        """Return a copy in which a host is present again."""
        return dataclasses.replace(self, gone={name: until for name, until in self.gone.items() if name != host})

    def present(self, now: float) -> tuple[str, ...]:
        """Return the names of the available hosts, in rank order."""
        return tuple(host for host in self.hosts if self.gone.get(host, -math.inf) <= now)

    def enough_at(self, least: int, now: float) -> float:
        """Return the time from which at least ``least`` hosts are available.

        Return ``now`` if enough hosts are available now. Return infinity if there will never be enough hosts.
        """
        times = sorted(max(now, self.gone.get(host, now)) for host in self.hosts)
        return times[least - 1] if 0 < least <= len(times) else (now if least <= 0 else math.inf)


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")
