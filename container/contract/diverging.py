"""Recognise a diverged training by its metrics: values that are NaN, and losses that are infinite. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from container.contract.failures import Cause, Failure

#: A metric is a loss by one of these words in its name.
_LOSSES = re.compile(r"loss|cost|objective|perplexity|entropy|(?<![a-z])(?:nll|ppl|elbo|[rn]?mse|mae)(?![a-z])")
#: These are infinite at times without anything being wrong: the best loss so far before the first, a scale.
_INFINITE = re.compile(r"(?<![a-z])(?:best|min|max|lowest|scale)(?![a-z])")

#: What says where in the training a value is from: names of values that are reported beside it.
PLACES = ("epoch", "step")


def has_diverged(name: str, value: Any) -> bool:
    """Return whether a metric's value shows divergence: NaN for any metric, infinity for a loss."""
    if not isinstance(value, float) or math.isfinite(value):
        return False
    spelled = name.lower().replace("_", " ")
    return math.isnan(value) or (_LOSSES.search(spelled) is not None and _INFINITE.search(spelled) is None)


def describe(name: str, value: float, *, rank: int | None, process: str = "", place: Mapping[str, Any]) -> str:
    """Say it in a sentence.

    Args:
        name: The metric's name.
        value: Its value.
        rank: Who reported it.
        process: Who that is where it has no rank.
        place: Where in the training, as far as it is known: ``{"epoch": 3}``.
    """
    who = f"rank {rank}" if rank is not None else process or "the script"
    when = ", ".join(f"{word} {place[word]:g}" for word in PLACES if isinstance(place.get(word), int | float))
    text = "not a number (NaN)" if math.isnan(value) else "infinite" if value > 0 else "minus infinity"
    return f"metric {name!r} is {text}{f' at {when}' if when else ''}; {who} reported it."


def failure(text: str, host: str, rank: int | None) -> Failure:
    """Return the failure of a job that has diverged under ``on_nan="fail"``."""
    return Failure(
        cause=Cause.UNSOUND,
        message=f"{text} The job fails because RunOptions(on_nan='fail') is set.",
        host=host,
        rank=rank,
        process=f"rank {rank}" if rank is not None else None,
        hints=("Try a lower learning rate or gradient clipping, and inspect the data of this step.",),
    )
