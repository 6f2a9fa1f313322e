"""Load the shapes of botocore's SageMaker model that describe ``CreateTrainingJob``, without importing botocore.

Importing botocore and reading its whole SageMaker model takes about 0.2 s, which is too long for each ``fit()``. The
shapes that ``CreateTrainingJobRequest`` refers to are 2 % of the model. The shapes are extracted once per botocore
version. fleetfit stores the shapes as JSON under ``$FLEETFIT_CACHE`` (default ``~/.cache/fleetfit``).
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from container.system.files import cache_root, read_json, replace

ROOT_SHAPE = "CreateTrainingJobRequest"
_FORMAT = 1
_VERSION = re.compile(r"^__version__\s*=\s*['\"]([^'\"]+)['\"]", re.MULTILINE)

Shapes = Mapping[str, Mapping[str, Any]]


@functools.cache
def load_shapes() -> Shapes:
    """Return the shapes by name. The shapes are read from the cache. If the cache does not have the shapes, they are
    read from botocore.

    Raises:
        ModuleNotFoundError: botocore is not installed.
    """
    version = botocore_version()
    path = cache_root() / "requests" / f"create-training-job-{version}.json"
    shapes = _read(path)
    if shapes is None:
        shapes = extract_shapes()
        _write(path, shapes)
    return shapes


def botocore_version() -> str:
    """Return the version of the installed botocore.

    The version is read from botocore's source. botocore is imported only if the source does not show the version.

    Raises:
        ModuleNotFoundError: botocore is not installed.
    """
    found = importlib.util.find_spec("botocore")
    if found is None or not found.origin:
        raise ModuleNotFoundError("botocore is not installed. Run `pip install boto3`.", name="botocore")
    match = _VERSION.search(Path(found.origin).read_text(encoding="utf-8"))
    if match is None:
        import botocore

        return str(botocore.__version__)
    return match.group(1)


def extract_shapes() -> dict[str, dict[str, Any]]:
    """Extract the shapes that the request refers to from botocore's model.

    The documentation of the shapes is omitted.
    """
    from botocore.loaders import Loader

    return reachable(Loader().load_service_model("sagemaker", "service-2")["shapes"], [ROOT_SHAPE])


def reachable(shapes: Shapes, roots: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the shapes that the roots refer to, directly or indirectly. The documentation of the shapes is omitted."""
    found: dict[str, dict[str, Any]] = {}
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        shape = _without_documentation(shapes[name])
        found[name] = shape
        waiting += [member["shape"] for member in shape.get("members", {}).values()]
        waiting += [shape[key]["shape"] for key in ("member", "key", "value") if key in shape]
    return found


def _without_documentation(value: Any) -> Any:
    if isinstance(value, Mapping):
        # A member may itself be called "documentation": a member is a mapping, a documentation text is a string.
        return {
            name: _without_documentation(item)
            for name, item in value.items()
            if not (name == "documentation" and isinstance(item, str))
        }
    return value


def _read(path: Path) -> Shapes | None:
    content = read_json(path)
    shapes = content.get("shapes") if content.get("format") == _FORMAT else None
    if not isinstance(shapes, dict) or ROOT_SHAPE not in shapes:
        return None
    return shapes


def _write(path: Path, shapes: Shapes) -> None:
    """Replace the cached file. Ignore errors, because a missing cache only costs time."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace(path, json.dumps({"format": _FORMAT, "shapes": shapes}, separators=(",", ":")).encode())
