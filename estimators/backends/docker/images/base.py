"""A base image without any registry: Debian by debootstrap, imported into the engine.

For sites that cannot reach a registry. It needs root, debootstrap, and a mirror of Debian's packages.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from container.system.files import cache_root
from estimators.job.errors import BackendError, ConfigurationError
from estimators.provision import commands

if TYPE_CHECKING:
    from estimators.backends.docker.engine import Engine

#: The name of what :func:`make` makes.
BASE = "fleetfit-base"
#: Debian's release with each Python: the image's must be the one that its wheels are for.
SUITES = {(3, 11): "bookworm", (3, 13): "trixie"}
#: Python with venv, what the image's sshd is (see the Dockerfile), and the usual certificates.
_PACKAGES = ("python3", "python3-venv", "openssh-server", "openssh-client", "ca-certificates")
_TAIL = 5


def suite() -> str:
    """The Debian release whose Python is the one that runs this.

    Raises:
        ConfigurationError: there is none.
    """
    version = sys.version_info[:2]
    if version not in SUITES:
        known = ", ".join(f"{major}.{minor} ({name})" for (major, minor), name in SUITES.items())
        raise ConfigurationError(
            f"no Debian release has Python {version[0]}.{version[1]}; those with one: {known}. Use such a Python, or "
            "another base image: `fleetfit image build --base IMAGE`."
        )
    return SUITES[version]


def make(
    engine: Engine,
    *,
    name: str = BASE,
    release: str | None = None,
    mirror: str | None = None,
    on_detail: Callable[[str], None] = lambda text: None,
) -> str:
    """Make a base image.

    Args:
        engine: The engine that gets it.
        name: The image's name.
        release: Debian's release; default: the one with this Python.
        mirror: Where its packages are; default: debootstrap's.
        on_detail: Told what is being done.

    Returns:
        The image's id.

    Raises:
        ConfigurationError: this machine cannot do it; the message says what is missing.
        BackendError: debootstrap failed.
    """
    chosen = release or suite()
    program = shutil.which("debootstrap") or shutil.which("debootstrap", path="/usr/sbin:/sbin")
    if program is None:
        raise ConfigurationError("debootstrap is not installed: `sudo apt-get install debootstrap`.")
    if os.geteuid() != 0:
        raise ConfigurationError("debootstrap needs root: run `sudo fleetfit image base`, or use --base with an image.")
    with tempfile.TemporaryDirectory(prefix="fleetfit-base-") as folder, _in_memory(Path(folder, "memory")) as memory:
        root = memory / "root"
        command = [program, "--variant=minbase", f"--include={','.join(_PACKAGES)}", chosen, str(root)]
        _run([*command, *([mirror] if mirror else [])], on_detail)
        for unused in ("var/cache/apt/archives", "var/lib/apt/lists"):
            for entry in (root / unused).glob("*"):
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        for key in (root / "etc/ssh").glob("ssh_host_*"):
            key.unlink()  # an image's own keys would be everybody's
        on_detail("importing it")
        archive = Path(folder, "root.tar")
        _run(["tar", "--numeric-owner", "-C", str(root), "-cf", str(archive), "."], lambda text: None)
        return engine.import_image(archive, name, ['CMD ["/bin/bash"]', "ENV LANG=C.UTF-8"])


@contextlib.contextmanager
def _in_memory(folder: Path) -> Iterator[Path]:
    """Make a folder, of a file system in memory where one may be mounted.

    dpkg waits for the disk after each file, which takes two thirds of the time.
    """
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", str(folder)]
    mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    try:
        yield folder
    finally:
        if mounted:  # debootstrap may have left its own mounts below it
            subprocess.run(["umount", "--lazy", str(folder)], capture_output=True, check=False)


def _run(argv: list[str], on_detail: Callable[[str], None]) -> None:
    """Run a command that ends with us, its lines told as they come."""
    log = cache_root() / "logs" / "image-base.log"

    def line(text: str) -> None:
        if text.startswith("I: "):
            on_detail(text[3:].strip().lower())

    finished = commands.run(argv, log=log, environment=os.environ, on_line=line)
    if finished.returncode != 0:
        raise BackendError(f"{argv[0]} failed: {' / '.join(finished.lines[-_TAIL:])}. All it said is in {log}.")
