"""What a job may ask of Slurm: ``RunOptions(backend_options={…})``."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Mapping
from typing import Any

from container.contract import rules
from estimators.backends.hosts.remote import SILENCE_S
from estimators.job.errors import ConfigurationError

#: Variables of the submitting process that the nodes get; all others are theirs.
EXPORTED = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "TZ")

#: Options that are sbatch's of the same name, and take a text or a number.
_PLAIN = (
    "partition", "account", "qos", "gres", "constraint", "reservation", "nodelist", "exclude", "licenses",
    "cpus_per_task", "gpus_per_node", "mem", "nice",
)  # fmt: skip
#: With one of these a job says what it needs of a node, and leaves the rest of it to others.
_PARTS = ("gres", "cpus_per_task", "gpus_per_node", "mem")
_TIME = re.compile(r"(?:(?P<days>\d+)-)?(?P<first>\d+)(?::(?P<second>\d+))?(?::(?P<third>\d+))?")
_SIGNALS = ("TERM", "USR1", "USR2", "INT", "HUP")
_SIGNAL = re.compile(rf"({'|'.join(_SIGNALS)})@\d+")


def _plain(where: str, value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int) or not str(value) or "\n" in str(value):
        raise rules.refuse(where, "a string or a number, as for sbatch", value)
    return str(value)


def _time(where: str, value: Any) -> str:
    limit = str(value) if isinstance(value, int) and not isinstance(value, bool) else rules.text()(where, value)
    if minutes(limit) is None:
        raise rules.refuse(where, "minutes, or sbatch's hours:minutes:seconds or days-hours", value)
    return str(limit)


def _signal(where: str, value: Any) -> str:
    said: str = rules.text()(where, value)
    if _SIGNAL.fullmatch(said) is None:
        signals = ", ".join(_SIGNALS)
        one = f"a signal and the seconds before the limit, such as 'TERM@120', with one of the signals {signals}"
        raise rules.refuse(where, one, value)
    return said


def _words(where: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(word, str) for word in value):
        raise rules.refuse(where, "a list of strings", value)
    return tuple(value)  # one of them may stand there twice


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
    time: str | None = rules.option(_time)
    exclusive: bool = rules.option(rules.boolean, True)
    requeue: bool = rules.option(rules.boolean, False)
    signal: str | None = rules.option(_signal)
    python: str = rules.option(rules.interpreter, sys.executable)
    export: tuple[str, ...] = rules.option(rules.texts(one_too=False), EXPORTED)
    sbatch: tuple[str, ...] = rules.option(_words, ())
    silence: float = rules.option(rules.above_0("a number of seconds above 0"), SILENCE_S)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> SlurmOptions:
        """Read the options.

        Raises:
            ConfigurationError: one of them is not known, or of another type.
        """
        plain = {
            name: _plain(f"backend_options: {name!r}", value)
            for name, value in given.items()
            if name in _PLAIN and value is not None
        }
        given = dict(given)
        if given.get("exclusive") is None:
            given["exclusive"] = not any(name in plain for name in _PARTS)
        try:
            made: SlurmOptions = rules.read(cls, given, what="option of instance_type 'slurm'", known=_PLAIN)
        except rules.UnknownOptionError as error:
            raise ConfigurationError(
                f"{error} Give other options of sbatch as backend_options={{'sbatch': ['--option=value']}}."
            ) from None
        return dataclasses.replace(made, plain=plain)

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
