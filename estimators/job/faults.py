"""Define the faults that can be injected into a job: ``fit(faults=[Kill(rank=1, at_step=50)])``.

Users inject faults to test how a job reacts to them. A fault states what happens and when. The same list of faults has
the same effect in every run.
"""

from __future__ import annotations

import dataclasses
import json
import re
import signal as signals
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from container.contract import rules
from container.contract.frozen import dataclass
from container.contract.names import shown, suggests_arguments, unknown
from container.contract.rules import option
from estimators.job.bounds import MAX_SECONDS
from estimators.job.errors import ConfigurationError

_SECONDS = rules.seconds(0, MAX_SECONDS)


def _pattern(where: str, value: Any) -> str:
    if not isinstance(value, str):
        raise rules.refuse(where, "a string", value)
    try:
        re.compile(value)
    except (re.error, RecursionError, OverflowError) as error:
        raise ConfigurationError(f"{where}: {shown(value)} is not a regular expression: {error}.") from None
    return value


def _signal(where: str, value: Any) -> int | str:
    names = [member.name for member in signals.Signals]
    if isinstance(value, str):
        rules.one_of(*names)("signal", value)
    elif isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 65:
        raise rules.refuse(where, "a signal's name or number", value)
    return value  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Fault:
    """The base class of all faults. Each fault has exactly one trigger: ``at_step``, ``at_s`` or ``at_line``.

    Attributes:
        at_step: The fault is triggered when this number of training steps is finished. Steps before a restart count
            too. ``cluster.callbacks()`` counts the steps, or the script reports them with ``cluster.report(step=…)``.
        at_s: The fault is triggered this number of seconds after the start of the attempt's hosts.
        at_line: A regular expression. The fault is triggered when a rank prints a line that matches it.
        attempt: The number of the attempt in which the fault is triggered, from 0. None for every attempt.
        do: The name of the kind of fault, as used in JSON and on the command line.
    """

    # Call dataclasses.field() instead of option(). Only there, type checkers recognise kw_only, and fields without a
    # default.
    at_step: int | None = dataclasses.field(default=None, kw_only=True, metadata={"rule": rules.whole(1)})
    at_s: float | None = dataclasses.field(default=None, kw_only=True, metadata={"rule": _SECONDS})
    at_line: str | None = dataclasses.field(default=None, kw_only=True, metadata={"rule": _pattern})
    attempt: int | None = dataclasses.field(default=0, kw_only=True, metadata={"rule": rules.or_none(rules.whole(0))})
    do: str = dataclasses.field(default="", init=False, repr=False)

    def __post_init__(self) -> None:
        given = [name for name in ("at_step", "at_s", "at_line") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ConfigurationError(
                f"{type(self).__name__}: give exactly one of at_step, at_s and at_line; "
                f"got {' and '.join(given) or 'none'}."
            )
        rules.check(self)

    def happens_in(self, attempt: int) -> bool:
        """Return whether the fault happens in an attempt."""
        return self.attempt is None or self.attempt == attempt

    def __repr__(self) -> str:
        return rules.text_of(self)


@suggests_arguments
@dataclass(frozen=True, kw_only=True)
class Kill(Fault):
    """Send a signal to a rank.

    With the trigger ``at_step``, the rank sends the signal to itself when it has finished the given step. With the
    trigger ``at_line``, only lines of this rank are compared with the regular expression.

    Attributes:
        rank: The rank.
        signal: The name or number of the signal. SIGKILL simulates a crash. SIGSTOP simulates a hang.
    """

    rank: int = dataclasses.field(metadata={"rule": rules.whole(0)})
    signal: int | str = option(_signal, "SIGKILL")
    do: str = dataclasses.field(default="kill", init=False, repr=False)

    @property
    def number(self) -> int:
        """Return the signal's number."""
        return signals.Signals[self.signal].value if isinstance(self.signal, str) else self.signal


@suggests_arguments
@dataclass(frozen=True)
class RemoveHost(Fault):
    """Remove a host without a notice, as after a power failure.

    Attributes:
        host: The host.
        return_after_s: The number of seconds until the host returns. None if the host never returns.
    """

    host: str = dataclasses.field(metadata={"rule": rules.text()})
    return_after_s: float | None = option(_SECONDS)
    do: str = dataclasses.field(default="remove_host", init=False, repr=False)


@suggests_arguments
@dataclass(frozen=True)
class Interrupt(Fault):
    """Interrupt a host like a spot instance. The host gets a notice and is killed later.

    Attributes:
        host: The host.
        notice_s: The number of seconds from the notice to the kill.
        return_after_s: The number of seconds from the kill until the host returns. None if the host never returns.
    """

    host: str = dataclasses.field(metadata={"rule": rules.text()})
    notice_s: float = option(_SECONDS, 120.0)
    return_after_s: float | None = option(rules.or_none(_SECONDS), 0.0)
    do: str = dataclasses.field(default="interrupt", init=False, repr=False)


_KINDS: Mapping[str, type[Fault]] = {kind.do: kind for kind in (Kill, RemoveHost, Interrupt)}


def check(value: Any) -> tuple[Fault, ...]:
    """Convert the value of the argument ``faults`` to a tuple of faults.

    Raises:
        ConfigurationError: the value is not a list of faults.
    """
    if value is None:
        return ()
    items = [value] if isinstance(value, Fault) else value
    found = []
    for item in rules.items_of("faults", items, "[Kill(rank=1, at_step=50)]"):
        if isinstance(item, Mapping):
            item = from_dict(item)
        if not isinstance(item, Fault) or not item.do:
            raise ConfigurationError(
                f"faults: each must be a Kill(…), RemoveHost(…) or Interrupt(…); got {shown(item)}."
            )
        found.append(item)
    return tuple(found)


def check_against(faults: Iterable[Fault], *, hosts: Sequence[str], size: int) -> None:
    """Check that the ranks and hosts of faults exist in the job.

    Raises:
        ConfigurationError: a rank or host does not exist.
    """
    for fault in faults:
        if isinstance(fault, Kill) and fault.rank >= size:
            raise ConfigurationError(f"fault: {fault}: there is no such rank. The job's ranks are 0 to {size - 1}.")
        if isinstance(fault, RemoveHost | Interrupt) and fault.host not in hosts:
            raise ConfigurationError(f"fault: {fault}: {unknown('host of the job', fault.host, hosts)}")


def from_dict(values: Mapping[str, Any]) -> Fault:
    """Create a fault from its JSON form.

    Raises:
        ConfigurationError: the fault or an option is unknown, or an option is invalid.
    """
    given = dict(values)
    kind = _KINDS.get(str(given.pop("do", "")))
    if kind is None:
        raise ConfigurationError(unknown("kind of fault", values.get("do"), list(_KINDS)))
    return _make(kind, given)


def _make(kind: type[Fault], given: Mapping[str, Any]) -> Fault:
    return rules.from_dict(kind, given)  # type: ignore[no-any-return]


def parse(text: str) -> Fault:
    """Parse a fault from a command line: ``kill:rank=1,at_step=50``, ``remove_host:host=algo-2,at_s=20``.

    An ``at_line`` must be the last option, because it may contain commas.

    Raises:
        ConfigurationError: the text is not a fault.
    """
    name, colon, rest = text.partition(":")
    kind = _KINDS.get(name.strip().replace("-", "_"))
    if kind is None:
        raise ConfigurationError(unknown("kind of fault", name.strip(), list(_KINDS)))
    values: dict[str, Any] = {}
    for item in re.split(r",(?=\s*\w+=)", rest) if colon and "at_line=" not in rest else _with_line(rest):
        key, equals, value = item.partition("=")
        if not equals:
            raise ConfigurationError(f"fault {shown(text)}: write it as {kind.do}:NAME=VALUE,NAME=VALUE.")
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
    """Return the instructions with which the ranks of an attempt trigger the faults that have ``at_step``.

    Each instruction has the form ``{"id", "rank", "step"}``. An instruction with a ``signal`` makes the rank send this
    signal to itself after the step. An instruction without a signal is for a fault of a host: rank 0 reports that it
    has finished the step, and the supervisor then removes or interrupts the host.
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
