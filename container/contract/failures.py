"""Describe why a job failed, as data with the same fields on every backend."""

from __future__ import annotations

import dataclasses
import enum
import json
import signal as signals
from collections.abc import Iterable, Mapping
from typing import Any

from container.contract.frozen import dataclass
from container.contract.texts import sentence, writable

#: SageMaker shows this many characters of ``/opt/ml/output/failure``.
REASON_LIMIT = 1024


class Cause(enum.Enum):
    """The kind of a failure."""

    PROCESS = "process"  # a process of the cluster ended with an error or was killed
    HOST_LOST = "host_lost"  # the connection to a host was lost, or the host's toolkit ended
    LAUNCH = "launch"  # a host, a process or the job itself could not be started
    PORT_TAKEN = "port_taken"  # a server's port was in use: another attempt, with other ports, may succeed
    TIMEOUT = "timeout"  # a wait reached its deadline
    CONFIGURATION = "configuration"  # the job's files or arguments are wrong
    # the ranks trained separately, or the training diverged, and the user has chosen that such a job fails
    UNSOUND = "unsound"
    INTERNAL = "internal"  # a fault of fleetfit itself


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The first failure of a job.

    Attributes:
        cause: The kind of failure.
        message: A description of the failure in one or more sentences.
        host: The host where the failure occurred, or None.
        process: Name of the process that failed, such as ``rank 3`` or ``mpirun``. None if no process failed.
        rank: The rank that failed, or None.
        exit_code: The exit code of the process, or None if the process did not exit.
        signal: The number of the signal that killed the process, or None.
        traceback: The traceback of the script's exception, or None.
        log_tail: The last lines that the process printed, or None. These lines are used if there is no traceback.
        places: The position of each rank in the code, if the job failed because no rank made progress. Otherwise None.
            Each line describes one rank.
        hints: Sentences that tell the user how to avoid the failure.
        attempts: The outcomes of the job's earlier attempts, in one line for each attempt.
    """

    cause: Cause
    message: str
    host: str | None = None
    process: str | None = None
    rank: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    traceback: str | None = None
    log_tail: str | None = None
    places: str | None = None
    hints: tuple[str, ...] = ()
    attempts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Replace characters in the failure's texts that cannot be encoded as UTF-8."""
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, writable(getattr(self, field.name)))

    def summary(self) -> str:
        """Return the host, the process and the message of the failure in one line."""
        place = ", ".join(part for part in (self.host, self.process) if part)
        return f"{place}: {self.message}" if place else self.message

    def detail(self, *, tail: bool = True) -> str:
        """Return the outcomes of the earlier attempts, followed by the traceback.

        Without a traceback, return the outcomes, followed by the ranks' positions and the last lines that the process
        printed.

        Args:
            tail: Whether to include these last lines. False if the reader has already seen the output.
        """
        return "\n\n".join(text for text in (self.earlier(), self._last_words(tail=tail)) if text)

    def earlier(self) -> str:
        """Return the outcomes of the earlier attempts under a heading. Return "" if there were no earlier attempts."""
        return "\n".join(("earlier attempts:", *(f"  {line}" for line in self.attempts))) if self.attempts else ""

    def _last_words(self, *, tail: bool = True) -> str:
        if self.traceback:
            return self.traceback.strip("\n")
        last = self.log_tail if tail else ""
        parts = (("where each rank was:", self.places), ("the last lines that the process printed:", last))
        return "\n\n".join(f"{title}\n{text}" for title, part in parts if (text := (part or "").strip("\n")))

    def reason(self, limit: int = REASON_LIMIT) -> str:
        """Return the text for ``FailureReason`` and ``/opt/ml/output/failure``.

        The text begins with the summary, and ends with the last lines of the traceback. If the text has more than
        ``limit`` characters, the middle is removed, because the last line of a traceback names the exception.
        """
        text = sentence(self.summary())
        if self.attempts:
            # Earlier attempts are part of the reason; if there are many, the last ones are kept.
            earlier = self.earlier()
            text += "\n\n" + (earlier if len(earlier) <= limit // 2 else "…" + earlier[-(limit // 2 - 1) :])
        detail = self._last_words().strip()
        if detail:
            room = limit - len(text) - 2
            if room > 8:
                if len(detail) > room:
                    detail = "…" + detail[-(room - 1) :]
                text = f"{text}\n\n{detail}"
        return text[:limit]

    def to_dict(self) -> dict[str, Any]:
        """Return the failure as a JSON-serialisable dict, which :meth:`from_dict` can read."""
        values = dataclasses.asdict(self)
        values["cause"] = self.cause.value
        values["hints"] = list(self.hints)
        values["attempts"] = list(self.attempts)
        return {name: value for name, value in values.items() if value not in (None, [])}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Failure:
        """Create a failure from the result of :meth:`to_dict`. Unknown keys, which a later version may have written,
        are ignored.
        """
        known = {field.name for field in dataclasses.fields(cls)}
        kept = {name: value for name, value in values.items() if name in known}
        kept["cause"] = Cause(kept.get("cause", Cause.INTERNAL.value))
        kept["hints"] = tuple(kept.get("hints", ()))
        kept["attempts"] = tuple(kept.get("attempts", ()))
        return cls(**kept)

    def to_json(self) -> str:
        """Return the JSON text of :meth:`to_dict`."""
        return json.dumps(self.to_dict())


def no_progress(limit: float, places: Iterable[str], missing: Mapping[int, str], host: str | None = None) -> Failure:
    """Return the failure of a job whose ranks have made no progress for too long.

    Args:
        limit: Number of seconds in which no rank made progress.
        places: The position of each process in the code, in one line for each process.
        missing: For each rank, the names of the tensors that the rank has not submitted, although other ranks wait for
            them. Horovod reports these names.
        host: The host that reports the failure.
    """
    stalls = (
        f"Horovod waits for rank {rank}, which has not submitted {tensors}."
        for rank, tensors in sorted(missing.items())
    )
    return Failure(
        cause=Cause.TIMEOUT,
        message=f"no rank has printed or reported anything for {limit:g} s.",
        host=host,
        places="\n".join(places),
        hints=(
            *stalls,
            "If a rank waits in a collective operation, another rank has not called that operation. Each rank's stack "
            "is in the rank's log.",
            "If the script is silent for so long by design, set a longer hang_timeout.",
        ),
    )


def unanswered(host: str) -> str:
    """Return the line to print for a host that does not report the positions of its processes."""
    return f"{host}: the host's training process did not answer (it is stopped, or the machine is overloaded)"


def signal_name(number: int) -> str:
    """Return a signal's name, such as ``SIGKILL`` for 9. Return a text such as ``signal 64`` for a number without a
    name.
    """
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"


def describe_end(exit_code: int | None, signal: int | None) -> str:
    """Return a text that says how a process ended, such as ``exited with code 3`` or ``was killed by SIGKILL``."""
    if signal is not None:
        return f"was killed by {signal_name(signal)}"
    return f"exited with code {exit_code}"
