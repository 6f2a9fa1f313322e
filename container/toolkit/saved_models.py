"""Find models that a script has saved in its working folder. Models in this folder are not uploaded."""

from __future__ import annotations

import os
from pathlib import Path

#: Suffixes of model files. A folder that contains :data:`_SAVED_MODEL` is also a model.
_SUFFIXES = (
    ".keras", ".h5", ".hdf5", ".tflite", ".onnx", ".pt", ".pth", ".ckpt", ".safetensors", ".gguf", ".bin", ".pkl",
    ".pickle", ".joblib", ".ubj", ".mlmodel",
)  # fmt: skip
_SAVED_MODEL = "saved_model.pb"
#: Limits of the search: depth of folders, and total number of entries.
_DEPTH = 4
_ENTRIES = 10_000


def newer_than(folder: str | Path, since: float, suffixes: str | tuple[str, ...] = _SUFFIXES) -> list[str]:
    """Return the models below a folder that were written after a given time, as relative paths.

    Args:
        folder: The folder. Links are not followed, and hidden folders are skipped.
        since: The time in seconds since the epoch.
        suffixes: The suffixes of models. If "", all files are found.
    """
    found: list[str] = []
    waiting = [("", 0)]
    seen = 0
    while waiting and seen < _ENTRIES:
        inner, depth = waiting.pop()
        try:
            with os.scandir(os.path.join(folder, inner)) as entries:
                names = {entry.name: entry for entry in entries}
        except OSError:
            continue
        seen += len(names)
        for name, entry in names.items():
            path = os.path.join(inner, name)
            if entry.is_dir(follow_symlinks=False):
                if depth < _DEPTH and not name.startswith("."):
                    waiting.append((path, depth + 1))
            elif (name.endswith(suffixes) or name == _SAVED_MODEL) and _is_newer(entry, since):
                found.append((inner or ".") if name == _SAVED_MODEL else path)
    return sorted(found)


def _is_newer(entry: os.DirEntry[str], since: float) -> bool:
    try:
        status = entry.stat(follow_symlinks=False)
    except OSError:
        return False
    return entry.is_file(follow_symlinks=False) and status.st_mtime >= since
