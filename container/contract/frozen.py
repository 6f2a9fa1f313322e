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

    def dataclass(*, frozen: bool, kw_only: bool = False):
        """Return a decorator that creates a frozen dataclass. The arguments are those of ``dataclasses.dataclass``.

        The functions of the module :mod:`dataclasses` can be used with the class and its objects. A class that defines
        or inherits one of the shared methods keeps its own method.
        """
        assert frozen, "use dataclasses.dataclass if the fields may change"

        def make(cls):
            frozen_bases = [base for base in cls.__mro__[1:] if "__dataclass_params__" in vars(base)]
            if any(base.__setattr__ is not _set for base in frozen_bases):
                return dataclasses.dataclass(cls, frozen=True, kw_only=kw_only)
            missing = [name for name in _SHARED if getattr(cls, name) is getattr(object, name)]
            for base in frozen_bases:
                base.__dataclass_params__.frozen = False
            made = dataclasses.dataclass(cls, repr=False, eq=False, kw_only=kw_only)
            for one in (made, *frozen_bases):  # the standard decorator, too, can then make frozen subclasses
                one.__dataclass_params__.frozen = True
            for name in missing:
                setattr(made, name, _SHARED[name])
            fields = dataclasses.fields(made)
            made._fields_of_init = frozenset(
                field.name for field in fields if field.init or field.default_factory is not dataclasses.MISSING
            )
            made._compared_fields = tuple(field.name for field in fields if field.compare)
            return made

        return make


def _set(self: Any, name: str, value: Any) -> None:
    """Set a field in ``__init__``. Refuse to change a field later."""
    if _protects(self, name) and (name in self.__dict__ or name not in self._fields_of_init):
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
    object.__setattr__(self, name, value)


def _delete(self: Any, name: str) -> None:
    if _protects(self, name):
        raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
    object.__delattr__(self, name)


def _protects(value: Any, name: str) -> bool:
    """Return whether an attribute cannot be changed. A subclass that is no dataclass may have other attributes."""
    return name in value.__dataclass_fields__ or "_fields_of_init" in vars(type(value))


def _text(self: Any) -> str:
    fields = (f"{field.name}={getattr(self, field.name)!r}" for field in dataclasses.fields(self) if field.repr)
    return f"{type(self).__qualname__}({', '.join(fields)})"


def _equals(self: Any, other: object) -> Any:
    return _compared(self) == _compared(other) if type(other) is type(self) else NotImplemented


def _hash(self: Any) -> int:
    return hash(_compared(self))


def _compared(value: Any) -> tuple[Any, ...]:
    return tuple(getattr(value, name) for name in value._compared_fields)


_SHARED = {
    "__setattr__": _set, "__delattr__": _delete, "__repr__": _text, "__eq__": _equals, "__hash__": _hash,
}  # fmt: skip
