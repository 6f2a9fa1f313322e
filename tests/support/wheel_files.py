"""Wheels that tests write, so that pip can install packages without a network."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path


def wheel(folder: Path, name: str, version: str, *, requires: tuple[str, ...] = (), script: bool = False) -> Path:
    """Write a wheel with one module, which says its version."""
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    files = {
        f"{name}.py": f"version = {version!r}\ndef main(): print('{name} says {version}')\n",
        f"{info}/METADATA": metadata + "".join(f"Requires-Dist: {each}\n" for each in requires),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    if script:
        files[f"{info}/entry_points.txt"] = f"[console_scripts]\n{name}-tool = {name}:main\n"
    record = ""
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(text.encode())}\n"
    files[f"{info}/RECORD"] = record + f"{info}/RECORD,,\n"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for inner, text in files.items():
            archive.writestr(inner, text)
    return path


def write_wheels(folder: Path) -> Path:
    """Write wheels of packages that depend on each other."""
    wheel(folder, "ffalpha", "1.0")
    wheel(folder, "ffalpha", "2.0", script=True)
    wheel(folder, "ffbeta", "1.0", requires=("ffalpha<2",))
    wheel(folder, "ffgamma", "1.0", requires=("ffalpha>=2",))
    return folder
