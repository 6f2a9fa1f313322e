"""A base image without any registry: Debian by debootstrap, imported into the engine.

For sites that cannot reach a registry. It needs root, debootstrap, and a mirror of Debian's packages.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

from container.system import folders
from container.system.files import cache_root
from estimators.job.errors import BackendError, ConfigurationError
from estimators.provision import commands
from estimators.provision.progress import SILENT, Progress

if TYPE_CHECKING:
    from estimators.backends.images.engine import ImageEngine

#: The name of what :func:`make` makes.
BASE = "fleetfit-base"
#: Debian's release with each Python: the image's must be the one that its wheels are for.
SUITES = {(3, 11): "bookworm", (3, 13): "trixie"}
#: Python with venv, what the image's sshd is (see the Dockerfile), and the usual certificates.
_PACKAGES = ("python3", "python3-venv", "openssh-server", "openssh-client", "ca-certificates")
_TAIL = 5
#: Makes ``root`` by a command, the words behind a folder and an archive, and packs it. In memory, where one may mount:
#: dpkg waits for the disk after each file, which takes two thirds of the time. What is mounted, also by debootstrap, is
#: seen by these processes only, and gone with them; a signal ends all of them. Keys of ssh would be everybody's.
_MAKE = """
set -e
trap 'kill -s KILL 0' INT TERM
folder=$1 archive=$2
shift 2
mkdir "$folder/memory"
mount -t tmpfs -o mode=755 tmpfs "$folder/memory" 2>/dev/null || true
cd "$folder/memory"
"$@" & wait $!
rm -rf root/var/cache/apt/archives/* root/var/lib/apt/lists/* root/etc/ssh/ssh_host_*
exec tar --numeric-owner -C root -cf "$archive" .
"""


def suite() -> str:
    """The Debian release whose Python is the one that runs this.

    Raises:
        ConfigurationError: there is none.
    """
    version = sys.version_info[:2]
    if version not in SUITES:
        known = ", ".join(f"{major}.{minor} ({name})" for (major, minor), name in SUITES.items())
        raise ConfigurationError(
            f"no Debian release has Python {version[0]}.{version[1]}. Use one of Debian's Pythons, {known}, or "
            "another base image: `fleetfit image build --base IMAGE`."
        )
    return SUITES[version]


def make(
    engine: ImageEngine,
    *,
    name: str = BASE,
    release: str | None = None,
    mirror: str | None = None,
    progress: Progress = SILENT,
) -> str:
    """Make a base image.

    Args:
        engine: The engine that gets it.
        name: The image's name.
        release: Debian's release; default: the one with this Python.
        mirror: Where its packages are; default: debootstrap's.
        progress: Told what is being done.

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
        raise ConfigurationError(
            "debootstrap needs root: run `sudo fleetfit image base`, or name a base image that exists already: "
            "`fleetfit image build --base IMAGE`."
        )
    with folders.temporary("base") as folder:
        archive = folder / "root.tar"
        command = [program, "--variant=minbase", f"--include={','.join(_PACKAGES)}", chosen, "root"]
        words = [*command, *([mirror] if mirror else [])]
        _run([*_apart(), "sh", "-c", _MAKE, "make", str(folder), str(archive), *words], progress)
        progress.detail("importing the image")
        return engine.import_image(archive, name, ['CMD ["/bin/bash"]', "ENV LANG=C.UTF-8"])


def _apart() -> list[str]:
    """Return what a command is run by to see mounts of its own, where that is allowed; else nothing can be mounted."""
    apart = ["unshare", "--mount"]
    if shutil.which(apart[0]) is None or subprocess.run([*apart, "true"], capture_output=True, check=False).returncode:
        return []
    return apart


def _run(argv: list[str], progress: Progress) -> None:
    """Run a command that ends with us, its lines told as they come."""
    log = cache_root() / "logs" / "image-base.log"

    def line(text: str) -> None:
        if text.startswith("I: "):
            progress.detail(text[3:].strip().lower())

    finished = commands.run(argv, log=log, environment=os.environ, on_line=line)
    if finished.returncode != 0:
        raise BackendError(f"debootstrap failed: {' / '.join(finished.lines[-_TAIL:])}. The whole output is in {log}.")
