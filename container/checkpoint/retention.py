"""Decide which checkpoints are kept. All functions are pure."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence

from container.contract.frozen import dataclass

_MODES = ("min", "max")
_TEXT = re.compile(r"(?:(?P<mode>\w+)\s+)?(?P<metric>\S+)")


@dataclass(frozen=True, kw_only=True)
class Best:
    """The metric that determines the best checkpoints.

    Attributes:
        metric: The metric's name in Keras' logs, such as ``val_accuracy``.
        mode: ``"max"`` if higher values are better, or ``"min"`` if lower values are better.
        keep: Number of best checkpoints to keep.
    """

    metric: str
    mode: str
    keep: int = 1

    def __post_init__(self) -> None:
        if self.mode not in _MODES:
            raise ValueError(f"best: mode must be 'min' or 'max', got {self.mode!r}.")
        if self.keep < 1:
            raise ValueError(f"best: keep must be at least 1, got {self.keep!r}.")

    @classmethod
    def parse(cls, value: str | Best | None) -> Best | None:
        """Parse ``"val_loss"``, ``"max f1"``, a :class:`Best` or None.

        Raises:
            ValueError: the value is none of these, or it is not clear whether higher values of the metric are better.
        """
        if value is None or isinstance(value, Best):
            return value
        match = _TEXT.fullmatch(value.strip()) if isinstance(value, str) else None
        if match is None:
            raise ValueError(f"best must be like 'val_loss', 'max f1' or a Best, got {value!r}.")
        metric, mode = match["metric"], match["mode"]
        if mode is None:
            lower = metric.lower()
            if "loss" in lower or "error" in lower:
                mode = "min"
            elif "acc" in lower or "auc" in lower:
                mode = "max"
            else:
                raise ValueError(
                    f"best={value!r} does not say whether higher values are better: write 'max {metric}' or "
                    f"'min {metric}'."
                )
        return cls(metric=metric, mode=mode)

    def rank(self, metrics: Mapping[str, Mapping[str, float]]) -> list[str]:
        """Order checkpoints by the metric, the best checkpoint first. If checkpoints have equal values, the earlier
        checkpoint is first.

        Args:
            metrics: The metrics of each checkpoint, by the checkpoint's name, in the order of saving. Checkpoints
                without a number for the metric are omitted from the result.
        """
        sign = -1.0 if self.mode == "max" else 1.0
        values = {name: found[self.metric] for name, found in metrics.items() if self.metric in found}
        return sorted((name for name in values if not math.isnan(values[name])), key=lambda name: sign * values[name])


def doomed(
    names: Sequence[str],
    *,
    keep: int | None,
    best: Best | None = None,
    metrics: Mapping[str, Mapping[str, float]] | None = None,
    referenced: Collection[str] = (),
    damaged: Collection[str] = (),
) -> list[str]:
    """Return the checkpoints that may be deleted.

    Args:
        names: All checkpoints, in the order of saving.
        keep: Number of newest undamaged checkpoints to keep. None to keep all checkpoints.
        best: The metric that determines the best checkpoints. The best checkpoints are also kept.
        metrics: The metrics of each checkpoint, by the checkpoint's name.
        referenced: Checkpoints that a label refers to. Such checkpoints are kept.
        damaged: Checkpoints that are known to be damaged. A damaged checkpoint may be deleted only if it is older than
            the newest checkpoints that are kept.

    Returns:
        Names of the checkpoints, the oldest first.
    """
    if keep is None:
        return []
    sound = [name for name in names if name not in damaged]
    newest = sound[-keep:]
    stay = {*newest, *referenced}
    if best is not None:
        known = {name: values for name, values in (metrics or {}).items() if name in sound}
        stay.update(best.rank({name: known[name] for name in sound if name in known})[: best.keep])
    oldest_kept = names.index(newest[0]) if newest else 0
    return [name for index, name in enumerate(names) if index < oldest_kept and name not in stay]
