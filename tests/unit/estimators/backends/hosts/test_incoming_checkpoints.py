"""What hosts send of their folders of checkpoints, and what it may not touch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from container.contract import messages
from estimators.backends.hosts.checkpoints import IncomingCheckpoints


def send(here: Path, *operations: dict[str, Any]) -> None:
    """Receive messages of a host."""
    incoming = IncomingCheckpoints(here, "algo-2", lambda line: None)
    for operation in operations:
        incoming.feed(messages.encode(operation))
    incoming.close()


@pytest.mark.parametrize("name", ["run", "run/deeper", "run/entry"])
def test_a_folder_of_a_host_removes_nothing_of_another_hosts(tmp_path: Path, name: str) -> None:
    kept = tmp_path / "run" / "entry" / "events"
    kept.parent.mkdir(parents=True)
    kept.touch()
    send(tmp_path, {"op": "folder", "name": f"{name}/"})
    assert kept.is_file() and (tmp_path / name).is_dir()


def test_a_users_own_link_stays_and_a_hosts_is_replaced(tmp_path: Path) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    for folder in (here / "whole", elsewhere):
        folder.mkdir(parents=True)
    (here / "data").symlink_to(elsewhere)
    (here / "last").symlink_to("whole")
    send(here, {"op": "folder", "name": "data/new/"}, {"op": "folder", "name": "last/new/"})
    assert (here / "data").is_symlink() and (elsewhere / "new").is_dir()
    assert (
        not (here / "last").is_symlink() and (here / "last" / "new").is_dir() and not list((here / "whole").iterdir())
    )
