"""What a machine needs of ours before anything can run there: our packages, sent from here. Hosts need ``container``
alone.

They lie in the user's cache there, under a name that is made from their content, so that a machine has them or not,
and jobs of several versions do not meet. Nothing is installed, and nobody has to be root.
"""

from __future__ import annotations

import dataclasses
import functools
import gzip
import hashlib
import importlib
import io
import tarfile
from pathlib import Path

#: Where everything of ours is on a host, in a shell's words.
CACHE = "${XDG_CACHE_HOME:-$HOME/.cache}/fleetfit/hosts"
#: What the shell at the other end exits with where our code, or the interpreter, is not there.
NO_CODE, NO_PYTHON = 90, 91

#: Finds a program of ours. ``$1``: the code's name; ``$2``: the interpreter, an absolute path, a name in PATH, or
#: the name of an environment of ours; then the program's words. ``$0`` is said when all is there.
_FIND = (
    f'b="{CACHE}"; c="$b/$1"; p="$2"; shift 2; '
    f'case "$p" in env-*) p="$b/$p/bin/python";; esac; '
    f'test -d "$c" || exit {NO_CODE}; '
    f'p=$(command -v "$p") || exit {NO_PYTHON}; '
    'PATH="${p%/*}:$PATH"; export PATH; echo "$0"; '
)
#: Starts ``python -m container`` on a host.
START = f'{_FIND}exec "$p" -I "$c/container/__main__.py" "$@"'
#: Starts a module of ours, the first of the program's words, whose function ``main`` takes the others.
START_MODULE = (
    f'{_FIND}exec "$p" -I -c "import importlib, sys; sys.path.insert(0, sys.argv[1]); '
    'sys.exit(importlib.import_module(sys.argv[2]).main(sys.argv[3:]))" "$c" "$@"'
)
#: Takes the code: ``$1`` is its name; a tar comes in. Two that do so at once do not see each other.
TAKE_CODE = (
    f'set -e; umask 077; b="{CACHE}"; mkdir -p "$b"; t=$(mktemp -d "$b/.code-XXXXXX"); '
    'trap \'rm -rf "$t"\' EXIT; tar -xzf - -C "$t"; mv -T "$t" "$b/$1" 2>/dev/null || test -d "$b/$1"'
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShippedCode:
    """Packages of ours.

    Attributes:
        name: What they are called on a machine: made from their content.
        files: Their files' names and contents.
    """

    name: str
    files: tuple[tuple[str, bytes], ...]

    def archive(self) -> bytes:
        """Return a gzipped tar of them; the same files make the same archive."""
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
    """Read our ``container`` package, and ``more`` of ours."""
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
