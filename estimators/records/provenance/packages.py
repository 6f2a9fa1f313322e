"""What is installed in an environment, in the form of ``pip freeze`` and of ``conda list --export``.

Neither pip nor conda is run (0.3 s and over a second): the same metadata is read here, and the list is cached until
one of the folders it was read from changes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from estimators.job.redaction import mask_text
from estimators.records.provenance import changes, repository
from estimators.records.provenance.files import cache_folder, write_json

#: What ``pip freeze`` leaves out: the tools that install (pip, ``commands/freeze.py``, ``_dev_pkgs``).
_TOOLS = frozenset({"pip"})
_TOOLS_BEFORE_312 = frozenset({"setuptools", "wheel", "distribute"})

_SITE_NAMES = ("site-packages", "dist-packages")
_CACHE_FORMAT = 1
#: scp's form of an address: ``user@host:path`` (pip, ``_internal/vcs/git.py``, ``SCP_REGEX``).
_SCP = re.compile(r"(?P<user>\w+@)?(?P<host>[^/?:]+):(?P<path>\w[^:]*)")


def installed(folders: Sequence[Path] | None = None) -> dict[str, str]:
    """Canonical name -> version of every distribution in the folders, without reading its metadata's text.

    Args:
        folders: The site-packages folders, in the order of ``sys.path``. Default: this interpreter's.
    """
    found: dict[str, str] = {}
    for folder in site_folders() if folders is None else folders:
        for entry in _metadata_folders(folder):
            name, _, version = entry.name.removesuffix(".dist-info").removesuffix(".egg-info").partition("-")
            if version:
                found.setdefault(canonical(name), version.split("-py3", 1)[0])
    return found


def site_folders() -> list[Path]:
    """The folders of this interpreter's ``sys.path`` that distributions are installed in."""
    candidates = [entry for entry in sys.path if os.path.basename(entry) in _SITE_NAMES]
    candidates += [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    return [Path(entry) for entry in dict.fromkeys(candidates) if os.path.isdir(entry)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Interpreter:
    """A Python, as far as its packages are concerned."""

    executable: str
    version: tuple[int, int]
    prefix: Path
    folders: tuple[Path, ...]

    @classmethod
    def current(cls) -> Interpreter:
        """The one that runs this."""
        return cls(
            executable=sys.executable,
            version=sys.version_info[:2],
            prefix=Path(sys.prefix),
            folders=tuple(site_folders()),
        )

    @classmethod
    def of(cls, executable: str) -> Interpreter:
        """Another one, which is run to ask it.

        Raises:
            OSError: it cannot be started.
            subprocess.SubprocessError: it fails or does not answer in time.
            ValueError: its answer makes no sense.
        """
        if os.path.abspath(executable) == os.path.abspath(sys.executable):
            return cls.current()
        code = "import json, sys; print(json.dumps([sys.version_info[:2], sys.prefix, sys.path]))"
        answer = subprocess.run(
            [executable, "-c", code], stdin=subprocess.DEVNULL, capture_output=True, timeout=30, check=True, cwd="/"
        )
        version, prefix, path = json.loads(answer.stdout)
        folders = [Path(entry) for entry in path if os.path.basename(entry) in _SITE_NAMES and os.path.isdir(entry)]
        return cls(
            executable=executable,
            version=(int(version[0]), int(version[1])),
            prefix=Path(prefix),
            folders=tuple(dict.fromkeys(folders)),
        )


def listing(*, python: str = sys.executable, cache: Path | None = None) -> dict[str, Any]:
    """The ``packages`` share of an interpreter.

    Args:
        python: The interpreter that runs the scripts.
        cache: The cache's folder. Default: ``$FLEETFIT_CACHE``.

    Raises:
        OSError: ``python`` cannot be started; see also :meth:`Interpreter.of`.
    """
    interpreter = Interpreter.of(python)
    folders = interpreter.folders
    # A venv that was made in a conda environment is not part of it.
    conda = interpreter.prefix if (interpreter.prefix / "conda-meta").is_dir() else None
    watched = [*folders, *([conda / "conda-meta"] if conda is not None else [])]
    stamps = [[str(folder), folder.stat().st_mtime_ns] for folder in watched if folder.exists()]
    key = hashlib.blake2b(json.dumps([_CACHE_FORMAT, python, stamps]).encode(), digest_size=16).hexdigest()
    path = (cache or cache_folder()) / "packages" / f"{key}.json"
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(known, dict) and isinstance(known.get("freeze"), list):
            return known
    except (OSError, ValueError):
        pass  # not there, or damaged: made anew below
    lines = freeze(folders, version=interpreter.version)
    values = {
        "python": interpreter.executable,
        "freeze": lines,
        "conda": conda_export(conda, folders) if conda is not None else None,
    }
    # The commit of an editable install changes without any of the folders changing.
    if not any(line.startswith("-e git+") for line in lines):
        with contextlib.suppress(OSError):  # without a cache it is listed again next time
            write_json(path, values)
    return values


def freeze(folders: Sequence[Path], *, version: tuple[int, int] = sys.version_info[:2]) -> list[str]:
    """The lines of ``pip freeze``: sorted, direct URLs and editable installs included, the installers left out.

    Args:
        folders: The site-packages folders, in the order of ``sys.path``.
        version: Of the Python they belong to.
    """
    left_out = _TOOLS | (_TOOLS_BEFORE_312 if version < (3, 12) else frozenset())
    entries: dict[str, tuple[str, list[str]]] = {}
    for folder in folders:
        for info in _metadata_folders(folder):
            name, release = _name_and_version(info)
            key = canonical(name)
            if name and key not in left_out and key not in entries:
                entries[key] = (name, _requirement(info, name, release))
    ordered = sorted(entries.values(), key=lambda entry: entry[0].lower())
    return [line for _, lines in ordered for line in lines]


def canonical(name: str) -> str:
    """A distribution's name as PEP 503 normalises it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def conda_export(prefix: Path, folders: Sequence[Path]) -> list[str]:
    """The lines of ``conda list --export``, from the records that conda keeps of what it installed."""
    lines: dict[str, str] = {}
    for record in sorted((prefix / "conda-meta").glob("*.json")):
        parts = record.name.removesuffix(".json").rsplit("-", 2)
        if len(parts) == 3:
            lines[canonical(parts[0])] = "=".join(parts)
    for folder in folders:
        for info in _metadata_folders(folder):
            name, version = _name_and_version(info)
            if name and canonical(name) not in lines and _text(info, "INSTALLER").strip() != "conda":
                lines[canonical(name)] = f"{name.lower()}={version}=pypi_0"
    head = [
        "# This file may be used to create an environment using:",
        "# $ conda create --name <env> --file <this file>",
        f"# platform: {_conda_platform()}",
    ]
    return head + sorted(lines.values())


def _conda_platform() -> str:
    machine = platform.machine()
    return "linux-64" if machine == "x86_64" else f"linux-{machine}"


def _metadata_folders(folder: Path) -> Iterator[Path]:
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return
    for name in names:
        if name.endswith((".dist-info", ".egg-info")):
            yield folder / name


def _text(info: Path, name: str) -> str:
    try:
        return (info / name).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _name_and_version(info: Path) -> tuple[str, str]:
    text = _text(info, "METADATA") or _text(info, "PKG-INFO")
    if not text and info.is_file():  # a flat .egg-info of distutils
        text = info.read_text(encoding="utf-8", errors="replace")
    fields = {"name": "", "version": ""}
    for line in text.splitlines():
        if not line.strip():
            break  # the description follows
        key, _, value = line.partition(":")
        if key.lower() in fields and not fields[key.lower()]:
            fields[key.lower()] = value.strip()
    return fields["name"], fields["version"]


def _requirement(info: Path, name: str, version: str) -> list[str]:
    """A distribution's lines (pip, ``operations/freeze.py``: ``FrozenRequirement.from_dist``)."""
    try:
        direct = json.loads(_text(info, "direct_url.json") or "null")
    except ValueError:
        direct = None
    if not isinstance(direct, dict) or "url" not in direct:
        return [f"{name}=={version}"]
    url = mask_text(_without_password(str(direct["url"])))
    if isinstance(direct.get("dir_info"), dict) and direct["dir_info"].get("editable"):
        return _editable(name, version, _local_path(url))
    return [f"{name} @ {_direct_reference(url, direct)}"]


def _direct_reference(url: str, direct: Mapping[str, Any]) -> str:
    """pip, ``utils/direct_url_helpers.py``: ``direct_url_as_pep440_direct_reference``."""
    fragments: list[str] = []
    vcs = direct.get("vcs_info")
    archive = direct.get("archive_info")
    if isinstance(vcs, dict):
        url = f"{vcs.get('vcs')}+{url}@{vcs.get('commit_id')}"
    elif isinstance(archive, dict) and archive.get("hash"):
        fragments.append(str(archive["hash"]))
    if direct.get("subdirectory"):
        fragments.append(f"subdirectory={direct['subdirectory']}")
    return f"{url}#{'&'.join(fragments)}" if fragments else url


def _editable(name: str, version: str, location: str) -> list[str]:
    head = repository.head(Path(location))
    if head is None:
        return [f"# Editable install with no version control ({name}=={version})", f"-e {location}"]
    remote = changes.remote_of(Path(str(head["root"])))
    if remote is None or head["commit"] is None:
        return [f"# Editable Git install with no remote ({name}=={version})", f"-e {location}"]
    below = os.path.relpath(location, str(head["root"]))
    subdirectory = "" if below == "." else f"&subdirectory={below}"
    egg = name.replace("-", "_")
    return [f"-e git+{mask_text(_remote_url(remote))}@{head['commit']}#egg={egg}{subdirectory}"]


def _remote_url(remote: str) -> str:
    """A remote as pip writes it: a path as ``file://``, and scp's form as ``ssh://``.

    pip, ``_internal/vcs/git.py``: ``_git_remote_to_pip_url``.
    """
    if re.match(r"\w+://", remote):
        return remote
    if os.path.exists(remote):
        return PurePath(remote).as_uri()
    scp = _SCP.fullmatch(remote)
    return f"ssh://{scp['user'] or ''}{scp['host']}/{scp['path']}" if scp else remote


def _local_path(url: str) -> str:
    from urllib.request import url2pathname

    return url2pathname(urlsplit(url).path)


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    if parts.password is None:
        return url
    host = parts.hostname or ""
    return urlunsplit(parts._replace(netloc=f"{host}:{parts.port}" if parts.port else host))
