"""Distribute the remaining records of an epoch over the ranks, with pure functions.

All ranks read an epoch's records in the same order, and the records are assigned to the ranks in turn. In a step that
begins after ``position`` consumed records, rank ``r`` of ``n`` ranks gets the records ``position + r``,
``position + r + n``, ``position + r + 2 * n`` and so on. Therefore the number ``position`` describes which records of
an epoch were consumed.
"""

from __future__ import annotations

from container.contract.frozen import dataclass


@dataclass(frozen=True, kw_only=True)
class Dealing:
    """The distribution of an epoch's remaining records over the current ranks.

    Attributes:
        records: Number of records in the epoch.
        position: Number of records of the epoch that were already consumed.
        size: Number of ranks.
        per_step: Number of records in one step of all ranks together. The number need not be a multiple of the number
            of ranks.
        partial: Whether to train a last step with fewer than ``per_step`` records. If false, the records of this step
            are dropped.
    """

    records: int
    position: int
    size: int
    per_step: int
    partial: bool = True

    @property
    def steps(self) -> int:
        """Return the number of remaining steps."""
        left = max(0, self.records - self.position)
        return -(-left // self.per_step) if self.partial else left // self.per_step

    def after(self, steps: int) -> int:
        """Return the number of consumed records after ``steps`` more steps."""
        return min(self.records, self.position + steps * self.per_step)

    def share(self, rank: int, step: int) -> range:
        """Return a rank's records in a step, as positions in the epoch's order. The first remaining step is step 0."""
        first = self.position + step * self.per_step
        return range(first + rank, min(self.records, first + self.per_step), self.size)
