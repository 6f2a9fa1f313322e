"""Track which records an elastic training has consumed, and deal out the others. Pure.

All ranks read an epoch's records in one order and take turns: after ``position`` records, rank ``r`` of ``n`` has the
records ``position + k * n + r``. So the whole ledger of an epoch is one number.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dealing:
    """How an epoch, or the rest of it, is dealt out to the ranks that are there.

    Attributes:
        records: Records of the epoch.
        position: Records of it that were consumed before.
        size: The ranks.
        per_step: Records of a step of all ranks; a multiple of the ranks or not.
        partial: Whether records that do not make a whole step are trained on as well.
    """

    records: int
    position: int
    size: int
    per_step: int
    partial: bool = True

    @property
    def steps(self) -> int:
        """The steps that are left."""
        left = max(0, self.records - self.position)
        return -(-left // self.per_step) if self.partial else left // self.per_step

    def after(self, steps: int) -> int:
        """Return the position after some of these steps."""
        return min(self.records, self.position + steps * self.per_step)

    def share(self, rank: int, step: int) -> range:
        """Return a rank's records in a step, from 0, by their place in the epoch's order."""
        first = self.position + step * self.per_step
        return range(first + rank, min(self.records, first + self.per_step), self.size)
