"""Define the options of a job on Slurm: ``RunOptions(backend_options={…})``."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Mapping
from typing import Any

from container.contract import rules
from container.contract.frozen import dataclass
from estimators.backends.hosts.remote import SILENCE_S
from estimators.job.errors import ArgumentNameError, ConfigurationError

#: Variables of the submitting process that are passed to the nodes. The nodes' own values are used for all other
#: variables.
EXPORTED = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "TZ")

#: Options of sbatch that the user can set under the same name. Their values are strings or numbers.
_PLAIN = (
    "partition", "account", "qos", "gres", "constraint", "reservation", "nodelist", "exclude", "licenses",
    "cpus_per_task", "gpus_per_node", "mem", "nice",
)  # fmt: skip
#: Options that request only a part of a node. Other jobs may use the rest of the node.
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
    return tuple(value)  # a word may occur twice


@dataclass(frozen=True, kw_only=True)
class SlurmOptions:
    """The options of the Slurm backend.

    Attributes:
        plain: The values of the options that sbatch gets unchanged, by the option's name with underscores
            (``gpus_per_node``).
        time: The time limit in sbatch's format. If None, the partition's time limit applies.
        exclusive: Whether the job gets whole nodes. The default is True, unless ``gres``, ``cpus_per_task``,
            ``gpus_per_node`` or ``mem`` requests a part of a node.
        requeue: Whether Slurm should put an allocation that it has taken away into the queue again. If False, fleetfit
            submits a new allocation.
        signal: The signal that Slurm sends before the time limit, and the number of seconds before the limit
            (``TERM@120``). The signal counts as a notice that the nodes will be taken away.
        python: The Python interpreter on the nodes.
        export: The caller's environment variables that are passed to the nodes.
        sbatch: Additional arguments for sbatch.
        silence: The number of seconds without a message from a host after which the host counts as lost.
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
        """Read the options of the Slurm backend from ``backend_options``.

        Raises:
            ConfigurationError: an option is unknown or has the wrong type.
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
        except ArgumentNameError as error:
            raise ConfigurationError(
                f"{error} Give other options of sbatch as backend_options={{'sbatch': ['--option=value']}}."
            ) from None
        return dataclasses.replace(made, plain=plain)

    @property
    def partition(self) -> str | None:
        """Return the name of the partition. Return None for the cluster's default partition."""
        return self.plain.get("partition")

    def words(self, nodes: int) -> list[str]:
        """Return sbatch's arguments for an allocation of ``nodes`` nodes."""
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
    """Convert a time limit of Slurm (``90``, ``90:00``, ``1:30:00``, ``2-0``) to minutes.

    Returns:
        The number of minutes, infinity for ``UNLIMITED``, or None if the text is not a time limit.
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
