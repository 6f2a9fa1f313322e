"""The names of a job's hosts, for images without our toolkit.

The engine knows a container's name only while it runs, and SageMaker's own toolkit waits for the names of all hosts
before it begins, for a quarter of an hour (``_wait_hostname_resolution`` in sagemaker-training's ``entry_point.py``): a
host that comes up late would wait for one that is done. So such containers get an ``/etc/hosts`` in which every name
stays.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

#: The file within a host's folder of secrets; those are gone with the job, as it is.
FILE = "hosts"
TARGET = "/etc/hosts"
_OWN = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"


def write(folder: Path) -> None:
    """Write a host's file, without the others, whose addresses are not known yet.

    Raises:
        OSError: it cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE
    path.write_text(_OWN, encoding="utf-8")
    path.chmod(0o644)


def add(folders: Iterable[Path], host: str, address: str) -> None:
    """Tell every host of one that has been started; threads may do so at once."""
    for folder in folders:
        # What is mounted is this file, not its name: it must not be replaced.
        descriptor = os.open(folder / FILE, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            os.write(descriptor, f"{address}\t{host}\n".encode())
        finally:
            os.close(descriptor)
