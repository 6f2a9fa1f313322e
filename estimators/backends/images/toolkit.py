"""Define the name of our image, and identify the version of our toolkit in an image.

Our toolkit is the ``container`` package, which runs on each host and starts the training script.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import container

#: The image that ``fleetfit image build`` builds.
IMAGE = "fleetfit-training"
#: Label of images that contain our toolkit. The value is the digest of the toolkit's source.
TOOLKIT_LABEL = "fleetfit.toolkit"

#: Folders of the package that are left out of images and archives.
SKIPPED = ("__pycache__",)


def package() -> Path:
    """Return the folder of the ``container`` package, which contains the Dockerfile."""
    return Path(next(iter(container.__path__))).resolve()


def toolkit_digest() -> str:
    """Return a digest of the source of our toolkit. The digest identifies the toolkit's version."""
    digest = hashlib.sha256()
    root = str(package())
    files = []
    for folder, below, names in os.walk(root):  # a job's start waits for this loop; pathlib would take twice as long
        below[:] = [name for name in below if name not in SKIPPED]
        files += [os.path.relpath(os.path.join(folder, name), root) for name in names]
    for file in sorted(files, key=lambda file: file.split(os.sep)):
        digest.update(f"{file}\0".encode())
        with open(os.path.join(root, file), "rb") as content:
            digest.update(hashlib.sha256(content.read()).digest())
    return digest.hexdigest()[:16]


def outdated(labels: Mapping[str, str]) -> bool:
    """Return whether an image contains our toolkit, but not in the version that is installed here."""
    return labels.get(TOOLKIT_LABEL) not in (None, toolkit_digest())
