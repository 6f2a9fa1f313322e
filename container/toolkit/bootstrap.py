"""Unpack and run our toolkit in a container whose image does not contain it. This file is the container's entry point.

This file is beside ``toolkit.tar.gz`` in a channel, and runs alone, on the image's Python. The file imports none of our
modules. Even an old Python must be able to parse this file, because the file reports that Python is too old.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tarfile
import tempfile

LEAST = (3, 10)
ARCHIVE = "toolkit.tar.gz"


def main() -> None:
    """Replace this process by the toolkit. If the toolkit cannot be started, write the reason (:func:`refuse`), and
    return.
    """
    if sys.version_info < LEAST:
        has = ".".join(map(str, sys.version_info[:2]))
        refuse(
            f"fleetfit's toolkit needs Python 3.10 or newer, but this image has {has} ({sys.executable}). Use an "
            "image with a newer Python, such as fleetfit's own image."
        )
        return
    here = os.path.dirname(os.path.abspath(__file__))
    target = tempfile.mkdtemp(prefix="fleetfit-toolkit-")
    try:
        with tarfile.open(os.path.join(here, ARCHIVE)) as archive:
            archive.extractall(target)  # the archive has the same origin as this file
    except (OSError, tarfile.TarError) as error:
        refuse(f"fleetfit's toolkit could not be unpacked: {error}")
        return
    program = os.path.join(target, "container", "__main__.py")
    os.execv(sys.executable, [sys.executable, "-I", program, "train"])


def refuse(reason: str) -> None:
    """Write to standard error, and to ``output/failure``, why the toolkit cannot be started. SageMaker reads
    ``output/failure``.
    """
    sys.stderr.write(reason + "\n")
    failure = os.path.join(os.environ.get("SAGEMAKER_BASE_DIR", "/opt/ml"), "output", "failure")
    with contextlib.suppress(OSError), open(failure, "w", encoding="utf-8") as file:
        file.write(reason)


if __name__ == "__main__":
    main()
    sys.exit(1)
