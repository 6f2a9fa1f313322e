"""Faults to order for a job, so that people can rehearse how it takes them: ``fit(faults=[Kill(rank=1, at_step=50)])``.

Each is a value: what happens, and when. The same list does the same in every run.
"""

from __future__ import annotations

import dataclasses
import json
import re
import signal as signals
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from container.contract.names import shown, unknown
from estimators.job import bounds
from estimators.job.errors import ConfigurationError


@dataclasses.dataclass(frozen=True)
class Fault:
    """What all of them have: exactly one moment.

    Attributes:
        at_step: When as many training steps are finished, those before a restart included: ``cluster.callbacks()``
            counts them, or ``cluster.report(step=…)`` says so.
        at_s: Seconds after the attempt's hosts were started.
        at_line: A regular expression; when a line that a rank prints matches it.
        attempt: In which attempt of the job; None for every one.
    """

    at_step: int | None = dataclasses.field(default=None, kw_only=True)
    at_s: float | None = dataclasses.field(default=None, kw_only=True)
    at_line: str | None = dataclasses.field(default=None, kw_only=True)
    attempt: int | None = dataclasses.field(default=0, kw_only=True)

    #: What it is called in JSON and on the command line.
    name: ClassVar[str] = ""

    def __post_init__(self) -> None:
        given = [name for name in ("at_step", "at_s", "at_line") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ConfigurationError(
                f"{type(self).__name__}: give exactly one of at_step, at_s and at_line; "
                f"got {' and '.join(given) or 'none'}."
            )
        self._check_whole("at_step", 1)
        self._check_whole("attempt", 0)
        self._check_seconds("at_s")
        if self.at_line is not None:
            if not isinstance(self.at_line, str):
                raise ConfigurationError(
                    f"{type(self).__name__}(at_line=…) must be a string, got {shown(self.at_line)}."
                )
            try:
                re.compile(self.at_line)
            except (re.error, RecursionError, OverflowError) as error:
                raise ConfigurationError(
                    f"{type(self).__name__}(at_line={shown(self.at_line)}) is not a regular expression: {error}."
                ) from None

    def _check_whole(self, name: str, least: int) -> None:
        value = getattr(self, name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            raise ConfigurationError(
                f"{type(self).__name__}({name}=…) must be a whole number, at least {least}; got {shown(value)}."
            )

    def _check_seconds(self, name: str) -> None:
        value = getattr(self, name)
        if value is not None and not bounds.is_seconds(value):
            raise ConfigurationError(
                f"{type(self).__name__}({name}=…) must be a number of seconds, {bounds.range_text(value)}; "
                f"got {shown(value)}."
            )

    def happens_in(self, attempt: int) -> bool:
        """Return whether it belongs to an attempt."""
        return self.attempt is None or self.attempt == attempt

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable form; :func:`from_dict` reads it back."""
        return {"do": self.name, **dataclasses.asdict(self)}

    def __str__(self) -> str:
        shown = [
            f"{field.name}={value!r}"
            for field in dataclasses.fields(self)
            if (value := getattr(self, field.name)) != field.default
        ]
        return f"{type(self).__name__}({', '.join(shown)})"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kill(Fault):
    """Send a signal to a rank.

    With ``at_step``, the rank sends the signal to itself when it has finished exactly this step. With ``at_line``, only
    the lines of this rank count.

    Attributes:
        rank: The rank.
        signal: Name or number of the signal: SIGKILL simulates a crash, SIGSTOP a hang.
    """

    rank: int
    signal: int | str = "SIGKILL"
    name: ClassVar[str] = "kill"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_whole("rank", 0)
        names = [member.name for member in signals.Signals]
        if isinstance(self.signal, str) and self.signal not in names:
            raise ConfigurationError(unknown("signal", self.signal, names))
        if isinstance(self.signal, bool) or not isinstance(self.signal, int | str) or not 0 < self.number < 65:
            raise ConfigurationError(f"Kill(signal=…) must be a signal's name or number, got {shown(self.signal)}.")

    @property
    def number(self) -> int:
        """The signal's number."""
        return signals.Signals[self.signal].value if isinstance(self.signal, str) else self.signal


@dataclasses.dataclass(frozen=True)
class RemoveHost(Fault):
    """Remove a host without a notice, as after a power failure.

    Attributes:
        host: The host.
        return_after_s: Seconds until the host returns; None: never.
    """

    host: str
    return_after_s: float | None = None
    name: ClassVar[str] = "remove_host"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_host(self)
        self._check_seconds("return_after_s")


@dataclasses.dataclass(frozen=True)
class Interrupt(Fault):
    """Interrupt a host as a spot instance: first a notice, then the kill.

    Attributes:
        host: The host.
        notice_s: Seconds from the notice to the kill.
        return_after_s: Seconds from the kill until the host returns; None: never.
    """

    host: str
    notice_s: float = 120.0
    return_after_s: float | None = 0.0
    name: ClassVar[str] = "interrupt"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_host(self)
        self._check_seconds("notice_s")
        self._check_seconds("return_after_s")


_KINDS: Mapping[str, type[Fault]] = {kind.name: kind for kind in (Kill, RemoveHost, Interrupt)}


def check(value: Any) -> tuple[Fault, ...]:
    """Return the faults of an argument ``faults``.

    Raises:
        ConfigurationError: it is no list of faults.
    """
    if value is None:
        return ()
    items = [value] if isinstance(value, Fault) else value
    found = []
    for item in bounds.items_of("faults", items, "[Kill(rank=1, at_step=50)]"):
        if isinstance(item, Mapping):
            item = from_dict(item)
        if not isinstance(item, Fault) or not item.name:
            raise ConfigurationError(
                f"faults: each must be a Kill(…), RemoveHost(…) or Interrupt(…); got {shown(item)}."
            )
        found.append(item)
    return tuple(found)


def check_against(faults: Iterable[Fault], *, hosts: Sequence[str], size: int) -> None:
    """See that the ranks and hosts exist in the job.

    Raises:
        ConfigurationError: one does not.
    """
    for fault in faults:
        if isinstance(fault, Kill) and fault.rank >= size:
            raise ConfigurationError(f"fault: {fault}: there is no such rank. The job's ranks are 0 to {size - 1}.")
        if isinstance(fault, RemoveHost | Interrupt) and fault.host not in hosts:
            raise ConfigurationError(f"fault: {fault}: {unknown('host of the job', fault.host, hosts)}")


def from_dict(values: Mapping[str, Any]) -> Fault:
    """Read what :meth:`Fault.to_dict` gave.

    Raises:
        ConfigurationError: there is no such fault or option.
    """
    given = dict(values)
    kind = _KINDS.get(str(given.pop("do", "")))
    if kind is None:
        raise ConfigurationError(unknown("kind of fault", values.get("do"), list(_KINDS)))
    return _make(kind, given)


def _make(kind: type[Fault], given: Mapping[str, Any]) -> Fault:
    known = [field.name for field in dataclasses.fields(kind)]
    for name in given:
        if name not in known:
            raise ConfigurationError(unknown(f"option of {kind.__name__}", name, known))
    try:
        return kind(**given)
    except TypeError:
        missing = "rank" if kind is Kill else "host"
        raise ConfigurationError(f"{kind.__name__}(…) needs a {missing}.") from None


def parse(text: str) -> Fault:
    """Read a fault from a command line: ``kill:rank=1,at_step=50``, ``remove_host:host=algo-2,at_s=20``.

    An ``at_line`` comes last: it may hold commas.

    Raises:
        ConfigurationError: it is none.
    """
    name, colon, rest = text.partition(":")
    kind = _KINDS.get(name.strip().replace("-", "_"))
    if kind is None:
        raise ConfigurationError(unknown("kind of fault", name.strip(), list(_KINDS)))
    values: dict[str, Any] = {}
    for item in re.split(r",(?=\s*\w+=)", rest) if colon and "at_line=" not in rest else _with_line(rest):
        key, equals, value = item.partition("=")
        if not equals:
            raise ConfigurationError(f"fault {shown(text)}: write it as {kind.name}:NAME=VALUE,NAME=VALUE.")
        values[key.strip()] = value if key.strip() == "at_line" else _value(value.strip())
    return _make(kind, values)


def _with_line(rest: str) -> list[str]:
    before, _, pattern = rest.partition("at_line=")
    return [*(item for item in before.split(",") if item.strip()), f"at_line={pattern}"]


def _value(text: str) -> Any:
    if text.lower() == "none":
        return None
    try:
        return json.loads(text)
    except ValueError:
        return text


def step_orders(faults: Sequence[Fault], attempt: int) -> list[dict[str, int]]:
    """Return what the ranks of an attempt are told: which of them does what after which step.

    A fault of a host is rank 0's to report: ``{"id", "rank", "step"}``; a kill has the ``signal`` too.
    """
    orders = []
    for number, fault in enumerate(faults):
        if fault.at_step is None or not fault.happens_in(attempt):
            continue
        order = {"id": number, "rank": 0, "step": fault.at_step}
        if isinstance(fault, Kill):
            order.update(rank=fault.rank, signal=fault.number)
        orders.append(order)
    return orders


def _check_host(fault: RemoveHost | Interrupt) -> None:
    if not isinstance(fault.host, str) or not fault.host:
        raise ConfigurationError(f"{type(fault).__name__}(host=…) must be a host's name, got {shown(fault.host)}.")
