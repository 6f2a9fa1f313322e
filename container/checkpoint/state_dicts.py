"""Convert PyTorch's objects with a ``state_dict`` to arrays and to a description in JSON.

This module does not import torch, because the functions work with objects that torch has already created. Tensors are
stored as arrays in the checkpoint's files. The name of an array is the tensor's path in the ``state_dict``. All other
values are stored in the manifest.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from container.checkpoint import state
from container.checkpoint.errors import CheckpointMismatchError
from container.checkpoint.state import Array, ArraySlot, Saveable, TensorSlot, check_names, tensor_of

_PLAIN = (bool, int, float, str, type(None))
#: Rates in an optimizer's groups from which PyTorch's schedulers compute the learning rate.
_SCHEDULERS_RATES = ("max_lr", "min_lr", "swa_lr")


def has_state(value: Any) -> bool:
    """Return whether an object can be saved and restored through its ``state_dict``."""
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))


def state_of(model: Any, optimizer: Any = None) -> Saveable:
    """Return an object for saving and restoring a model. The model may be of any framework.

    Args:
        model: A PyTorch module, a mapping from names to objects with a ``state_dict``, or a model for
            :func:`container.checkpoint.state.state_of`.
        optimizer: The optimizer. None for the optimizer that a Keras model was compiled with.

    Raises:
        TypeError: ``model`` is none of these objects.
    """
    more = {"optimizer": optimizer} if optimizer is not None else {}
    if isinstance(model, Mapping) and any(has_state(value) for value in model.values()):
        return StateDicts({**model, **more})
    if hasattr(model, "named_parameters") and has_state(model):
        return StateDicts({"model": model, **more})
    return state.state_of(model, optimizer)


class StateDicts:
    """The values of objects with a ``state_dict``, such as modules, optimizers, schedulers and loaders.

    Args:
        objects: The objects by their names. The names are also the names of the checkpoint's files.
    """

    def __init__(self, objects: Mapping[str, Any]) -> None:
        for name, value in objects.items():
            if not has_state(value):
                raise TypeError(
                    f"{name}: a {type(value).__qualname__} has no state_dict() and load_state_dict(). Pass "
                    "numbers and texts as metadata=…, and make tensors the buffers of a module."
                )
            if not isinstance(name, str) or not name.isidentifier():
                raise TypeError(f"{name!r} cannot be the name of a part of a checkpoint: use letters, digits and _.")
        self._objects = {name: _unwrapped(value) for name, value in objects.items()}
        self._described: dict[str, Any] = {}

    @property
    def facts(self) -> Mapping[str, Any]:
        """Return the description of all values (see :class:`container.checkpoint.state.Saveable`).

        Call :meth:`groups` first, because that method creates the description.
        """
        return {"state_dicts": self._described}

    def groups(self) -> Mapping[str, list[ArraySlot]]:
        """Return the tensors (see :class:`container.checkpoint.state.Saveable`).

        Raises:
            TypeError: a value cannot be stored in a checkpoint.
        """
        found: dict[str, list[ArraySlot]] = {}
        # Create a new mapping in each call, because a snapshot that is still being written refers to the earlier
        # mapping.
        self._described = {}
        for name, value in self._objects.items():
            slots: dict[str, TensorSlot] = {}
            self._described[name] = _described(value.state_dict(), name, slots)
            found[name] = list(slots.values())
        return found

    def check(self, facts: Mapping[str, Any]) -> None:
        """Validate that the checkpoint has objects of the same names (see
        :class:`container.checkpoint.state.Saveable`).
        """
        saved = facts.get("state_dicts")
        if not isinstance(saved, dict):
            raise CheckpointMismatchError("the checkpoint does not hold PyTorch's state_dicts.")
        if set(saved) != set(self._objects):
            raise CheckpointMismatchError(
                f"the checkpoint holds {', '.join(sorted(saved))}, but the call restores "
                f"{', '.join(sorted(self._objects))}."
            )

    def fill(self, facts: Mapping[str, Any], arrays: Mapping[str, Mapping[str, Array]], *, keep_rate: bool) -> bool:
        """Load the saved ``state_dict`` of each object.

        Args:
            facts: The facts in the checkpoint's manifest.
            arrays: The saved arrays, by the object's name and the array's name.
            keep_rate: Whether optimizers keep their current learning rates.

        Returns:
            Whether a learning rate was kept.

        Raises:
            CheckpointMismatchError: an object does not match the checkpoint. The error names the objects that have
                been, or may have been, changed.
        """
        kept = False
        states = {
            name: _restored(description, arrays.get(name, {})) for name, description in facts["state_dicts"].items()
        }
        modules = [name for name, value in self._objects.items() if hasattr(value, "named_parameters")]
        for name in modules:
            _compare(name, self._objects[name].state_dict(), states[name])
        # Modules come last, because they have been compared already. If an optimizer refuses its state, for example
        # because of another number of parameters, no module has been changed. Optimizers come before their schedulers,
        # because the state of a scheduler contains the rates of its optimizer.
        others = [name for name in self._objects if name not in modules]
        optimizers = [name for name in others if getattr(self._objects[name], "param_groups", None)]
        names = [*optimizers, *(name for name in others if name not in optimizers), *modules]
        schedulers = [value for value in self._objects.values() if keep_rate and _is_scheduler(value)]
        scheduled = {id(group) for scheduler in schedulers for group in scheduler.optimizer.param_groups}
        for index, name in enumerate(names):
            value = self._objects[name]
            groups = value.param_groups if keep_rate and name in optimizers else ()
            before = [({**group}, id(group) in scheduled) for group in groups]
            if keep_rate and _is_scheduler(value):
                _keep_base_rates(
                    states[name], value.state_dict(), [group["lr"] for group in value.optimizer.param_groups]
                )
            try:
                value.load_state_dict(states[name])
            except Exception as error:
                # Only torch's optimizers check the whole state first. A module that refuses one value, for example, has
                # loaded the others.
                torch = sys.modules.get("torch")
                checks_first = torch is not None and isinstance(value, torch.optim.Optimizer)
                changed = names[: index + (not checks_first)]
                reason = str(error).removesuffix(".") or type(error).__name__
                raise CheckpointMismatchError(f"the checkpoint does not match {name}: {reason}.", changed) from error
            for group, (ours, has_scheduler) in zip(value.param_groups if before else (), before, strict=False):
                kept = _keep_rate(group, ours, has_scheduler=has_scheduler) or kept
        return kept


def _is_scheduler(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.optim.lr_scheduler.LRScheduler)


def _keep_rate(group: dict[str, Any], ours: Mapping[str, Any], *, has_scheduler: bool) -> bool:
    """Replace the saved learning rate in one of an optimizer's parameter groups by the script's learning rate.

    If a scheduler is restored too, and has changed the saved rate, the script's initial rate is changed in the same
    proportion. Without this change, the training would start its schedule anew.

    Args:
        group: The group after the restore, which is changed in place.
        ours: The content of the group before the restore, with the script's learning rate.
        has_scheduler: Whether a scheduler of the optimizer is restored, too.

    Returns:
        Whether the learning rate was replaced.
    """
    if "lr" not in ours or "lr" not in group:
        return False
    initial = ours.get("initial_lr", ours["lr"])
    saved = group.get("initial_lr")  # set by the schedulers that compute rates from an initial rate
    group["lr"] = initial * (group["lr"] / saved) if has_scheduler and saved else ours["lr"]
    if saved is not None:
        group["initial_lr"] = initial
    group.update((key, ours[key]) for key in _SCHEDULERS_RATES if key in group and key in ours)
    return True


def _keep_base_rates(saved: dict[str, Any], ours: Mapping[str, Any], rates: list[Any]) -> None:
    """Replace the base learning rates in a scheduler's saved state by the script's base learning rates.

    The scheduler computes the learning rates from the base rates. The saved position in the schedule is kept.

    Args:
        saved: The saved ``state_dict`` of the scheduler, which is changed in place.
        ours: The scheduler's ``state_dict`` before the restore.
        rates: The optimizer's learning rates after the restore.
    """
    saved.update((key, ours[key]) for key in ("base_lrs", "max_lrs") if key in saved and key in ours)
    if "_last_lr" in saved:
        saved["_last_lr"] = list(rates)
    for theirs, mine in zip(saved.get("_schedulers", ()), ours.get("_schedulers", ()), strict=False):
        _keep_base_rates(theirs, mine, rates)


def _unwrapped(value: Any) -> Any:
    """Return the module in a ``DistributedDataParallel``. Return any other object unchanged.

    Therefore a checkpoint can also be restored into a module without such a wrapper.
    """
    return value.module if type(value).__name__ == "DistributedDataParallel" else value


def _compare(name: str, ours: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    """Validate that a saved ``state_dict`` has the names and shapes of a module's ``state_dict``.

    Raises:
        CheckpointMismatchError: names or shapes differ.
    """
    check_names(name, ours, saved)
    for key, value in ours.items():
        if tuple(getattr(value, "shape", ())) != tuple(getattr(saved[key], "shape", ())):
            raise CheckpointMismatchError(
                f"the checkpoint does not match {name}: it has {key} {list(saved[key].shape)} instead of "
                f"{list(value.shape)}."
            )


def _described(value: Any, path: str, slots: dict[str, TensorSlot]) -> Any:
    """Return the description of a value in JSON, and add the value's tensors to ``slots``."""
    if hasattr(value, "detach"):
        return _describe_tensor(value, path, slots)
    if isinstance(value, Mapping):
        return {"dict": [[key, _described(item, f"{path}/{key}", slots)] for key, item in _items(value, path)]}
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_described(item, f"{path}/{index}", slots) for index, item in enumerate(value)]}
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, _PLAIN):
        return {"is": value}
    raise TypeError(f"{path}: a {type(value).__qualname__} in a state_dict cannot be saved in a checkpoint.")


def _items(value: Mapping[Any, Any], path: str) -> list[tuple[Any, Any]]:
    for key in value:
        if not isinstance(key, str | int) or isinstance(key, bool):
            raise TypeError(f"{path}: the key {key!r} of a state_dict must be a string or a whole number.")
    return list(value.items())


def _describe_tensor(tensor: Any, path: str, slots: dict[str, TensorSlot]) -> Any:
    if hasattr(tensor, "placements") or "Sharded" in type(tensor).__name__:
        raise TypeError(
            f"{path} is sharded over the ranks. Give a full state_dict: use StateDictOptions(full_state_dict=True) "
            "of torch.distributed.checkpoint.state_dict. Alternatively, save with torch.distributed.checkpoint."
        )
    while path in slots:  # for example the keys 1 and "1"
        path += "'"
    slots[path] = TensorSlot(path, tensor)
    return {"tensor": path, "dtype": slots[path].kind}


def _restored(description: Any, arrays: Mapping[str, Array]) -> Any:
    """Rebuild a value from its description and the saved arrays."""
    match description:
        case {"tensor": path, "dtype": kind}:
            if path not in arrays:
                raise CheckpointMismatchError(f"the checkpoint lacks {path}.")
            return tensor_of(arrays[path], kind)
        case {"dict": items}:
            return {key: _restored(item, arrays) for key, item in items}
        case {"list": items}:
            return [_restored(item, arrays) for item in items]
        case {"tuple": items}:
            return tuple(_restored(item, arrays) for item in items)
        case {"is": value}:
            return value
    raise CheckpointMismatchError("the checkpoint's description of its state_dicts cannot be read.")
