"""Make the names of a job's hosts resolvable in images without our toolkit.

The container engine resolves a container's name only while the container is running. SageMaker's own toolkit first
waits until the names of all hosts resolve (``_wait_hostname_resolution`` in sagemaker-training's ``entry_point.py``).
SageMaker's toolkit waits for up to 15 minutes. A host that starts late would thus wait for a host that has already
finished. Containers without our toolkit therefore get an ``/etc/hosts`` file from which no name is removed.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

#: The file's name in a host's folder of secrets, which is deleted with the job.
FILE = "hosts"
TARGET = "/etc/hosts"
_OWN = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"


def write(folder: Path) -> None:
    """Write the file that becomes a host's ``/etc/hosts``, with only the loopback addresses.

    :func:`add` adds the job's hosts later, because their addresses are not known yet.

    Args:
        folder: The host's folder of secrets.

    Raises:
        OSError: the file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILE).write_text(_OWN, encoding="utf-8")
    (folder / FILE).chmod(0o644)


def add(folders: Iterable[Path], host: str, address: str) -> None:
    """Add a started host to the ``/etc/hosts`` of every host. Several threads may call this function at the same time.

    Args:
        folders: The folders of secrets of all hosts.
        host: The name of the started host.
        address: The address of the started host.
    """
    for folder in folders:
        # The mount refers to the file itself, so the file must be appended to and not replaced.
        with (folder / FILE).open("ab", buffering=0) as file:
            file.write(f"{address}\t{host}\n".encode())
