"""Read the locations of a job that are on this machine: plain paths and ``file://`` URLs."""

from __future__ import annotations

import os
from pathlib import Path


class LocationError(ValueError):
    """Error for a location that cannot be used here. The message names the location and the alternatives."""


def is_s3(location: str) -> bool:
    """Return whether a location is in S3."""
    return location.startswith("s3://")


def path_here(location: str) -> Path | None:
    """Return the path that a location names. Return None if the location is not on this machine."""
    try:
        return local_path(location)
    except LocationError:
        return None


def local_path(location: str | os.PathLike[str]) -> Path:
    """Return the path that a plain path or a ``file://`` URL names.

    SageMaker's SDK uses the text after ``file://`` unchanged, while ``Path.as_uri()`` escapes special characters
    (``%20``). The unchanged path is returned if it exists. Otherwise the escapes are decoded.

    Raises:
        LocationError: the location is not on this machine, or is a relative path.
    """
    text = os.fspath(location)
    if text.startswith("file://"):
        path = text[len("file://") :]
        if path.startswith("localhost/"):
            path = path[len("localhost") :]
        if not path.startswith("/"):
            raise LocationError(f"{text!r}: a file:// URL of this machine has three slashes, as in 'file:///home/me'.")
        if "%" in path and not os.path.lexists(path):
            from urllib.parse import unquote

            path = unquote(path)
    elif "://" in text:
        scheme = text.partition("://")[0]
        raise LocationError(f"{text!r}: {scheme}:// cannot be used here. Give a path or a file:// URL.")
    else:
        path = os.path.expanduser(text)
    if not os.path.isabs(path):
        raise LocationError(f"{text!r} is a relative path; on a host of a job, give an absolute path.")
    return Path(os.path.normpath(path))
