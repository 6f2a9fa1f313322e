"""Detect from a training's metrics that the training has diverged: a metric is NaN, or a loss is infinite."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from container.contract.failures import Cause, Failure

#: A metric is a loss if its name contains one of these words.
_LOSSES = re.compile(r"loss|cost|objective|perplexity|entropy|(?<![a-z])(?:nll|ppl|elbo|[rn]?mse|mae)(?![a-z])")
#: A metric whose name contains one of these words may be infinite in a healthy training. Examples are the best loss so
#: far, before the first epoch, and a loss scale.
_INFINITE = re.compile(r"(?<![a-z])(?:best|min|max|lowest|scale)(?![a-z])")

#: Names of values that may be reported together with a metric, and that tell when in the training it was measured.
PLACES = ("epoch", "step")


def has_diverged(name: str, value: Any) -> bool:
    """Return whether a metric's value shows that the training has diverged.

    NaN shows divergence for any metric. Infinity shows divergence only for a loss.
    """
    if not isinstance(value, float) or math.isfinite(value):
        return False
    spelled = name.lower().replace("_", " ")
    return math.isnan(value) or (_LOSSES.search(spelled) is not None and _INFINITE.search(spelled) is None)


def describe(name: str, value: float, *, rank: int | None, process: str = "", place: Mapping[str, Any]) -> str:
    """Return a sentence that describes the diverged metric.

    Args:
        name: The metric's name.
        value: The metric's value.
        rank: The rank that reported the metric. None if the process has no rank.
        process: Name of the process that reported the metric. The name is used only if ``rank`` is None.
        place: The epoch and the step of the metric, such as ``{"epoch": 3}``. Unknown values are omitted.
    """
    who = f"rank {rank}" if rank is not None else process or "the script"
    when = ", ".join(f"{word} {place[word]:g}" for word in PLACES if isinstance(place.get(word), int | float))
    text = "not a number (NaN)" if math.isnan(value) else "infinite" if value > 0 else "minus infinity"
    return f"metric {name!r} is {text}{f' at {when}' if when else ''}; {who} reported it."


def failure(text: str, host: str, rank: int | None) -> Failure:
    """Return the failure of a job that has diverged and that has ``on_nan="fail"``. ``text`` is the result of
    :func:`describe`.
    """
    return Failure(
        cause=Cause.UNSOUND,
        message=f"{text} The job fails because RunOptions(on_nan='fail') is set.",
        host=host,
        rank=rank,
        process=f"rank {rank}" if rank is not None else None,
        hints=("Try a lower learning rate or gradient clipping, and inspect the data of this step.",),
    )
