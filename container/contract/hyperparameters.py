"""The hyperparameter codec: typed values <-> the strings of a CreateTrainingJob request.

As in the SageMaker SDK 2.x (``estimator.py``, ``_json_encode_hyperparameters``) every value travels as JSON text, so
that its type survives. The host's side decodes leniently, as the training toolkit does: what is not JSON is a string.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

#: Hyperparameters with these prefixes are the platform's, not the user's.
RESERVED_PREFIXES = ("sagemaker_", "fleetfit_")

PROGRAM = "sagemaker_program"
SUBMIT_DIRECTORY = "sagemaker_submit_directory"
LOG_LEVEL = "sagemaker_container_log_level"
JOB_NAME = "sagemaker_job_name"
REGION = "sagemaker_region"
S3_OUTPUT = "sagemaker_s3_output"
ENABLE_METRICS = "sagemaker_enable_cloudwatch_metrics"
MODEL_DIR = "model_dir"
#: Seconds without a sign of life of any rank after which a job fails, with every rank's stack.
HANG_TIMEOUT = "fleetfit_hang_timeout"

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
    if hasattr(value, "item") and not isinstance(value, str | bytes) and getattr(value, "shape", None) == ():
        value = value.item()
    _check(name, value)
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def encode(hyperparameters: Mapping[str, Any]) -> dict[str, str]:
    """Encode all values; see :func:`encode_value`."""
    return {str(name): encode_value(str(name), value) for name, value in hyperparameters.items()}


def decode_value(text: Any) -> Any:
    """Decode one value as the training toolkit does: JSON if it is JSON, else the value itself."""
    if not isinstance(text, str):
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def decode(hyperparameters: Mapping[str, Any]) -> dict[str, Any]:
    """Decode all values; see :func:`decode_value`."""
    return {name: decode_value(value) for name, value in hyperparameters.items()}


def is_reserved(name: str) -> bool:
    """Whether the name belongs to the platform rather than to the user's script."""
    return name in TOOLKIT_PARAMETERS or name.startswith(RESERVED_PREFIXES)


def _check(name: str, value: Any) -> None:
    if isinstance(value, str):
        if "\0" in value:
            raise ValueError(f"hyperparameter {name!r}: a NUL character cannot be passed to a process; got {value!r}.")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError(f"hyperparameter {name!r}: {value!r} is not valid Unicode text.") from None
    elif value is None or isinstance(value, bool | int):
        pass
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(
                f"hyperparameter {name!r}: {value!r} has no JSON form; pass it as a string, e.g. {str(value)!r}."
            )
    elif isinstance(value, list | tuple):
        for item in value:
            _check(name, item)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                raise ValueError(
                    f"hyperparameter {name!r}: the key {key!r} of a dict must be a string to keep its type."
                )
            _check(name, key)
            _check(name, item)
    else:
        raise ValueError(
            f"hyperparameter {name!r}: a value of type {type(value).__name__} cannot be passed; "
            "allowed: str, int, float, bool, None, and lists and dicts of these."
        )
