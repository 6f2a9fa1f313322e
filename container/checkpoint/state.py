"""Read and assign the values that a checkpoint contains: the variables of a Keras model and its optimizer, or a mapping
of arrays or variables.

This module imports neither TensorFlow nor PyTorch. The functions work with objects of tf_keras, Keras 3 and PyTorch.

A saved value and a variable of a Keras model are matched by their position, because the numbers in Keras' names differ
between processes. The shapes of both, and the names without the numbers, must be equal. A variable that a
parameter-server strategy has partitioned is saved as one array, so that the variable can be restored under another
strategy, or with another number of servers.
"""

from __future__ import annotations

import abc
import re
import sys
from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any, Protocol

import numpy as np

from container.checkpoint.errors import CheckpointMismatchError
from container.checkpoint.keras_compat import Keras, keras_of, optimizer_variables
from container.checkpoint.tensors import Spec

Array = np.ndarray[Any, Any]

_PART = re.compile(r"(?P<whole>.+)/part_(?P<number>\d+)(?::0)?")
#: A type of PyTorch that numpy does not have -> the numpy type of the same size that stores its bits.
_KEPT_AS = {"bfloat16": "int16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}
_INNER_NUMBER = re.compile(r"_\d+(?=_|$)")
_NUMBER = re.compile(r"_\d+$")


class ArraySlot(abc.ABC):
    """An array that can be saved and restored.

    Attributes:
        spec: The name, data type and shape of the array.
    """

    def __init__(self, spec: Spec) -> None:
        self.spec = spec

    @abc.abstractmethod
    def read(self) -> Array:
        """Return the value. The returned array may share its memory with the variable."""

    @abc.abstractmethod
    def assign(self, content: Array) -> None:
        """Assign a value."""


class Saveable(Protocol):
    """The interface of values that can be saved and restored, such as a model's variables."""

    @property
    def facts(self) -> Mapping[str, Any]:
        """Return facts about the values, such as the version of Keras. The facts are stored in the checkpoint's
        manifest.
        """

    def groups(self) -> Mapping[str, list[ArraySlot]]:
        """Return the arrays, grouped by the name of the file that stores them."""

    def check(self, facts: Mapping[str, Any]) -> None:
        """Validate that a checkpoint contains the same kind of values.

        Args:
            facts: The facts in the checkpoint's manifest.

        Raises:
            CheckpointMismatchError: the checkpoint contains values of a different kind.
        """


def state_of(model: Any, optimizer: Any = None) -> Saveable:
    """Return an object for saving and restoring a model.

    Args:
        model: A Keras model, a mapping from names to arrays or variables, or an object with :class:`Saveable`'s
            methods.
        optimizer: The optimizer. None for the optimizer that the model was compiled with, if any.

    Raises:
        TypeError: ``model`` is none of these objects.
    """
    if isinstance(model, Mapping):
        if optimizer is not None:
            raise TypeError(
                "optimizer=… needs a model, but a mapping was given. Put the optimizer's variables into that mapping."
            )
        return ArrayState(model)
    if callable(getattr(model, "groups", None)):
        return model  # type: ignore[no-any-return]
    if keras_of(model) is not None:
        return KerasState(model, optimizer)
    raise TypeError(
        f"a {type(model).__qualname__} cannot be saved. Give a Keras model, a PyTorch module, or a dict whose values "
        "are numpy arrays, variables or objects with a state_dict."
    )


class ArrayState:
    """The values of a mapping of names to variables or numpy arrays. A restore changes the arrays in place.

    Args:
        arrays: The mapping. The mapping may also contain PyTorch tensors, numbers and numpy scalars. A restore changes
            tensors in place, and replaces numbers and numpy scalars in the mapping.
    """

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        self._arrays = arrays

    @property
    def facts(self) -> Mapping[str, Any]:
        """Return the types of the tensors that are stored as another type (see :class:`Saveable`)."""
        kinds = {
            name: kind
            for name, value in self._arrays.items()
            if hasattr(value, "detach") and (kind := _kind_of(value)) in _KEPT_AS
        }
        return {"kinds": kinds} if kinds else {}

    def groups(self) -> Mapping[str, list[ArraySlot]]:
        """Return the slots of the arrays (see :class:`Saveable`)."""
        return {"arrays": [self._slot(name, value) for name, value in self._arrays.items()]}

    def _slot(self, name: str, value: Any) -> ArraySlot:
        if hasattr(value, "assign"):
            return _VariableSlot(name, [value])
        return TensorSlot(name, value) if hasattr(value, "detach") else _ArraySlot(self._arrays, name)

    def check(self, facts: Mapping[str, Any]) -> None:
        """Validate the types of the tensors, and that all arrays can be changed in place (see :class:`Saveable`).

        Raises:
            TypeError: an array cannot be changed in place.
        """
        saved, own = facts.get("kinds") or {}, self.facts.get("kinds") or {}
        for name, value in self._arrays.items():
            if saved.get(name) != own.get(name):
                raise CheckpointMismatchError(
                    f"{name} was saved as {saved.get(name, 'another type')}, but it is to be restored into a value of "
                    f"the type {own.get(name) or getattr(value, 'dtype', type(value).__qualname__)}."
                )
            fixed = not hasattr(value, "assign") and not hasattr(value, "detach")
            if fixed and hasattr(value, "__array__") and not isinstance(value, np.ndarray | np.generic):
                raise TypeError(
                    f"{name} cannot be restored: a {type(value).__qualname__} cannot be changed in place. Give a numpy "
                    "array or a variable."
                )


class _ArraySlot(ArraySlot):
    """A numpy array or a number in a mapping."""

    def __init__(self, arrays: Mapping[str, Any], name: str) -> None:
        self._arrays = arrays
        array = np.asarray(arrays[name])
        super().__init__(Spec(name, array.dtype.name, array.shape))

    def read(self) -> Array:
        return np.asarray(self._arrays[self.spec.name])

    def assign(self, content: Array) -> None:
        value = self._arrays[self.spec.name]
        if isinstance(value, np.ndarray):
            value[...] = content
        elif isinstance(self._arrays, MutableMapping):
            self._arrays[self.spec.name] = content.tolist() if isinstance(value, list) else type(value)(content[()])
        else:
            raise TypeError(
                f"{self.spec.name}: a {type(value).__qualname__} cannot be restored into a read-only mapping. "
                "Use a dict"
            )


class TensorSlot(ArraySlot):
    """A slot for a PyTorch tensor.

    Args:
        name: The name of the array.
        tensor: The tensor.

    Attributes:
        kind: The name of the tensor's type.

    Raises:
        TypeError: the tensor is sparse.
    """

    def __init__(self, name: str, tensor: Any) -> None:
        self.kind = _kind_of(tensor)
        self._tensor = tensor
        if str(tensor.layout) != "torch.strided":
            raise TypeError(f"{name}: a sparse tensor cannot be saved in a checkpoint. Save {name}.to_dense().")
        super().__init__(Spec(name, _KEPT_AS.get(self.kind, self.kind), tuple(tensor.shape)))

    def read(self) -> Array:
        whole = self._tensor.detach().cpu().contiguous()
        if self.kind in _KEPT_AS:
            whole = whole.view(getattr(sys.modules["torch"], self.spec.dtype))
        return np.asarray(whole.numpy())

    def assign(self, content: Array) -> None:
        with sys.modules["torch"].no_grad():
            self._tensor.copy_(tensor_of(content, self.kind))


def _kind_of(tensor: Any) -> str:
    """Return the name of a PyTorch tensor's type, such as ``bfloat16``."""
    return str(tensor.dtype).removeprefix("torch.")


def tensor_of(array: Array, kind: str) -> Any:
    """Return a saved array as a PyTorch tensor of the given type."""
    torch = sys.modules["torch"]
    tensor = torch.from_numpy(np.array(array, copy=True, order="C"))
    return tensor.view(getattr(torch, kind)) if kind in _KEPT_AS else tensor


class KerasState:
    """The variables of a Keras model and of its optimizer.

    Args:
        model: A built model of tf_keras or Keras 3.
        optimizer: The optimizer. None for the optimizer that the model was compiled with.
    """

    def __init__(self, model: Any, optimizer: Any = None) -> None:
        self._model = model
        self._optimizer: Any = optimizer if optimizer is not None else getattr(model, "optimizer", None)
        keras = keras_of(model)
        self._keras = keras.value if keras is not None else None
        self._key: tuple[int, ...] = ()
        self._groups: dict[str, list[ArraySlot]] = {}

    @property
    def facts(self) -> Mapping[str, Any]:
        """Return the facts about Keras (see :class:`Saveable`)."""
        return {"keras": self._keras}

    @property
    def built(self) -> bool:
        """Return whether the model has created its variables. A subclassed model may create its variables only when it
        is first called.
        """
        return bool(getattr(self._model, "built", True) and self._model.weights)

    @property
    def unbuilt(self) -> str:
        """Return the error message for a model without variables."""
        return (
            f"model {self._model.name!r} has no variables yet, so nothing can be saved or restored. Begin the model "
            "with an Input of known shape, or call it with a batch first: model(inputs)."
        )

    def groups(self) -> Mapping[str, list[ArraySlot]]:
        """Return the variables (see :class:`Saveable`).

        Raises:
            CheckpointMismatchError: the model has no variables yet.
        """
        model = self._model
        if not self.built:
            raise CheckpointMismatchError(self.unbuilt)
        variables = {"model": [*model.weights, *self._generators()]}
        if self._optimizer is not None:
            variables["optimizer"] = self._optimizer_variables()
        key = tuple(id(variable) for group in variables.values() for variable in group)
        if key != self._key:  # analysing the variables takes longer than finding them
            self._groups = {
                group: [_VariableSlot(f"{index}/{name}", parts) for index, (name, parts) in enumerate(_joined(found))]
                for group, found in variables.items()
            }
            self._key = key
        return self._groups

    def check(self, facts: Mapping[str, Any]) -> None:
        """Validate that the checkpoint was saved with the same version of Keras (see :class:`Saveable`)."""
        saved = facts.get("keras")
        if saved != self._keras:
            raise CheckpointMismatchError(
                f"the checkpoint holds {f'a model of {saved}' if saved else 'no Keras model'}, but the model to "
                f"restore is of {self._keras}, which has other variables. TF_USE_LEGACY_KERAS=1 selects tf_keras."
            )

    def _generators(self) -> list[Any]:
        """Return the variables with the states of Keras 3's random generators."""
        if self._keras != Keras.THREE.value:
            return []
        known = {id(variable) for variable in (*self._model.weights, *self._model.metrics_variables)}
        return [variable for variable in self._model.variables if id(variable) not in known]

    def _optimizer_variables(self) -> list[Any]:
        """Return the optimizer's variables. Create the variables that the optimizer would otherwise create only in the
        first step.
        """
        optimizer = self._optimizer
        trainable = self._model.trainable_variables
        if hasattr(optimizer, "_create_all_weights"):  # tf_keras' legacy optimizers
            optimizer._create_all_weights(trainable)
        elif not getattr(optimizer, "built", False):
            strategy = getattr(self._model, "distribute_strategy", None)
            if strategy is not None:
                with strategy.scope():
                    optimizer.build(trainable)
            else:
                optimizer.build(trainable)
        found = optimizer_variables(optimizer)
        rate = getattr(optimizer, "learning_rate", None)  # tf_keras does not include it in the variables
        if hasattr(rate, "assign") and all(rate is not variable for variable in found):
            found.append(rate)
        return found


def compare(group: str, slots: Iterable[ArraySlot], saved: Mapping[str, Array], *, loose: bool) -> None:
    """Validate that saved arrays match the slots.

    Args:
        group: Name of the group of arrays, for messages.
        slots: The :class:`ArraySlot` objects to restore into.
        saved: The saved arrays by their names, in the order of saving.
        loose: Whether to match arrays and slots by position, as for a Keras model. If false, arrays and slots are
            matched by name.

    Raises:
        CheckpointMismatchError: the arrays do not match the slots. The message names the first difference.
    """
    slots = list(slots)
    if not loose:
        check_names(f"the {group}", [slot.spec.name for slot in slots], saved)
    pairs = zip(slots, saved.items(), strict=False)
    for slot, (name, array) in pairs if loose else [(slot, (slot.spec.name, saved[slot.spec.name])) for slot in slots]:
        ours, theirs = slot.spec, Spec(name, array.dtype.name, tuple(array.shape))
        if (ours.shape, ours.dtype) != (theirs.shape, theirs.dtype) or (
            loose and not _same(group, ours.name, theirs.name)
        ):
            raise CheckpointMismatchError(
                f"the checkpoint does not match the {group}: it has {_text(theirs)} instead of {_text(ours)}."
            )
    if len(slots) != len(saved):
        raise CheckpointMismatchError(
            f"the checkpoint does not match the {group}: it has {len(saved)} variables instead of {len(slots)}."
        )


def check_names(what: str, ours: Iterable[str], saved: Iterable[str]) -> None:
    """Validate that a checkpoint's values and the values of the object to restore have the same names.

    Raises:
        CheckpointMismatchError: names differ.
    """
    lacking, beyond = sorted(set(ours) - set(saved)), sorted(set(saved) - set(ours))
    if lacking or beyond:
        parts = [
            f"lacks {', '.join(lacking[:5])}" if lacking else "",
            f"also has {', '.join(beyond[:5])}" if beyond else "",
        ]
        differences = " and ".join(filter(None, parts))
        raise CheckpointMismatchError(f"the checkpoint does not match {what}: it {differences}.")


def is_learning_rate(name: str) -> bool:
    """Return whether the optimizer's variable with this name is the learning rate."""
    return _bare("optimizer", name).endswith("learning_rate")


def _same(group: str, ours: str, theirs: str) -> bool:
    """Return whether two names can belong to the same variable."""
    one, other = _bare(group, ours), _bare(group, theirs)
    # One of the names may have an additional prefix: tf_keras adds the optimizer's name to variables that are created
    # within a training step; Keras 3 adds the name of an optimizer that wraps the variable's optimizer.
    return one == other or (group == "optimizer" and (one.endswith(f"/{other}") or other.endswith(f"/{one}")))


def _text(spec: Spec) -> str:
    return f"{spec.name.partition('/')[2] or spec.name} {list(spec.shape)} {spec.dtype}"


def _bare(group: str, name: str) -> str:
    """Remove the parts of a variable's name that depend on the process, the strategy or the optimizer's name.

    For example, ``3/sequential_1/dense_2/kernel`` and ``3/sequential/dense/kernel`` are names of the same variable.
    """
    parts = [_NUMBER.sub("", part) for part in name.removesuffix(":0").split("/")[1:]]
    if group == "optimizer":
        parts = [_INNER_NUMBER.sub("", part) for part in parts]  # Keras 3 joins the parts of a variable's path with "_"
        if len(parts) == 2:
            parts = parts[1:]  # Keras 3: the optimizer's name
        elif parts:
            parts[0] = parts[0].removeprefix("Distributed")  # Horovod's prefix of the name
    return "/".join(parts)


def _joined(variables: Iterable[Any]) -> list[tuple[str, list[Any]]]:
    """Group the consecutive parts (``…/part_0``, ``…/part_1``) of each partitioned variable.

    Returns:
        A pair for each whole variable: its name, and the list of its parts. For a variable that is not partitioned, the
        list contains only the variable.
    """
    found: list[tuple[str, list[Any]]] = []
    # Models list the parts, optimizers list the object that holds the parts (TensorFlow's ShardedVariable).
    for variable in (part for whole in variables for part in getattr(whole, "variables", [whole])):
        name = str(getattr(variable, "path", None) or variable.name)
        match = _PART.fullmatch(name)
        if match and int(match["number"]) > 0 and found and found[-1][0] == match["whole"]:
            found[-1][1].append(variable)
        else:
            found.append((match["whole"] if match else name.removesuffix(":0"), [variable]))
    return found


class _VariableSlot(ArraySlot):
    """A slot for a variable, or for the parts of a variable that was partitioned along its first axis."""

    def __init__(self, name: str, parts: list[Any]) -> None:
        shapes = [tuple(int(size) for size in part.shape) for part in parts]
        self._parts = parts
        self._rows = [shape[0] for shape in shapes] if len(parts) > 1 else []
        shape = (sum(self._rows), *shapes[0][1:]) if self._rows else shapes[0]
        super().__init__(Spec(name, _dtype_name(parts[0]), shape))

    def read(self) -> Array:
        values = [_value(part) for part in self._parts]
        return np.concatenate(values) if self._rows else values[0]

    def assign(self, content: Array) -> None:
        pieces = np.split(content, np.cumsum(self._rows)[:-1]) if self._rows else [content]
        for part, piece in zip(self._parts, pieces, strict=True):
            part.assign(piece)


def _value(variable: Any) -> Array:
    """Return a variable's value without involving other processes of the cluster.

    Under a multi-worker strategy, the usual way to read a variable can be a collective operation. Rank 0 must not start
    such an operation alone. This process' own copies of the variable have the same value. Some variables, such as
    moving averages, have a copy for each replica, which only that replica updates. For such a variable, the mean or the
    sum of this process' copies is returned, depending on the variable's aggregation.
    """
    copies = getattr(variable, "values", None)
    if not isinstance(copies, tuple) or not copies:
        return np.asarray(variable.numpy())
    if len(copies) > 1 and getattr(getattr(variable, "aggregation", None), "name", "") in ("MEAN", "SUM"):
        on_read = getattr(getattr(variable, "synchronization", None), "name", "") == "ON_READ"
        if on_read:
            found = [copy.numpy() for copy in copies]
            return np.asarray(np.mean(found, axis=0) if variable.aggregation.name == "MEAN" else np.sum(found, axis=0))
    return np.asarray(copies[0].numpy())


def _dtype_name(variable: Any) -> str:
    dtype = variable.dtype
    return str(getattr(dtype, "name", dtype))
