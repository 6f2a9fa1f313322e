"""The names of a job's hosts, for images without our toolkit.

The engine knows a container's name only while it runs, and SageMaker's own toolkit waits for the names of all hosts
before it begins, for a quarter of an hour (``_wait_hostname_resolution`` in sagemaker-training's ``entry_point.py``): a
host that comes up late would wait for one that is done. So such containers get an ``/etc/hosts`` in which every name
stays.
"""

from __future__ import annotations

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
    (folder / FILE).write_text(_OWN, encoding="utf-8")
    (folder / FILE).chmod(0o644)


def add(folders: Iterable[Path], host: str, address: str) -> None:
    """Tell every host of one that has been started; threads may do so at once."""
    for folder in folders:
        # The file itself is mounted, not its name: the file must not be replaced.
        with (folder / FILE).open("ab", buffering=0) as file:
            file.write(f"{address}\t{host}\n".encode())
