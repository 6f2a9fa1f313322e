"""Store numpy arrays in one block of memory, which is written to a file in the safetensors format.

The format is open: a header in JSON, followed by the raw arrays without gaps. Many libraries can read this format.
Therefore a checkpoint's ``model.safetensors`` can be used without fleetfit.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from container.checkpoint.errors import CheckpointError
from container.contract.frozen import dataclass

#: numpy's name of a data type -> the format's name.
_CODES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "uint16": "U16",
    "int16": "I16",
    "uint32": "U32",
    "int32": "I32",
    "uint64": "U64",
    "int64": "I64",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "complex64": "C64",
}
_NAMES = {code: name for name, code in _CODES.items()}
_LENGTH = struct.Struct("<Q")
#: Maximum size of a header in bytes; longer headers are refused, as by the format's own library.
_HEADER_LIMIT = 100_000_000


class TensorsError(ValueError):
    """Raised if a file of arrays is damaged or incomplete."""


@dataclass(frozen=True)
class Spec:
    """The name, data type and shape of an array.

    Attributes:
        name: Name of the array, unique in its file.
        dtype: The name of the data type: one of numpy's names, ``bfloat16``, ``float8_e4m3fn`` or ``float8_e5m2``.
        shape: Shape of the array.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Return the total size of the array's values in bytes."""
        size = dtype_of(self.dtype).itemsize
        for dimension in self.shape:
            size *= dimension
        return size


class Arena:
    """A block of memory for a set of arrays. The block is reused for later snapshots of these arrays.

    Reuse saves time: the first write to newly allocated memory takes many times as long as the copying itself.

    Args:
        specs: The name, data type and shape of each array.

    Attributes:
        specs: The name, data type and shape of each array.
        views: numpy arrays that refer to the block of memory, by name.

    Raises:
        CheckpointError: the file format does not support the data type of an array, or two arrays have the same name.
    """

    def __init__(self, specs: Sequence[Spec]) -> None:
        self.specs = tuple(specs)
        for spec in self.specs:
            if spec.dtype not in _CODES:
                raise CheckpointError(
                    f"{spec.name}: arrays of type {spec.dtype} cannot be saved. Allowed: {', '.join(_CODES)}."
                )
        # The widest types come first, so that all arrays are aligned without gaps.
        order = sorted(self.specs, key=lambda spec: -dtype_of(spec.dtype).itemsize)
        offsets: dict[str, int] = {}
        end = 0
        for spec in order:
            offsets[spec.name] = end
            end += spec.bytes
        if len(offsets) != len(self.specs):
            raise CheckpointError("two arrays have the same name")
        self._header = _header(self.specs, offsets)
        self._memory = _fresh_memory(end)
        self.views = {
            spec.name: self._memory[offsets[spec.name] : offsets[spec.name] + spec.bytes]
            .view(dtype_of(spec.dtype))
            .reshape(spec.shape)
            for spec in self.specs
        }

    @property
    def bytes(self) -> int:
        """Return the size of the file in bytes."""
        return len(self._header) + self._memory.nbytes

    def buffers(self) -> list[memoryview]:
        """Return the file's content as a list of buffers: the header and the arrays."""
        return [memoryview(self._header), self._memory.data]


def parse(content: np.ndarray[Any, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """Parse the content of a safetensors file.

    Args:
        content: The file's bytes (uint8).

    Returns:
        The arrays by name. The arrays refer to the memory of ``content``.

    Raises:
        TensorsError: the content is not a complete safetensors file.
    """
    if content.size < _LENGTH.size:
        raise TensorsError("it ends within its header")
    (length,) = _LENGTH.unpack(content[: _LENGTH.size].tobytes())
    start = _LENGTH.size + length
    if length > _HEADER_LIMIT or start > content.size:
        raise TensorsError("it ends within its header")
    arrays = {}
    try:
        header = json.loads(content[_LENGTH.size : start].tobytes())
        for name, entry in header.items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                data = content[start + begin : start + end]
                arrays[name] = data.view(dtype_of(_NAMES[entry["dtype"]])).reshape(entry["shape"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise TensorsError(f"its header is not valid: {error!r}") from error
    return arrays


def dtype_of(name: str) -> np.dtype[Any]:
    """Return the numpy dtype with the given name.

    Data types that numpy does not have are defined by the package ml_dtypes, which is installed with TensorFlow.
    """
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return found


def _fresh_memory(size: int) -> np.ndarray[Any, Any]:
    """Allocate ``size`` bytes. Use huge pages if possible, so that the first snapshot causes fewer page faults."""
    memory = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8, size)


def _header(specs: Sequence[Spec], offsets: Mapping[str, int]) -> bytes:
    header = {
        spec.name: {
            "dtype": _CODES[spec.dtype],
            "shape": list(spec.shape),
            "data_offsets": [offsets[spec.name], offsets[spec.name] + spec.bytes],
        }
        for spec in specs
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return _LENGTH.pack(len(text)) + text
