"""Which shared libraries a compiled module asks for, read from its ELF headers without loading it.

Source: the System V ABI, "Object Files" (64-bit little-endian; nothing else runs on the supported platform).
"""

from __future__ import annotations

import dataclasses
import struct
from pathlib import Path

_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NEEDED, _DT_STRTAB, _DT_STRSZ, _DT_RPATH, _DT_RUNPATH = 1, 5, 10, 15, 29


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dynamic:
    """What a library's dynamic section says.

    Attributes:
        needed: Names of the libraries it asks for.
        search: Its own search path, ``$ORIGIN`` replaced by its folder.
    """

    needed: tuple[str, ...]
    search: tuple[Path, ...]


def dynamic(path: Path) -> Dynamic:
    """Read a shared library.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not a 64-bit little-endian ELF file with a dynamic section.
    """
    with path.open("rb") as file:
        header = file.read(64)
        if len(header) < 64 or header[:6] != b"\x7fELF\x02\x01":
            raise ValueError(f"{path} is not a 64-bit little-endian ELF file.")
        offset, size, count = *struct.unpack_from("<Q", header, 32), *struct.unpack_from("<HH", header, 54)
        file.seek(offset)
        table = file.read(size * count)
        if len(table) < size * count or size < 56:
            raise ValueError(f"{path} is cut short.")
        segments = [struct.unpack_from("<IIQQQQQQ", table, size * number) for number in range(count)]
        section = next((segment for segment in segments if segment[0] == _PT_DYNAMIC), None)
        if section is None:
            raise ValueError(f"{path} has no dynamic section.")
        file.seek(section[2])
        data = file.read(section[5])
        entries = [struct.unpack_from("<qQ", data, place) for place in range(0, len(data) - 15, 16)]
        values = dict(entries)
        if _DT_STRTAB not in values or _DT_STRSZ not in values:
            raise ValueError(f"{path} has no dynamic strings.")
        address = values[_DT_STRTAB]
        load = next(
            (segment for segment in segments if segment[0] == _PT_LOAD and 0 <= address - segment[3] < segment[5]), None
        )
        if load is None:
            raise ValueError(f"{path}: its dynamic strings are nowhere.")
        file.seek(load[2] + address - load[3])
        strings = file.read(values[_DT_STRSZ])

    def text(place: int) -> str:
        end = strings.find(b"\0", place)
        return strings[place : end if end >= 0 else None].decode("utf-8", "surrogateescape")

    search = next((text(values[tag]) for tag in (_DT_RUNPATH, _DT_RPATH) if tag in values), "")
    folder = str(path.resolve().parent)
    return Dynamic(
        needed=tuple(text(value) for tag, value in entries if tag == _DT_NEEDED),
        search=tuple(
            Path(part.replace("$ORIGIN", folder).replace("${ORIGIN}", folder)) for part in search.split(":") if part
        ),
    )
