"""Define frozen dataclasses that take little time to create.

For each frozen dataclass, Python 3.11 compiles six methods. Before a job's script runs, the processes of the job create
about 200 frozen dataclasses one after the other, which would take 70 ms. With the decorator of this module, Python
compiles only ``__init__`` for each class, and all classes share the other methods.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass  # type checkers know the decorator of the standard library
else:

    def dataclass(*, frozen: bool, repr: bool = True, eq: bool = True, kw_only: bool = False):
        """Create a frozen dataclass, as ``dataclasses.dataclass`` does. See there for the arguments.

        The functions of the module :mod:`dataclasses` can be used with the class and its objects. A class that defines
        or inherits one of the shared methods keeps its own method.
        """
        assert frozen, "use dataclasses.dataclass if the fields may change"
        shared = {"__setattr__": _set, "__delattr__": _delete}
        shared |= {"__repr__": _text} if repr else {}
        shared |= {"__eq__": _equals, "__hash__": _hash} if eq else {}

        def make(cls):
            missing = [name for name in shared if getattr(cls, name) is getattr(object, name)]
            made = dataclasses.dataclass(cls, repr=False, eq=False, kw_only=kw_only)
            for name in missing:
                setattr(made, name, shared[name])
            return made

        return make


def _set(self: Any, name: str, value: Any) -> None:
    """Set a field in ``__init__``. Refuse to change a field later."""
    if name in self.__dict__ or name not in self.__dataclass_fields__:
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
    object.__setattr__(self, name, value)


def _delete(self: Any, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _text(self: Any) -> str:
    fields = (f"{field.name}={getattr(self, field.name)!r}" for field in dataclasses.fields(self) if field.repr)
    return f"{type(self).__qualname__}({', '.join(fields)})"


def _equals(self: Any, other: object) -> Any:
    return _compared(self) == _compared(other) if type(other) is type(self) else NotImplemented


def _compared(value: Any) -> tuple[Any, ...]:
    return tuple(getattr(value, field.name) for field in dataclasses.fields(value) if field.compare)


def _hash(self: Any) -> int:
    hashed = (field for field in dataclasses.fields(self) if (field.compare if field.hash is None else field.hash))
    return hash(tuple(getattr(self, field.name) for field in hashed))
