"""Handle the differences between tf_keras and Keras 3, and detect to which of these two packages an object belongs."""

from __future__ import annotations

import enum
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from container.contract.errors import RefusedError


class Keras(enum.Enum):
    """A version of Keras: tf_keras (Keras 2) or Keras 3. Checkpoints contain the value."""

    LEGACY = "tf_keras"
    THREE = "keras 3"


def keras_of(thing: Any) -> Keras | None:
    """Return the version of Keras that a model, an optimizer or a layer belongs to. Return None for any other
    object.
    """
    for kind in type(thing).__mro__:
        package = kind.__module__.partition(".")[0]
        if package == "tf_keras":
            return Keras.LEGACY
        if package == "keras":
            version = str(getattr(sys.modules.get("keras"), "__version__", "3"))
            return Keras.LEGACY if version.startswith("2.") else Keras.THREE
    return None


def require_tensorflow_backend() -> None:
    """Raise an error if Keras 3 uses the backend JAX or PyTorch.

    Raises:
        RefusedError: Keras uses a backend other than TensorFlow.
    """
    keras = sys.modules.get("keras")
    backend = keras.backend.backend() if keras is not None and hasattr(keras, "backend") else "tensorflow"
    if backend != "tensorflow":
        raise RefusedError(
            f"Keras runs on {backend!r}, but container.distributed trains with TensorFlow. Set "
            "KERAS_BACKEND=tensorflow."
        )


def optimizer_variables(optimizer: Any) -> list[Any]:
    """Return an optimizer's variables. In the oldest optimizers, ``variables`` is a method instead of a property."""
    found = optimizer.variables
    return list(found() if callable(found) and not isinstance(found, list) else found)


def build_optimizer(optimizer: Any, trainable: Sequence[Any]) -> None:
    """Create the optimizer's variables now. Otherwise the optimizer would create them in the first step."""
    if hasattr(optimizer, "_create_all_weights"):  # tf_keras.optimizers.legacy
        optimizer._create_all_weights(trainable)
    elif not getattr(optimizer, "built", False):
        optimizer.build(trainable)


def value(variable: Any) -> np.ndarray[Any, Any]:
    """Return a variable's value as a numpy array."""
    return np.asarray(variable.numpy())


def is_float(variable: Any) -> bool:
    """Return whether a variable has floating-point values. Counters and the states of random generators
    are integers.
    """
    dtype = variable.dtype
    return "float" in str(getattr(dtype, "name", dtype))


def learning_rate(optimizer: Any) -> float | None:
    """Return the optimizer's learning rate. Return None if a schedule determines the learning rate."""
    rate = getattr(optimizer, "_learning_rate", None)
    if rate is None:
        rate = getattr(optimizer, "learning_rate", None)
    inner = getattr(optimizer, "inner_optimizer", None)
    if inner is not None:
        return learning_rate(inner)
    if callable(rate) and not hasattr(rate, "assign"):
        return None
    return None if rate is None else float(rate.numpy() if hasattr(rate, "numpy") else rate)


def set_learning_rate(optimizer: Any, rate: float) -> None:
    """Set the optimizer's learning rate. The optimizer must not have a schedule."""
    target = getattr(optimizer, "inner_optimizer", None) or optimizer
    current = target.learning_rate
    if hasattr(current, "assign"):
        current.assign(rate)
    else:
        target.learning_rate = rate
