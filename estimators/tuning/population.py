"""Choose from which checkpoint and with which hyperparameters each member of a population continues.

A population trains in generations. After each generation, each of the worst members continues from the checkpoint of
one of the best members, with slightly changed hyperparameters. The other members continue from their checkpoints with
unchanged hyperparameters (Jaderberg et al., 2017, "Population Based Training of Neural Networks"). Each member of each
generation is a trial with a job of its own.

The functions have no side effects, except that they draw from the given source of random numbers.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from estimators.tuning import ranges
from estimators.tuning.config import PopulationConfig

#: The factors by which a changed number is multiplied.
_FACTORS = (0.8, 1.2)


class Member(NamedTuple):
    """The checkpoint and hyperparameters with which a member of the next generation begins.

    Attributes:
        origin: The index of the member of the last generation from whose checkpoint the new member continues.
        changed: Whether the new member's hyperparameters are changed. If False, they are the hyperparameters of
            ``origin``.
    """

    origin: int
    changed: bool


def successor(values: Sequence[float | None], member: int, config: PopulationConfig, draw: random.Random) -> Member:
    """Return from which checkpoint and with which hyperparameters a member begins in the next generation.

    Args:
        values: The value of the objective for each member of the last generation, where higher is better. None for a
            failed member.
        member: The index of the member.
        config: The population's configuration.
        draw: The source of random numbers.
    """
    worth = [value if value is not None else -math.inf for value in values]
    order = sorted(range(len(values)), key=worth.__getitem__, reverse=True)
    share = max(1, math.floor(len(values) * config.quantile))
    best = [place for place in order[:share] if values[place] is not None]
    exploited = member in order[-share:] or values[member] is None
    if not exploited or not best or member in best:
        return Member(member, False)
    return Member(draw.choice(best), True)


def changed(
    parameters: Mapping[str, Any], parameter_ranges: Mapping[str, Any], config: PopulationConfig, draw: random.Random
) -> dict[str, Any]:
    """Return a changed copy of a member's parameters. Each number is made 20 % smaller or larger, or drawn at random
    from its range.

    A categorical value is kept, or drawn at random from its choices.

    Args:
        parameters: The parameters of the member whose checkpoint is used.
        parameter_ranges: The request's ``ParameterRanges``.
        config: The population's configuration.
        draw: The source of random numbers.
    """
    found = dict(parameters)
    for name, kind, item in ranges.items(parameter_ranges):
        anew = draw.random() < config.resample_probability
        if kind == "Categorical":
            if anew:
                found[name] = draw.choice(list(item["Values"]))
            continue
        low, high, logarithmic = _scale(item)
        if anew:
            value = math.exp(draw.uniform(math.log(low), math.log(high))) if logarithmic else draw.uniform(low, high)
        else:
            value = parameters[name] * draw.choice(_FACTORS)
        value = min(max(value, low), high)
        if kind == "Integer":
            value = round(value)
            if not anew and value == parameters[name]:  # a fifth of a small number rounds to no change
                value = min(max(value + draw.choice((-1, 1)), int(low)), int(high))
        found[name] = value
    return found


def _scale(item: Mapping[str, Any]) -> tuple[float, float, bool]:
    low, high = float(item["MinValue"]), float(item["MaxValue"])
    scaling = item.get("ScalingType") or "Auto"
    if scaling == "ReverseLogarithmic":
        return 1.0 - high, 1.0 - low, True
    return low, high, ranges.is_logarithmic(scaling, low, high)
