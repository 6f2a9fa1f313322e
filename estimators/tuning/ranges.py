"""Define the ranges of hyperparameters with the names of the SageMaker SDK 2.x, and convert them to and from
requests.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from container.contract import hyperparameters as codec
from container.contract.names import shown, suggests_arguments, unknown
from estimators.job.errors import ConfigurationError

SCALING_TYPES = ("Auto", "Linear", "Logarithmic", "ReverseLogarithmic")

#: The name of the request's list of ranges, by the kind of the ranges.
LISTS = {
    "Integer": "IntegerParameterRanges",
    "Continuous": "ContinuousParameterRanges",
    "Categorical": "CategoricalParameterRanges",
}

#: With ``Auto``, a range of positive numbers is searched on a logarithmic scale if its ends differ by at least this
#: factor.
_AUTO_LOG_RATIO = 1000.0


@suggests_arguments
class ParameterRange:
    """A range of numbers. Use one of its subclasses.

    Args:
        min_value: The lowest value.
        max_value: The highest value.
        scaling_type: ``Auto``, ``Linear``, ``Logarithmic`` or ``ReverseLogarithmic``. ``Auto`` is logarithmic for a
            range of positive numbers whose ends differ by a factor of at least 1,000. For other ranges, ``Auto`` is
            linear.

    Raises:
        ConfigurationError: the range is empty, or an end has the wrong type.
    """

    __all_types__: ClassVar[tuple[str, ...]] = ("Continuous", "Categorical", "Integer")
    __name__ = ""

    def __init__(self, min_value: Any, max_value: Any, scaling_type: str = "Auto") -> None:
        self.min_value = min_value
        self.max_value = max_value
        self.scaling_type = scaling_type
        _check(type(self).__name__, self.__name__, min_value, max_value, scaling_type)

    def __repr__(self) -> str:
        scaling = f", {self.scaling_type!r}" if self.scaling_type != "Auto" else ""
        return f"{type(self).__name__}({self.min_value!r}, {self.max_value!r}{scaling})"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash(repr(self))

    def is_valid(self, value: Any) -> bool:
        """Return whether a value is in the range."""
        return bool(self.min_value <= value <= self.max_value)

    @classmethod
    def cast_to_type(cls, value: Any) -> Any:
        """Convert a value to the range's type."""
        return float(value)

    def as_tuning_range(self, name: str) -> dict[str, Any]:
        """Return the range as a dict in the format of a CreateHyperParameterTuningJob request.

        Args:
            name: The name of the hyperparameter.
        """
        return {
            "Name": name,
            "MinValue": str(self.min_value),
            "MaxValue": str(self.max_value),
            "ScalingType": self.scaling_type,
        }


class ContinuousParameter(ParameterRange):
    """A range of real numbers."""

    __name__ = "Continuous"


class IntegerParameter(ParameterRange):
    """A range of whole numbers, including the lowest and the highest value."""

    __name__ = "Integer"

    @classmethod
    def cast_to_type(cls, value: Any) -> int:
        """Convert a value to a whole number."""
        return int(value)


@suggests_arguments
class CategoricalParameter(ParameterRange):
    """A choice among values.

    Args:
        values: A list of values, or a single value. Scripts receive the values with their types. The attribute
            ``values`` contains the values as strings, as in the SageMaker SDK.

    Raises:
        ConfigurationError: no value is given, or a value is given twice.
    """

    __name__ = "Categorical"

    def __init__(self, values: Any) -> None:
        self.choices = list(values) if isinstance(values, list | tuple) else [values]
        self.values = [str(value) for value in self.choices]
        if not self.choices:
            raise ConfigurationError("CategoricalParameter([]) is an empty range: give at least one value.")
        if len(set(self.values)) < len(self.values):
            raise ConfigurationError(f"CategoricalParameter({shown(self.choices)}) has a value twice.")

    def __repr__(self) -> str:
        return f"CategoricalParameter({self.choices!r})"

    def is_valid(self, value: Any) -> bool:
        """Return whether a value is among the choices."""
        return value in self.values or value in self.choices

    @classmethod
    def cast_to_type(cls, value: Any) -> str:
        """Convert a value to text."""
        return str(value)

    def as_tuning_range(self, name: str) -> dict[str, Any]:
        """Return the range for an image that runs its own entry point, with the choices as plain strings."""
        return {"Name": name, "Values": list(self.values)}

    def as_json_range(self, name: str) -> dict[str, Any]:
        """Return the range for a user's script, with the choices as JSON. JSON preserves the types of the values."""
        return {"Name": name, "Values": [codec.encode_value(name, choice) for choice in self.choices]}


def to_request(ranges: Mapping[str, ParameterRange], *, plain: bool) -> dict[str, list[dict[str, Any]]]:
    """Return ranges as the ``ParameterRanges`` of a request.

    Args:
        ranges: The ranges by the names of the hyperparameters.
        plain: Whether to write values as plain texts, for an image that runs its own entry point. If False, values are
            written as JSON, for a script of the user.

    Raises:
        ConfigurationError: a name is reserved or too long, or a value is not a range.
    """
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in LISTS.values()}
    for name, given in ranges.items():
        check_name(name)
        if not isinstance(given, ParameterRange) or given.__name__ not in LISTS:
            raise ConfigurationError(
                f"hyperparameter_ranges[{name!r}] must be a ContinuousParameter, IntegerParameter or "
                f"CategoricalParameter; got {shown(given)}."
            )
        json_form = isinstance(given, CategoricalParameter) and not plain
        rendered = given.as_json_range(name) if json_form else given.as_tuning_range(name)  # type: ignore[attr-defined]
        found[LISTS[given.__name__]].append(rendered)
    return found


def from_request(request: Mapping[str, Any], *, plain: bool = False) -> dict[str, ParameterRange]:
    """Create ranges from a request's ``ParameterRanges``.

    Args:
        request: The request's ``ParameterRanges``.
        plain: Whether the choices are plain texts, as for :func:`to_request`. If False, they are JSON.

    Raises:
        ConfigurationError: a range is empty, or is given twice, or has ends that are not numbers.
    """
    found: dict[str, ParameterRange] = {}
    for name, kind, item in items(request):
        if name in found:
            raise ConfigurationError(f"there are two ranges for the hyperparameter {name!r}.")
        if kind == "Categorical":
            values = list(item.get("Values") or ())
            if not values:
                raise ConfigurationError(f"the range of the hyperparameter {name!r} is empty: it has no values.")
            found[name] = CategoricalParameter(values if plain else [_choice(name, text) for text in values])
            continue
        read: type[float] | type[int] = float if kind == "Continuous" else int
        try:
            low, high = read(item["MinValue"]), read(item["MaxValue"])
        except (ValueError, KeyError, OverflowError):
            raise ConfigurationError(
                f"the range of the hyperparameter {name!r}: its ends, {shown(item.get('MinValue'))} and "
                f"{shown(item.get('MaxValue'))}, must be {'whole ' if kind == 'Integer' else ''}numbers."
            ) from None
        made = ContinuousParameter if kind == "Continuous" else IntegerParameter
        try:
            found[name] = made(low, high, item.get("ScalingType") or "Auto")
        except ConfigurationError as error:
            raise ConfigurationError(f"hyperparameter {name!r}: {error}") from None
    return found


def items(request: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield the name, the kind and the dict of each range in a request's ``ParameterRanges``."""
    for kind, member in LISTS.items():
        for item in request.get(member) or ():
            yield str(item["Name"]), kind, item


def choices(request: Mapping[str, Any]) -> dict[str, Sequence[Any]] | None:
    """Return all values of each range in a request's ``ParameterRanges``. Return None if a range is continuous.

    A categorical range has its choices, as strings. An integer range has all its whole numbers.
    """
    found: dict[str, Sequence[Any]] = {}
    for name, kind, item in items(request):
        if kind == "Categorical":
            found[name] = list(item["Values"])
        elif kind == "Integer":
            found[name] = range(int(item["MinValue"]), int(item["MaxValue"]) + 1)
        elif item["MinValue"] != item["MaxValue"] or item.get("ScalingType") == "ReverseLogarithmic":
            return None
        else:
            found[name] = [float(item["MinValue"])]
    return found


def size(request: Mapping[str, Any]) -> int | None:
    """Return the number of points in a request's ``ParameterRanges``. Return None if a range is continuous."""
    found = choices(request)
    return math.prod(len(values) for values in found.values()) if found is not None else None


def examples(given: ParameterRange) -> list[Any]:
    """Return example values of a range. If a job's entry point is a function, the examples are used to check the
    function's parameters.

    The examples are all values of a choice, the lowest number of a range of whole numbers, or one number of a range of
    real numbers.
    """
    if isinstance(given, CategoricalParameter):
        return given.choices
    if isinstance(given, IntegerParameter):
        return [given.min_value]
    return [math.nextafter(given.min_value, math.inf)]  # not a whole number


def is_logarithmic(scaling: str, low: float, high: float) -> bool:
    """Return whether a range is searched on a logarithmic scale."""
    return scaling == "Logarithmic" or (scaling == "Auto" and low > 0 and high / low >= _AUTO_LOG_RATIO)


def parse(text: str) -> ParameterRange:
    """Parse a range as users write it on the command line.

    Examples are ``0.1:0.9``, ``1:8`` (whole numbers), ``log:1e-4:1e-1``, ``reverse:0.9:0.999``, ``linear:…`` and the
    choice ``sgd,adam``.

    Raises:
        ConfigurationError: the text has none of these formats.
    """
    parts = text.split(":")
    scales = {"log": "Logarithmic", "reverse": "ReverseLogarithmic", "linear": "Linear"}
    scaling = scales.get(parts[0])
    ends = parts[1:] if scaling else parts
    if len(ends) == 2:
        numbers = [_decoded(end) for end in ends]
        if all(isinstance(number, int | float) and not isinstance(number, bool) for number in numbers):
            whole = all(isinstance(number, int) for number in numbers)
            low, high = numbers
            if whole and scaling != "ReverseLogarithmic":
                return IntegerParameter(low, high, scaling or "Auto")
            return ContinuousParameter(float(low), float(high), scaling or "Auto")
    if scaling is None and len(parts) == 1 and text.strip():
        return CategoricalParameter([_decoded(choice.strip()) for choice in text.split(",")])
    raise ConfigurationError(
        f"{text!r} is not a range: write LOW:HIGH, log:LOW:HIGH, reverse:LOW:HIGH, or the choices A,B,C."
    )


def check_name(name: Any) -> None:
    """Raise an error if a name is not valid for a tuned hyperparameter.

    Raises:
        ConfigurationError: the name is not a text of 1 to 256 characters, or is reserved for the platform.
    """
    if not isinstance(name, str) or not name or len(name) > 256:
        raise ConfigurationError(f"hyperparameter_ranges: {shown(name)} is not a hyperparameter name.")
    if codec.is_reserved(name):
        raise ConfigurationError(f"hyperparameter_ranges: {name!r} belongs to the platform and cannot be tuned.")


def _choice(name: str, text: str) -> Any:
    """Decode a choice that is written as JSON.

    Return the text itself if it is not JSON, or if the decoded value cannot be encoded again, such as ``NaN``.
    """
    value = codec.decode_value(text)
    try:
        codec.encode_value(name, value)
    except ValueError:
        return text
    return value


def _decoded(text: str) -> Any:
    """Decode a value that is written as JSON. Return other texts unchanged."""
    value = codec.decode_value(text)
    return value if isinstance(value, str | int | float) and value == value else text


def _is_finite(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number that is too large for a float
        return False


def _check(made: str, kind: str, low: Any, high: Any, scaling: Any) -> None:
    types: tuple[type, ...] = (int,) if kind == "Integer" else (int, float)
    ends: tuple[Any, Any] = (low, high)
    for value in ends:
        if isinstance(value, bool) or not isinstance(value, types) or not _is_finite(value):
            what = "whole numbers" if kind == "Integer" else "finite numbers"
            raise ConfigurationError(f"{made}({shown(low)}, {shown(high)}): the ends must be {what}.")
    if low > high:
        raise ConfigurationError(f"{made}({low!r}, {high!r}) is an empty range: give the lowest value first.")
    if scaling not in SCALING_TYPES:
        raise ConfigurationError(unknown("scaling_type", scaling, SCALING_TYPES))
    if scaling == "Logarithmic" and low <= 0:
        raise ConfigurationError(f"{made}({low!r}, {high!r}, 'Logarithmic'): the lowest value must be above 0.")
    if scaling == "ReverseLogarithmic":
        if kind == "Integer":
            raise ConfigurationError(f"{made}: ReverseLogarithmic is for continuous ranges.")
        if low < 0 or high >= 1:
            raise ConfigurationError(f"{made}({low!r}, {high!r}, 'ReverseLogarithmic') must lie within 0 ≤ x < 1.")
