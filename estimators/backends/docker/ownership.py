"""Files that containers wrote as root, or as the image's user, given back to the user who runs the job."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from estimators.backends.docker import containers
from estimators.backends.docker.options import Mount

if TYPE_CHECKING:
    from estimators.backends.docker.engine import Engine
    from estimators.backends.docker.reapers import Duty

#: Names of the user that containers run as unless their image says otherwise.
ROOT = ("", "0", "root")


def is_root(user: str) -> bool:
    """Return whether an image's ``USER`` is root."""
    return user.partition(":")[0] in ROOT


def foreign(place: Path, uid: int) -> bool:
    """Return whether something below a folder is not a user's, or cannot be looked into."""
    pending = [place]
    while pending:
        folder = pending.pop()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.stat(follow_symlinks=False).st_uid != uid:
                        return True
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(Path(entry.path))
        except FileNotFoundError:
            continue
        except OSError:
            return True
    return False


def owed(duty: Duty, user: str) -> bool:
    """Return whether containers, which ran as ``user``, may have left files that are not the calling user's."""
    uid = os.geteuid()
    if uid == 0 and is_root(user):
        return False
    return any(foreign(Path(place), uid) for place in (*duty.trees, *duty.shared))


def give_back_all(engine: Engine, duty: Duty, user: str) -> None:
    """Make what containers wrote, which ran as ``user``, the calling user's, if anything is not.

    Raises:
        EngineError: it cannot be done.
    """
    if owed(duty, user):
        uid, gid = (0, 0) if engine.is_rootless() else (os.geteuid(), os.getegid())
        give_back(engine, duty, user, uid, gid)


def give_back(engine: Engine, duty: Duty, user: str, uid: int, gid: int) -> None:
    """Make what containers wrote a user's, by a container of an image that is there already.

    In folders that others use too, what is anybody else's stays theirs.

    Args:
        engine: The engine.
        duty: The folders, and an image that has GNU's ``find`` and ``chown``.
        user: The image's user; empty for root.
        uid: The user, as containers see it.
        gid: The group, likewise.

    Raises:
        EngineError: it cannot be done.
    """
    trees, shared = (
        [Path(place) for place in dict.fromkeys(places) if Path(place).is_dir()] for places in (duty.trees, duty.shared)
    )
    places = {place: f"/given/{number}" for number, place in enumerate((*trees, *shared))}
    change = ["-exec", "chown", "-h", f"{uid}:{gid}", "{}", "+"]
    theirs = ["-uid", "0"] if is_root(user) else ["(", "-uid", "0", "-o", "-user", user.partition(":")[0], ")"]
    for folders, which in ((trees, ["!", "-uid", str(uid)]), (shared, theirs)):
        if folders:
            plan = containers.ContainerPlan(
                host="owner",
                name="",
                image=duty.image,
                user="0",
                entrypoint=("find", *(places[folder] for folder in folders), "-xdev", *which, *change),
                command=(),
                mounts=tuple(Mount(source=str(folder), target=places[folder]) for folder in folders),
                labels={containers.JOB_LABEL: Path(duty.value).name, duty.label: duty.value},
            )
            engine.run(plan)
