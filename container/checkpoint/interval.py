"""Decide when to save: every so many steps, seconds or epochs, or as often as the budget allows."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import re
import time
from collections.abc import Callable

from container.contract.names import unknown

#: Share of the training time that "auto" may cost.
BUDGET = 0.01

#: "auto" saves no more often than this, in seconds.
MIN_AUTO_S = 1.0

#: "auto" leaves at least this many times a write's duration between two saves.
_WRITE_SHARE = 4.0

#: A guess at the rate of the first snapshot, in bytes per second, before one has been measured.
_FIRST_RATE = 0.5e9


class Unit(enum.Enum):
    """What an interval counts."""

    STEPS = "steps"
    SECONDS = "seconds"
    EPOCHS = "epochs"
    AUTO = "auto"


_UNITS = {
    **dict.fromkeys(("step", "steps", "batch", "batches"), (Unit.STEPS, 1)),
    **dict.fromkeys(("epoch", "epochs"), (Unit.EPOCHS, 1)),
    **dict.fromkeys(("s", "sec", "second", "seconds"), (Unit.SECONDS, 1)),
    **dict.fromkeys(("min", "minute", "minutes"), (Unit.SECONDS, 60)),
    **dict.fromkeys(("h", "hour", "hours"), (Unit.SECONDS, 3600)),
}
_TEXT = re.compile(r"(?P<amount>\d+(?:\.\d+)?)?\s*(?P<unit>[a-z]+)")


@dataclasses.dataclass(frozen=True)
class Every:
    """An interval between saves.

    Attributes:
        unit: What is counted.
        amount: How many; without meaning for ``AUTO``.
    """

    unit: Unit
    amount: float = 1

    def __post_init__(self) -> None:
        if self.amount <= 0:
            raise ValueError(f"every must be more than 0, got {self.amount!r} {self.unit.value}.")
        if self.unit in (Unit.STEPS, Unit.EPOCHS) and self.amount != int(self.amount):
            raise ValueError(f"every must be a whole number of {self.unit.value}, got {self.amount!r}.")

    @classmethod
    def parse(cls, value: int | str | datetime.timedelta | Every) -> Every:
        """Read ``100`` (steps), ``"100 steps"``, ``"30s"``, ``"5 min"``, ``"epoch"``, ``"2 epochs"``, ``"auto"``.

        Raises:
            ValueError: it is none of these.
        """
        if isinstance(value, Every):
            return value
        if isinstance(value, datetime.timedelta):
            return cls(Unit.SECONDS, value.total_seconds())
        if isinstance(value, int) and not isinstance(value, bool):
            return cls(Unit.STEPS, value)
        if isinstance(value, str):
            text = value.strip().lower()
            if text == "auto":
                return cls(Unit.AUTO)
            if match := _TEXT.fullmatch(text):
                if match["unit"] not in _UNITS:
                    raise ValueError(unknown(f"unit in every={value!r}:", match["unit"], ["auto", *_UNITS]))
                unit, factor = _UNITS[match["unit"]]
                return cls(unit, float(match["amount"] or 1) * factor)
        raise ValueError(
            "every must be a number of steps, or a text such as 'auto', '100 steps', '30s', '5 min' or 'epoch'; got "
            f"{value!r}."
        )


class Schedule:
    """Decides at each batch and epoch whether to save.

    Args:
        every: The interval.
        budget: For "auto", the share of the time that saving may cost.
        clock: Gives seconds.

    Attributes:
        every: The interval.
    """

    def __init__(self, every: Every, *, budget: float = BUDGET, clock: Callable[[], float] = time.monotonic) -> None:
        if not isinstance(budget, (int, float)) or not 0 < budget < 1:
            raise ValueError(f"budget must be a share between 0 and 1, got {budget!r}.")
        self.every = every
        self._budget = budget
        self._clock = clock
        self._last_step = 0
        self._last_time = clock()
        self._cost_s: float | None = None
        self._measured = False
        self._blocked_s = 0.0
        self._write_s = 0.0

    def start(self, step: int, state_bytes: int = 0) -> None:
        """Take note that training begins or resumes.

        Args:
            step: Finished steps.
            state_bytes: Size of what is going to be saved, from which the first cost is guessed.
        """
        self._last_step = step
        self._last_time = self._clock()
        self.expect(state_bytes)

    def expect(self, state_bytes: int) -> None:
        """Guess the first cost from the size of what is going to be saved, where that is known only later."""
        if self._cost_s is None and state_bytes:
            self._cost_s = state_bytes / _FIRST_RATE

    @property
    def interval_s(self) -> float:
        """The time between two saves, in seconds, where time decides."""
        if self.every.unit is Unit.SECONDS:
            return self.every.amount
        return max(MIN_AUTO_S, (self._cost_s or 0.0) / self._budget, self._write_s * _WRITE_SHARE)

    def due(self, step: int, *, finished_epoch: int | None = None) -> bool:
        """Return whether to save now.

        Args:
            step: Finished steps.
            finished_epoch: Number of epochs finished, at an epoch's end.
        """
        unit = self.every.unit
        if unit is Unit.STEPS:
            return step // int(self.every.amount) > self._last_step // int(self.every.amount)
        if unit is Unit.EPOCHS:
            return finished_epoch is not None and finished_epoch % int(self.every.amount) == 0
        return self._clock() - self._last_time >= self.interval_s

    def saved(self, step: int, *, blocked_s: float) -> None:
        """Take note that a snapshot was taken.

        Args:
            step: Finished steps.
            blocked_s: How long the training was held up, in seconds.
        """
        self._last_step = step
        self._last_time = self._clock()
        self._blocked_s = blocked_s
        self._cost_s = max(self._cost_s or 0.0, blocked_s)

    def written(self, *, write_s: float, processor_s: float) -> None:
        """Take note that the snapshot is on disk; called by the writer's thread.

        Args:
            write_s: How long that took, in seconds.
            processor_s: The processor time of it, in seconds. It counts in full, whatever the number of processors: a
                step that all of them share is as late as the one that was taken from it.
        """
        cost = self._blocked_s + processor_s
        # Dearer is believed at once, cheaper only slowly.
        known = self._cost_s if self._measured and self._cost_s is not None else cost
        self._cost_s = max(cost, (known + cost) / 2)
        self._measured = True
        self._write_s = write_s
