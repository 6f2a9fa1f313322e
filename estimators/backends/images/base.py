"""Build a base image without a registry. debootstrap installs Debian, and the container engine imports the result.

The base image is for sites that cannot reach a registry. Building it needs root, debootstrap, and a mirror of Debian's
packages.
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
from estimators.provision.progress import SILENT, ProgressDisplay

if TYPE_CHECKING:
    from estimators.backends.images.engine import ImageEngine

#: The default name of the base image.
BASE = "fleetfit-base"
#: Python version -> the Debian release that has it; the image's Python must match the wheels.
SUITES = {(3, 11): "bookworm", (3, 13): "trixie"}
#: Python with venv, the image's SSH server and client (see the Dockerfile), and CA certificates.
_PACKAGES = ("python3", "python3-venv", "openssh-server", "openssh-client", "ca-certificates")
_TAIL = 5
#: Shell script. Its arguments are a folder, the path of an archive, and a command that creates the folder ``root``. The
#: script runs the command and packs ``root`` into the archive. If mounting is allowed, the script works in memory. On a
#: disk, dpkg would spend two thirds of the time waiting for the disk after each file. All mounts, including those of
#: debootstrap, are visible only to the script's processes and end with these processes. A signal kills all of these
#: processes. The SSH host keys are deleted, because otherwise all users of the image would share them.
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
    """Return the name of the Debian release that has the running Python's version.

    Raises:
        ConfigurationError: no Debian release has this Python version.
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
    progress: ProgressDisplay = SILENT,
) -> str:
    """Build a base image.

    Args:
        engine: The container engine that imports the image.
        name: The image's name.
        release: The name of the Debian release. The default is the release with the running Python's version.
        mirror: The URL of a mirror of Debian's packages. The default is debootstrap's default mirror.
        progress: The receiver of progress messages.

    Returns:
        The image's id.

    Raises:
        ConfigurationError: this machine cannot build the image. The message says what is missing.
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
    """Return the command prefix that runs a command in a mount namespace of its own.

    Return an empty list if creating the namespace is not allowed.
    """
    apart = ["unshare", "--mount"]
    if shutil.which(apart[0]) is None or subprocess.run([*apart, "true"], capture_output=True, check=False).returncode:
        return []
    return apart


def _run(argv: list[str], progress: ProgressDisplay) -> None:
    """Run a command that is killed when this process ends, and pass on the command's progress messages.

    Raises:
        BackendError: the command failed.
    """
    log = cache_root() / "logs" / "image-base.log"

    def line(text: str) -> None:
        if text.startswith("I: "):
            progress.detail(text[3:].strip().lower())

    finished = commands.run(argv, log=log, environment=os.environ, on_line=line)
    if finished.returncode != 0:
        raise BackendError(f"debootstrap failed: {' / '.join(finished.lines[-_TAIL:])}. The whole output is in {log}.")
