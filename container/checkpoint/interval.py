"""Decide when to save: every N steps, seconds or epochs, or as often as the budget for the cost of saving allows."""

from __future__ import annotations

import datetime
import enum
import re
import time
from collections.abc import Callable

from container.contract.frozen import dataclass
from container.contract.names import unknown

#: Share of the training time that "auto" may cost.
BUDGET = 0.01

#: Minimum time between two saves of "auto", in seconds.
MIN_AUTO_S = 1.0

#: Minimum time between two saves of "auto", as a multiple of the duration of a write.
_WRITE_SHARE = 4.0

#: Assumed rate of a snapshot, in bytes per second, before the first measurement.
_FIRST_RATE = 0.5e9


class Unit(enum.Enum):
    """The unit of an interval."""

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


@dataclass(frozen=True)
class Every:
    """An interval between saves.

    Attributes:
        unit: Unit of the interval.
        amount: Number of units. The number is ignored for ``AUTO``.
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
        """Parse an interval such as ``100`` (steps), ``"100 steps"``, ``"30s"``, ``"5 min"``, ``"epoch"``, ``"2
        epochs"`` or ``"auto"``.

        Raises:
            ValueError: the value is not such an interval.
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
    """A schedule that decides at each batch and epoch whether to save.

    Args:
        every: The interval.
        budget: The maximum fraction of the time that saving may cost, if ``every`` is "auto".
        clock: Returns the current time in seconds.

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

    def start(self, step: int) -> None:
        """Start the schedule when training begins or resumes.

        Args:
            step: Number of finished steps.
        """
        self._last_step = step
        self._last_time = self._clock()

    def expect(self, state_bytes: int) -> None:
        """Estimate the cost of the first save from the number of bytes that a save writes.

        If the cost is known already, this method has no effect.
        """
        if self._cost_s is None:
            self._cost_s = state_bytes / _FIRST_RATE

    @property
    def interval_s(self) -> float:
        """Return the minimum number of seconds between two saves, for an interval in seconds or "auto"."""
        if self.every.unit is Unit.SECONDS:
            return self.every.amount
        return max(MIN_AUTO_S, (self._cost_s or 0.0) / self._budget, self._write_s * _WRITE_SHARE)

    def due(self, step: int, *, finished_epoch: int | None = None) -> bool:
        """Return whether to save now.

        Args:
            step: Number of finished steps.
            finished_epoch: Number of finished epochs, if the method is called at the end of an epoch. Otherwise None.
        """
        unit = self.every.unit
        if unit is Unit.STEPS:
            return step // int(self.every.amount) > self._last_step // int(self.every.amount)
        if unit is Unit.EPOCHS:
            return finished_epoch is not None and finished_epoch % int(self.every.amount) == 0
        return self._clock() - self._last_time >= self.interval_s

    def saved(self, step: int, *, blocked_s: float) -> None:
        """Record that a snapshot was taken.

        Args:
            step: Number of finished steps.
            blocked_s: How many seconds the save has blocked the training.
        """
        self._last_step = step
        self._last_time = self._clock()
        self._blocked_s = blocked_s
        self._cost_s = max(self._cost_s or 0.0, blocked_s)

    def written(self, *, write_s: float, processor_s: float) -> None:
        """Record that the snapshot is on the disk. The writer's thread calls this method.

        Args:
            write_s: Duration of the write, in seconds.
            processor_s: Processor time of the write, in seconds. All of this time is counted as a delay of the
                training, even with many processors. A training step that uses all processors must wait for the
                processor that the write has slowed down.
        """
        cost = self._blocked_s + processor_s
        # A higher cost is adopted at once, a lower one only gradually.
        known = self._cost_s if self._measured and self._cost_s is not None else cost
        self._cost_s = max(cost, (known + cost) / 2)
        self._measured = True
        self._write_s = write_s
