"""Pack our packages for other machines, and define the shell scripts that unpack and run the packages there.

Hosts need only the package ``container``. The packages are stored in the user's cache folder on the machine, in a
folder whose name contains a hash of the packages' content. A folder with this name is used without checking its
content, and jobs with different versions do not conflict. Nothing is installed, and root is not needed.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import importlib
import io
import tarfile
from pathlib import Path

from container.contract.frozen import dataclass

#: The folder of all our files on a host, as a shell expression.
CACHE = "${XDG_CACHE_HOME:-$HOME/.cache}/fleetfit/hosts"
#: Exit statuses of the scripts below: our code is missing on the machine, or the interpreter is missing.
NO_CODE, NO_PYTHON = 90, 91

#: Beginning of a script: finds our code and the interpreter. ``$1``: the code's name; ``$2``: the interpreter: an
#: absolute path, a name in PATH, or the name of an environment of ours; then the arguments of our program. Prints
#: ``$0`` when both were found.
_FIND = (
    f'b="{CACHE}"; c="$b/$1"; p="$2"; shift 2; '
    f'case "$p" in env-*) p="$b/$p/bin/python";; esac; '
    f'test -d "$c" || exit {NO_CODE}; '
    f'p=$(command -v "$p") || exit {NO_PYTHON}; '
    'PATH="${p%/*}:$PATH"; export PATH; echo "$0"; '
)
#: Script that starts ``python -m container`` on a host. The program gets the arguments after ``$2``.
START = f'{_FIND}exec "$p" -I "$c/container/__main__.py" "$@"'
#: Script that calls the function ``main`` of a module of ours. The first argument is the name of the module. ``main``
#: gets the other arguments.
START_MODULE = (
    f'{_FIND}exec "$p" -I -c "import importlib, sys; sys.path.insert(0, sys.argv[1]); '
    'sys.exit(importlib.import_module(sys.argv[2]).main(sys.argv[3:]))" "$c" "$@"'
)
#: Script that unpacks the code from a tar archive on standard input. ``$1``: the code's name. Several of these scripts
#: may run at the same time.
TAKE_CODE = (
    f'set -e; umask 077; b="{CACHE}"; mkdir -p "$b"; t=$(mktemp -d "$b/.code-XXXXXX"); '
    'trap \'rm -rf "$t"\' EXIT; tar -xzf - -C "$t"; mv -T "$t" "$b/$1" 2>/dev/null || test -d "$b/$1"'
)


@dataclass(frozen=True, kw_only=True)
class ShippedCode:
    """A set of our packages, packed for another machine.

    Attributes:
        name: The name of the folder for the packages on a machine. The name contains a hash of the packages' content.
        files: The name and the content of each file.
    """

    name: str
    files: tuple[tuple[str, bytes], ...]

    def archive(self) -> bytes:
        """Return a gzipped tar archive of the files. Equal files result in equal archives."""
        packed = io.BytesIO()
        with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=6, mtime=0) as zipped:
            with tarfile.open(fileobj=zipped, mode="w") as archive:
                for name, content in self.files:
                    info = tarfile.TarInfo(name)
                    info.size = len(content)
                    archive.addfile(info, io.BytesIO(content))
        return packed.getvalue()


@functools.cache
def code(*more: str) -> ShippedCode:
    """Return our package ``container`` for shipping, together with those packages of ours that ``more`` names."""
    files = []
    for name in ("container", *more):
        package = Path(next(iter(importlib.import_module(name).__path__)))
        paths = sorted(path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
        files += [(f"{name}/{path.relative_to(package)}", path.read_bytes()) for path in paths]
    digest = hashlib.sha256()
    for name, content in files:
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return ShippedCode(name=f"code-{digest.hexdigest()[:20]}", files=tuple(files))
