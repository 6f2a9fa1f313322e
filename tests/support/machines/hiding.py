"""Empty folders for a machine in place of this machine's, but for the checkout and its environment.

These may lie below a folder that is hidden, such as ``/tmp``: there they are bound again.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

_MS_BIND, _MS_REC = 1 << 12, 1 << 14
#: What the tests' programs are made of.
_CODE = (Path(__file__).resolve().parents[3], Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve())


def hide(folders: Iterable[str], also_keep: Iterable[str] = ()) -> None:
    """Mount an empty folder over each one; needs a mount namespace of one's own.

    Args:
        folders: What is hidden. A folder below ``/tmp`` stands for all of ``/tmp``.
        also_keep: What is seen all the same, beside the code.
    """
    hidden = {"/tmp" if folder.startswith("/tmp/") else folder.rstrip("/") for folder in folders}
    kept = [
        path for path in sorted({*map(str, _CODE), *also_keep}) if any(path.startswith(f"{top}/") for top in hidden)
    ]
    # What lies in another that is kept is seen with it.
    opened = {
        path: os.open(path, os.O_PATH) for path in kept if not any(path.startswith(f"{other}/") for other in kept)
    }
    for folder in sorted(hidden):
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", folder], check=True)
    libc = ctypes.CDLL(None, use_errno=True)
    for path, descriptor in opened.items():
        os.makedirs(path)
        # mount(8) would look the path of the descriptor up, which leads into the empty folder now.
        source = f"/proc/self/fd/{descriptor}".encode()
        if libc.mount(source, path.encode(), None, ctypes.c_ulong(_MS_BIND | _MS_REC), None):
            raise OSError(ctypes.get_errno(), f"{path} cannot be bound: {os.strerror(ctypes.get_errno())}")
        os.close(descriptor)
