"""Why a job failed, as data that reads the same on every backend."""

from __future__ import annotations

import dataclasses
import enum
import json
import signal as signals
from collections.abc import Iterable, Mapping
from typing import Any

from container.contract.texts import sentence, writable

#: SageMaker shows this many characters of ``/opt/ml/output/failure``.
REASON_LIMIT = 1024


class Cause(enum.Enum):
    """The kind of a failure."""

    PROCESS = "process"  # a process of the cluster ended with an error or was killed
    HOST_LOST = "host_lost"  # a host's toolkit or its connection went away
    LAUNCH = "launch"  # something could not be started
    PORT_TAKEN = "port_taken"  # a server found its port taken: another attempt, with other ports, may do
    TIMEOUT = "timeout"  # a wait reached its deadline
    CONFIGURATION = "configuration"  # the job's files or arguments are wrong
    UNSOUND = "unsound"  # it ran, and what it makes is not what it is taken for; the user asked to fail for that
    INTERNAL = "internal"  # a fault of fleetfit itself


@dataclasses.dataclass(frozen=True, kw_only=True)
class Failure:
    """The first failure of a job.

    Attributes:
        cause: The kind of failure.
        message: What happened, in one or more sentences.
        host: The host that failed; None if no host did.
        process: Name of the process that failed (``rank 3``, ``mpirun``); None if no process did.
        rank: The rank that failed; None if no rank did.
        exit_code: The exit status, if the process exited.
        signal: The number of the signal that killed the process, if a signal did.
        traceback: The user's traceback, if there was one.
        log_tail: The last lines that the process printed, if there was no traceback.
        places: If no rank made progress: where each rank was, in one line for each rank.
        hints: What the user can do about the failure.
        attempts: How the earlier attempts of the job ended, in one line for each attempt.
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
        """Make all text such as can be written."""
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, writable(getattr(self, field.name)))

    def summary(self) -> str:
        """Return where the failure happened and what happened, in one line."""
        place = ", ".join(part for part in (self.host, self.process) if part)
        return f"{place}: {self.message}" if place else self.message

    def detail(self) -> str:
        """Return the earlier attempts and the traceback.

        Without a traceback, return where the ranks were, and the last lines that the process printed.
        """
        return "\n\n".join(text for text in (self.earlier(), self._last_words()) if text)

    def earlier(self) -> str:
        """Return a heading and how the earlier attempts ended; an empty text if there were none."""
        return "\n".join(("earlier attempts:", *(f"  {line}" for line in self.attempts))) if self.attempts else ""

    def _last_words(self) -> str:
        if self.traceback:
            return self.traceback.strip("\n")
        parts = (("where each rank was:", self.places), ("the last lines that the process printed:", self.log_tail))
        return "\n\n".join(f"{title}\n{text}" for title, part in parts if (text := (part or "").strip("\n")))

    def reason(self, limit: int = REASON_LIMIT) -> str:
        """Return the text for ``FailureReason`` and ``/opt/ml/output/failure``.

        The text begins with the summary, and ends with the end of the traceback. If ``limit`` characters are too few,
        the middle is cut, because the last line of a traceback names the exception.
        """
        text = sentence(self.summary())
        if self.attempts:
            # They are the reason too; of many, the last ones.
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
        """Return a JSON-serialisable form; :meth:`from_dict` reads it back."""
        values = dataclasses.asdict(self)
        values["cause"] = self.cause.value
        values["hints"] = list(self.hints)
        values["attempts"] = list(self.attempts)
        return {name: value for name, value in values.items() if value not in (None, [])}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Failure:
        """Read what :meth:`to_dict` wrote. Keys that only a later version knows are ignored."""
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
    """Return the failure of a job that makes no progress.

    Args:
        limit: For how many seconds.
        places: Where each process is, a line for each.
        missing: By rank, the tensors for which Horovod says that the others wait.
        host: Who says so.
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
    """Return the line for a host that does not report where its processes are."""
    return f"{host}: the host's training process did not answer (it is stopped, or the machine is overloaded)"


def signal_name(number: int) -> str:
    """Return a signal's name: ``SIGKILL`` for 9, ``signal 64`` for a number without a name."""
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"


def describe_end(exit_code: int | None, signal: int | None) -> str:
    """Say how a process ended: ``exited with code 3``, ``was killed by SIGKILL``."""
    if signal is not None:
        return f"was killed by {signal_name(signal)}"
    return f"exited with code {exit_code}"
