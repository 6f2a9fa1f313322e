"""What a job may ask of Slurm: ``RunOptions(backend_options={…})``."""

from __future__ import annotations

import dataclasses
import re
import signal
import sys
from collections.abc import Mapping
from typing import Any

from container.contract.names import shown, unknown
from estimators.backends.hosts.remote import SILENCE_S
from estimators.job.errors import ConfigurationError

#: Variables of the submitting process that the nodes get; all others are theirs.
EXPORTED = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "TZ")

#: Options that are sbatch's of the same name, and take a text or a number.
_PLAIN = (
    "partition",
    "account",
    "qos",
    "gres",
    "constraint",
    "reservation",
    "nodelist",
    "exclude",
    "licenses",
    "cpus_per_task",
    "gpus_per_node",
    "mem",
    "nice",
)
#: With one of these a job says what it needs of a node, and leaves the rest of it to others.
_PARTS = ("gres", "cpus_per_task", "gpus_per_node", "mem")
_TIME = re.compile(r"(?:(?P<days>\d+)-)?(?P<first>\d+)(?::(?P<second>\d+))?(?::(?P<third>\d+))?")
_SIGNAL = re.compile(r"(?P<name>[A-Z0-9]+)@(?P<seconds>\d+)")
_SIGNALS = ("TERM", "USR1", "USR2", "INT", "HUP")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SlurmOptions:
    """Options of the backend.

    Attributes:
        plain: Options of sbatch by their names in Python.
        time: The limit, as sbatch takes it; None: the partition's.
        exclusive: Whether nodes are not shared with other jobs; default: unless ``gres``, ``cpus_per_task``,
            ``gpus_per_node`` or ``mem`` says what of a node is needed.
        requeue: Whether an allocation that Slurm took is waited for again, instead of another one that is submitted.
        signal: ``TERM@120``: what Slurm sends so many seconds before the limit, which is a notice then.
        python: The interpreter on the nodes.
        export: The caller's variables that the nodes get.
        sbatch: Further words for sbatch.
        silence: After how many seconds without a sign of life a host is lost.
    """

    plain: Mapping[str, str] = dataclasses.field(default_factory=dict)
    time: str | None = None
    exclusive: bool = True
    requeue: bool = False
    signal: str | None = None
    python: str = sys.executable
    export: tuple[str, ...] = EXPORTED
    sbatch: tuple[str, ...] = ()
    silence: float = SILENCE_S

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> SlurmOptions:
        """Read the options.

        Raises:
            ConfigurationError: one of them is not known, or of another type.
        """
        fields = {field.name for field in dataclasses.fields(cls)} - {"plain"}
        known = sorted(fields | set(_PLAIN))
        for name in given:
            if name not in known:
                raise ConfigurationError(
                    unknown("option of instance_type 'slurm'", name, known)
                    + " Others of sbatch go as words: backend_options={'sbatch': ['--option=value']}."
                )
        values: dict[str, Any] = {}
        plain = {}
        for name, value in given.items():
            if value is None:
                continue
            if name in _PLAIN:
                plain[name] = _text(name, value)
            elif name in ("exclusive", "requeue"):
                values[name] = _check(name, value, bool, "True or False")
            elif name in ("export", "sbatch"):
                values[name] = _words(name, value)
            elif name == "silence":
                if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
                    raise ConfigurationError(f"{_named(name)} must be seconds, more than 0; got {shown(value)}.")
                values[name] = float(value)
            elif name == "time" and isinstance(value, int) and not isinstance(value, bool):
                values[name] = str(value)
            else:
                values[name] = _check(name, value, str, "a string")
        values.setdefault("exclusive", not any(name in plain for name in _PARTS))
        made = cls(plain=plain, **values)
        if made.time is not None and minutes(made.time) is None:
            raise ConfigurationError(
                f"{_named('time')} must be minutes, or sbatch's hours:minutes:seconds or days-hours; "
                f"got {shown(made.time)}."
            )
        if made.signal is not None:
            found = _SIGNAL.fullmatch(made.signal)
            if found is None or found["name"] not in _SIGNALS:
                raise ConfigurationError(
                    f"{_named('signal')} must be a signal and seconds before the limit, 'TERM@120' say, with one of "
                    f"{', '.join(_SIGNALS)}; got {shown(made.signal)}."
                )
        if not made.python.startswith("/"):
            raise ConfigurationError(
                f"{_named('python')} must be an interpreter's absolute path on the nodes; got {shown(made.python)}."
            )
        return made

    @property
    def partition(self) -> str | None:
        """The partition; None for the cluster's default."""
        return self.plain.get("partition")

    def words(self, nodes: int) -> list[str]:
        """Return sbatch's words for an allocation of so many nodes."""
        words = [f"--nodes={nodes}", "--ntasks-per-node=1", "--export=NIL", "--no-kill"]
        words += [f"--{name.replace('_', '-')}={value}" for name, value in self.plain.items()]
        if self.time is not None:
            words.append(f"--time={self.time}")
        if self.exclusive:
            words.append("--exclusive")
        words.append("--requeue" if self.requeue else "--no-requeue")
        if self.signal is not None:
            words.append(f"--signal={self.signal}")
        return [*words, *self.sbatch]


def minutes(text: str) -> float | None:
    """Return the minutes of a limit of Slurm's (``90``, ``90:00``, ``1:30:00``, ``2-0``); infinite for none.

    Returns:
        None for what is no such limit.
    """
    if text.upper() in ("UNLIMITED", "INFINITE"):
        return float("inf")
    found = _TIME.fullmatch(text)
    if found is None:
        return None
    parts = [int(part) for part in (found["first"], found["second"], found["third"]) if part is not None]
    if found["days"] is not None:  # days-hours[:minutes[:seconds]]
        hours, mins, seconds = (*parts, 0, 0)[:3]
        return int(found["days"]) * 1440 + hours * 60 + mins + seconds / 60
    if len(parts) == 3:
        return parts[0] * 60 + parts[1] + parts[2] / 60
    return parts[0] + (parts[1] / 60 if len(parts) == 2 else 0)


def _named(name: str) -> str:
    return f"backend_options[{name!r}]"


def _check(name: str, value: Any, kind: type, said: str) -> Any:
    if not isinstance(value, kind):
        raise ConfigurationError(f"{_named(name)} must be {said}; got {shown(value)}.")
    return value


def _text(name: str, value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int) or not str(value) or "\n" in str(value):
        raise ConfigurationError(
            f"{_named(name)} must be a string or a number, as sbatch takes it; got {shown(value)}."
        )
    return str(value)


def _words(name: str, value: Any) -> tuple[str, ...]:
    if (
        isinstance(value, str)
        or not isinstance(value, list | tuple)
        or not all(isinstance(word, str) for word in value)
    ):
        raise ConfigurationError(f"{_named(name)} must be a list of strings; got {shown(value)}.")
    return tuple(value)


def is_notice(number: int) -> bool:
    """Return whether a signal that an agent gets is Slurm's announcement that it will end."""
    return number in {signal.Signals[f"SIG{name}"] for name in _SIGNALS}
