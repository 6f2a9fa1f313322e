"""The hyperparameter codec: typed values <-> the strings of a CreateTrainingJob request.

As in the SageMaker SDK 2.x (``estimator.py``, ``_json_encode_hyperparameters``) every value of a script travels as JSON
text, so that its type survives; an image that brings its own entry point gets ``str()`` of it (``_TrainingJob``). The
host's side decodes leniently, as the training toolkit does: what is not JSON is a string.
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

#: How deep a value may be nested.
MAX_DEPTH = 64
#: The largest whole number, in bits: what has more digits is passed as a text.
_MAX_BITS = 1024

#: Hyperparameters with these prefixes are the platform's, not the user's.
RESERVED_PREFIXES = ("sagemaker_", "fleetfit_")

PROGRAM = "sagemaker_program"
SUBMIT_DIRECTORY = "sagemaker_submit_directory"
#: The variables by which an image or a job names its entry point and its code where no hyperparameter does (training
#: toolkit, ``params.py``: USER_PROGRAM_ENV, SUBMIT_DIR_ENV).
PROGRAM_VARIABLE = "SAGEMAKER_PROGRAM"
SUBMIT_DIRECTORY_VARIABLE = "SAGEMAKER_SUBMIT_DIRECTORY"
NAMING_VARIABLES = (PROGRAM_VARIABLE, SUBMIT_DIRECTORY_VARIABLE)
LOG_LEVEL = "sagemaker_container_log_level"
JOB_NAME = "sagemaker_job_name"
REGION = "sagemaker_region"
S3_OUTPUT = "sagemaker_s3_output"
ENABLE_METRICS = "sagemaker_enable_cloudwatch_metrics"
MODEL_DIR = "model_dir"
#: Seconds without a sign of life of any rank after which a job fails, with every rank's stack.
HANG_TIMEOUT = "fleetfit_hang_timeout"
#: "fail" where a job fails whose ranks have nothing to do with each other; without it they are warned of.
ON_UNDISTRIBUTED = "fleetfit_on_undistributed"
#: "fail" where the toolkit ends a job that reports a loss that is not a number; without it nothing is done about it.
ON_NAN = "fleetfit_on_nan"
#: Words that the script gets behind its hyperparameters, as they are.
ARGUMENTS = "fleetfit_arguments"

#: ``sagemaker_*`` names that are the toolkit's own; every other reserved one is a "framework parameter"
#: (training toolkit, ``params.py``: SAGEMAKER_HYPERPARAMETERS).
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
        name: The hyperparameter's name, for the error.
        value: A JSON value (str, int, float, bool, None, list, dict) or a numpy scalar.

    Raises:
        ValueError: the value has no JSON form that reads back equal, or cannot be put into a process's arguments.
    """
    value = _scalar(value)
    _check(name, value)
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def plain_value(name: str, value: Any) -> str:
    """Encode one value for an image that brings its own entry point: ``str()``, as the SageMaker SDK 2.x does there.

    Args:
        name: The hyperparameter's name, for the error.
        value: As for :func:`encode_value`; a number may also be infinite or none.

    Raises:
        ValueError: the value is of another type, or cannot be put into a process's arguments.
    """
    value = _scalar(value)
    if not isinstance(value, float):
        _check(name, value)
    return str(value)


def encode(hyperparameters: Mapping[str, Any]) -> dict[str, str]:
    """Encode all values; see :func:`encode_value`."""
    return {str(name): encode_value(str(name), value) for name, value in hyperparameters.items()}


def decode_value(text: Any) -> Any:
    """Decode one value as the training toolkit does: JSON if it is JSON, else the value itself."""
    if not isinstance(text, str):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def decode(hyperparameters: Mapping[str, Any]) -> dict[str, Any]:
    """Decode all values; see :func:`decode_value`."""
    return {name: decode_value(value) for name, value in hyperparameters.items()}


def program(hyperparameters: Mapping[str, Any], environment: Mapping[str, str]) -> str | None:
    """Return the entry point: from the variable, as in the training toolkit (``environment.py``), or the
    hyperparameter.

    Args:
        hyperparameters: Decoded or not.
        environment: The job's variables.
    """
    value = environment.get(PROGRAM_VARIABLE) or decode_value(hyperparameters.get(PROGRAM))
    return str(value) if value else None


def submit_directory(hyperparameters: Mapping[str, Any], environment: Mapping[str, str]) -> str | None:
    """Return where the code is, from the hyperparameter or the variable; None where it is in the image."""
    value = decode_value(hyperparameters.get(SUBMIT_DIRECTORY)) or environment.get(SUBMIT_DIRECTORY_VARIABLE)
    return str(value) if value else None


def is_reserved(name: str) -> bool:
    """Return whether the name belongs to the platform rather than to the user's script."""
    return name in TOOLKIT_PARAMETERS or name.startswith(RESERVED_PREFIXES)


def _scalar(value: Any) -> Any:
    """Convert a numpy scalar to a Python number."""
    is_one = hasattr(value, "item") and not isinstance(value, str | bytes) and getattr(value, "shape", None) == ()
    return value.item() if is_one else value


def _check(name: str, value: Any, depth: int = 0) -> None:
    if isinstance(value, str):
        passable(f"hyperparameter {name!r}", value)
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


# --- as sagemaker-training-toolkit hands them to the script (``mapping.py``: ``to_cmd_args``, ``to_env_vars``) ---


def to_cmd_args(hyperparameters: Mapping[str, Any], arguments: Sequence[str] = ()) -> list[str]:
    """Convert ``{"batch-size": 25, "v": True}`` to ``["--batch-size", "25", "-v", "True"]``, sorted by name.

    A one-letter name gets one dash, and an empty one none; a dict becomes ``k=v,k=v``; None becomes an empty string.

    Args:
        hyperparameters: By their names.
        arguments: What follows them as it is. A hyperparameter that is named in there is not passed twice.
    """
    named = values_in(arguments)
    args: list[str] = []
    for name in sorted(hyperparameters):
        option = option_of(name)
        if option not in named:
            args += [option, _argument(hyperparameters[name])]
    return [*args, *arguments]


def option_of(name: str) -> str:
    """Return the option by which a script gets a hyperparameter."""
    return f"--{name}" if len(name) > 1 else f"-{name}" if name else ""


def values_in(arguments: Sequence[str]) -> dict[str, str]:
    """Return what may be options among a script's arguments, each with what it is given at last.

    ``--lr 1``, ``--lr=1`` and ``--lr`` have ``--lr``, with 1, 1 and an empty text. What follows ``--`` is no option.
    """
    found = {}
    own = list(itertools.takewhile(lambda word: word != "--", arguments))
    for word, behind in itertools.pairwise([*own, ""]):
        if word.startswith("-") and word.strip("-"):
            name, equals, value = word.partition("=")
            found[name] = value if equals else behind
    return found


def conflict(hyperparameters: Mapping[str, Any], arguments: Sequence[str]) -> str | None:
    """Say which hyperparameter has another value in the arguments, which the script gets in its place; None if none."""
    given = values_in(arguments)
    for name, value in hyperparameters.items():
        option = option_of(name)
        if option in given and given[option] != _argument(value):
            return f"{option} in arguments has no value, or a value that differs from hyperparameter {name!r}"
    return None


def to_env_vars(values: Mapping[str, Any]) -> dict[str, str]:
    """Convert ``{"model_dir": "/m", "hps": {…}}`` to ``{"SM_MODEL_DIR": "/m", "SM_HPS": "{…}"}``.

    Strings stay as they are, None becomes an empty string, everything else compact ASCII JSON with sorted keys.
    """
    return {f"SM_{str(name).upper()}": _variable(value) for name, value in values.items()}


def _argument(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, Mapping):
        return ",".join(f"{key}={item}" for key, item in sorted(value.items()))
    if isinstance(value, float) and value < 0 and math.isfinite(value):
        return f"{Decimal(repr(float(value))):f}"  # to argparse -1e-05 is an option, and -0.00001 is not
    return str(value)


def _variable(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
