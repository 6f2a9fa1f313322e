"""An image with the official training toolkit from PyPI, ``sagemaker-training``, instead of ours."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from container.system.files import cache_root
from estimators.backends.images.engine import ImageEngine

NAME = "fleetfit-test-official"
VERSION = "5.1.4"

_DOCKERFILE = """\
ARG BASE_IMAGE
FROM ${BASE_IMAGE} AS packages
COPY wheels /wheels
RUN python3 -m venv /opt/venv && /opt/venv/bin/python -m pip install --quiet --no-index --no-deps /wheels/*.whl
FROM ${BASE_IMAGE}
COPY --from=packages /opt/venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1
LABEL official.version=5.1.4
"""


def build(engine: ImageEngine, base: str) -> str:
    """Build it, unless the engine has it."""
    if engine.has_image(NAME) and engine.image(NAME).labels.get("official.version") == VERSION:
        return NAME
    with tempfile.TemporaryDirectory() as folder:
        context = Path(folder)
        shutil.copytree(_wheels(), context / "wheels", copy_function=os.link if _same_disk(context) else shutil.copy2)
        (context / "Dockerfile").write_text(_DOCKERFILE)
        engine.build(context, NAME, {"BASE_IMAGE": base})
    return NAME


def _wheels() -> Path:
    """The toolkit's wheels and those it needs, kept in the cache: the toolkit itself is compiled here."""
    folder = cache_root() / "tests" / f"sagemaker-training-{VERSION}-py{sys.version_info[0]}{sys.version_info[1]}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=folder.parent) as staged:
                wheels = Path(staged, "wheels")
                words = ["wheel", "--quiet", "--wheel-dir", str(wheels), f"sagemaker-training=={VERSION}"]
                subprocess.run([sys.executable, "-m", "pip", *words], check=True, timeout=600)
                os.rename(wheels, folder)
    return folder


def _same_disk(folder: Path) -> bool:
    return os.stat(cache_root()).st_dev == os.stat(folder).st_dev
