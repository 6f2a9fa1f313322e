"""Encode hyperparameters as the strings of a CreateTrainingJob request, and decode them.

As in the SageMaker SDK 2.x (``estimator.py``, ``_json_encode_hyperparameters``), every value for a script is encoded as
JSON text, so that the host can restore the value's type. For an image with its own entry point, a value is encoded with
``str()`` (``_TrainingJob``). As in SageMaker's training toolkit, the host decodes a text that is not JSON as a string.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from container.contract.names import shown
from container.contract.rules import passable

#: Maximum nesting depth of a value.
MAX_DEPTH = 64
#: The maximum size of a whole number in bits. Larger numbers must be passed as strings.
_MAX_BITS = 1024

#: Hyperparameters with these prefixes are the platform's, not the user's.
RESERVED_PREFIXES = ("sagemaker_", "fleetfit_")

PROGRAM = "sagemaker_program"
SUBMIT_DIRECTORY = "sagemaker_submit_directory"
#: The environment variables with which an image or a job names its entry point and its code, as an alternative to the
#: two hyperparameters above (training toolkit, ``params.py``: USER_PROGRAM_ENV, SUBMIT_DIR_ENV).
PROGRAM_VARIABLE = "SAGEMAKER_PROGRAM"
SUBMIT_DIRECTORY_VARIABLE = "SAGEMAKER_SUBMIT_DIRECTORY"
NAMING_VARIABLES = (PROGRAM_VARIABLE, SUBMIT_DIRECTORY_VARIABLE)
LOG_LEVEL = "sagemaker_container_log_level"
JOB_NAME = "sagemaker_job_name"
REGION = "sagemaker_region"
S3_OUTPUT = "sagemaker_s3_output"
ENABLE_METRICS = "sagemaker_enable_cloudwatch_metrics"
MODEL_DIR = "model_dir"
#: If no rank prints or reports anything for this many seconds, the job fails, and every rank's stack is logged.
HANG_TIMEOUT = "fleetfit_hang_timeout"
#: "fail": a job fails if its ranks do not communicate with each other. Default: the user is only warned.
ON_UNDISTRIBUTED = "fleetfit_on_undistributed"
#: "fail": the toolkit stops a job that reports a NaN metric or an infinite loss. Default: the job continues.
ON_NAN = "fleetfit_on_nan"
#: Arguments that the script gets unchanged, after its hyperparameters.
ARGUMENTS = "fleetfit_arguments"

#: Reserved names that configure the toolkit. Every other reserved name is a "framework parameter" (training toolkit,
#: ``params.py``: SAGEMAKER_HYPERPARAMETERS).
TOOLKIT_PARAMETERS = frozenset(
    {
        PROGRAM,
        SUBMIT_DIRECTORY,
        ENABLE_METRICS,
        REGION,
        LOG_LEVEL,
        JOB_NAME,
        "default_user_module_name",
        "_tuning_objective_metric",
        S3_OUTPUT,
    }
)


def encode_value(name: str, value: Any) -> str:
    """Encode one value as JSON text.

    Args:
        name: The hyperparameter's name, for the error message.
        value: A JSON value (str, int, float, bool, None, list, dict) or a numpy scalar.

    Raises:
        ValueError: the value cannot be encoded as JSON without loss, or cannot be an argument of a process.
    """
    value = _scalar(value)
    _check(name, value)
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def plain_value(name: str, value: Any) -> str:
    """Encode one value for an image with its own entry point. The value is encoded with ``str()``, as in the SageMaker
    SDK 2.x.

    Args:
        name: The hyperparameter's name, for the error message.
        value: A value as for :func:`encode_value`. A number may also be infinite or NaN.

    Raises:
        ValueError: the value has a type that is not allowed, or cannot be an argument of a process.
    """
    value = _scalar(value)
    if not isinstance(value, float):
        _check(name, value)
    return str(value)


def encode(hyperparameters: Mapping[str, Any]) -> dict[str, str]:
    """Encode all values. See :func:`encode_value`."""
    return {str(name): encode_value(str(name), value) for name, value in hyperparameters.items()}


def decode_value(text: Any) -> Any:
    """Decode one value as SageMaker's training toolkit does.

    A JSON text is decoded to its value. Any other value is returned unchanged.
    """
    if not isinstance(text, str):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def decode(hyperparameters: Mapping[str, Any]) -> dict[str, Any]:
    """Decode all values. See :func:`decode_value`."""
    return {name: decode_value(value) for name, value in hyperparameters.items()}


def program(hyperparameters: Mapping[str, Any], environment: Mapping[str, str]) -> str | None:
    """Return the job's entry point, or None if the job names no entry point.

    As in SageMaker's training toolkit (``environment.py``), the environment variable ``SAGEMAKER_PROGRAM`` takes
    precedence over the hyperparameter ``sagemaker_program``.

    Args:
        hyperparameters: The hyperparameters, encoded or decoded.
        environment: The job's environment variables.
    """
    value = environment.get(PROGRAM_VARIABLE) or decode_value(hyperparameters.get(PROGRAM))
    return str(value) if value else None


def submit_directory(hyperparameters: Mapping[str, Any], environment: Mapping[str, str]) -> str | None:
    """Return the location of the job's code: a URI or a path. Return None if the code is in the image.

    The hyperparameter ``sagemaker_submit_directory`` takes precedence over the environment variable
    ``SAGEMAKER_SUBMIT_DIRECTORY``. The code is in the image if neither of the two is set.
    """
    value = decode_value(hyperparameters.get(SUBMIT_DIRECTORY)) or environment.get(SUBMIT_DIRECTORY_VARIABLE)
    return str(value) if value else None


def is_reserved(name: str) -> bool:
    """Return whether a hyperparameter is reserved for SageMaker or fleetfit, so that the script does not get it."""
    return name in TOOLKIT_PARAMETERS or name.startswith(RESERVED_PREFIXES)


def _scalar(value: Any) -> Any:
    """Convert a numpy scalar to a Python value. Return any other value unchanged."""
    is_one = hasattr(value, "item") and not isinstance(value, str | bytes) and getattr(value, "shape", None) == ()
    return value.item() if is_one else value


def _check(name: str, value: Any, depth: int = 0) -> None:
    if isinstance(value, str):
        passable(f"hyperparameter {name!r}", value, None)
    elif value is None or isinstance(value, bool | int):
        if value is not None and value.bit_length() > _MAX_BITS:
            raise ValueError(f"hyperparameter {name!r}: the number has more than 300 digits. Pass it as a string.")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(
                f"hyperparameter {name!r}: {shown(value)} has no JSON form. Pass it as a string, e.g. {str(value)!r}."
            )
    elif isinstance(value, list | tuple | Mapping) and depth >= MAX_DEPTH:
        raise ValueError(
            f"hyperparameter {name!r}: the value is nested more than {MAX_DEPTH} levels deep, or contains itself."
        )
    elif isinstance(value, list | tuple):
        for item in value:
            _check(name, item, depth + 1)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                raise ValueError(f"hyperparameter {name!r}: the keys of a dict must be strings; got {shown(key)}.")
            _check(name, key)
            _check(name, item, depth + 1)
    else:
        raise ValueError(
            f"hyperparameter {name!r}: a value of type {type(value).__name__} cannot be passed; "
            "allowed: str, int, float, bool, None, and lists and dicts of these."
        )


# --- arguments and variables, as sagemaker-training-toolkit writes them (``mapping.py``: ``to_cmd_args``,
# ``to_env_vars``) ---


def to_cmd_args(hyperparameters: Mapping[str, Any], arguments: Sequence[str] = ()) -> list[str]:
    """Convert ``{"batch-size": 25, "v": True}`` to ``["--batch-size", "25", "-v", "True"]``, sorted by name.

    A name of one letter gets one dash, and an empty name gets no dash. A dict becomes ``k=v,k=v``. None becomes an
    empty string.

    Args:
        hyperparameters: The hyperparameters, decoded, by name.
        arguments: Arguments to append unchanged. A hyperparameter that these arguments also set is omitted.
    """
    named = values_in(arguments)
    args: list[str] = []
    for name in sorted(hyperparameters):
        option = option_of(name)
        if option not in named:
            args += [option, _argument(hyperparameters[name])]
    return [*args, *arguments]


def option_of(name: str) -> str:
    """Return the command-line option that passes a hyperparameter to a script, such as ``--lr`` for ``lr``."""
    return f"--{name}" if len(name) > 1 else f"-{name}" if name else ""


def values_in(arguments: Sequence[str]) -> dict[str, str]:
    """Return the options among a script's arguments. Every argument that begins with a hyphen counts as an option.

    ``--lr 1`` and ``--lr=1`` set the option ``--lr`` to ``1``. The argument that follows ``--lr`` is used as the value
    of ``--lr``, even if that argument is itself an option. If ``--lr`` is the last argument, its value is an empty
    text. Arguments after ``--`` are not options.

    Returns:
        The value of each option, by the option. If an option occurs several times, its last value.
    """
    found = {}
    own = list(itertools.takewhile(lambda word: word != "--", arguments))
    for word, behind in itertools.pairwise([*own, ""]):
        if word.startswith("-") and word.strip("-"):
            name, equals, value = word.partition("=")
            found[name] = value if equals else behind
    return found


def conflict(hyperparameters: Mapping[str, Any], arguments: Sequence[str]) -> str | None:
    """Return an error message if the arguments and the hyperparameters set the same option to different values.

    Return None if there is no conflict.
    """
    given = values_in(arguments)
    for name, value in hyperparameters.items():
        option = option_of(name)
        if option in given and given[option] != _argument(value):
            return f"{option} in arguments has no value, or a value that differs from hyperparameter {name!r}"
    return None


def to_env_vars(values: Mapping[str, Any]) -> dict[str, str]:
    """Convert ``{"model_dir": "/m", "hps": {…}}`` to ``{"SM_MODEL_DIR": "/m", "SM_HPS": "{…}"}``.

    A string is not changed. None becomes an empty string. Every other value becomes compact ASCII JSON with sorted
    keys.
    """
    return {f"SM_{str(name).upper()}": _variable(value) for name, value in values.items()}


def _argument(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, Mapping):
        return ",".join(f"{key}={item}" for key, item in sorted(value.items()))
    if isinstance(value, float) and value < 0 and math.isfinite(value):
        return f"{Decimal(repr(float(value))):f}"  # argparse reads -1e-05 as an option, but -0.00001 as a number
    return str(value)


def _variable(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
