"""Files that containers wrote as root, or as the image's user, given back to the user who runs the job."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from estimators.backends.docker.containers import JOB_LABEL, ContainerPlan
from estimators.backends.docker.options import Mount

if TYPE_CHECKING:
    from estimators.backends.docker.engine import Engine
    from estimators.backends.docker.reaper import Duty

#: Names of the user that containers run as unless their image says otherwise.
ROOT = ("", "0", "root")


def is_root(user: str) -> bool:
    """Return whether an image's ``USER`` is root."""
    return user.partition(":")[0] in ROOT


def foreign(place: Path, uid: int) -> bool:
    """Return whether something below a folder is not a user's, or cannot be looked into."""
    errors: list[OSError] = []
    for folder, folders, files in os.walk(place, onerror=errors.append):
        for name in (*folders, *files):
            try:
                if os.lstat(os.path.join(folder, name)).st_uid != uid:
                    return True
            except OSError as error:
                errors.append(error)
    return not all(isinstance(error, FileNotFoundError) for error in errors)


def give_back(engine: Engine, duty: Duty, user: str) -> None:
    """Make what containers wrote, which ran as ``user``, the calling user's, if anything is not.

    Raises:
        EngineError: it cannot be done.
    """
    uid, gid = os.geteuid(), os.getegid()
    if uid == 0 and is_root(user):
        return
    if any(foreign(Path(place), uid) for place in (*duty.trees, *duty.shared)):
        for plan in plans(duty, user, *((0, 0) if engine.is_rootless() else (uid, gid))):
            engine.run(plan)


def plans(duty: Duty, user: str, uid: int, gid: int) -> list[ContainerPlan]:
    """Return the containers that give files back, of an image that is there already.

    In folders that others use too, what is anybody else's stays theirs.

    Args:
        duty: The folders, and an image that has GNU's ``find`` and ``chown``.
        user: The image's user; empty for root.
        uid: The user, as containers see it.
        gid: The group, likewise.
    """
    theirs = ["-uid", "0"] if is_root(user) else ["(", "-uid", "0", "-o", "-user", user.partition(":")[0], ")"]
    found = []
    for places, which in ((duty.trees, ["!", "-uid", str(uid)]), (duty.shared, theirs)):
        folders = [place for place in dict.fromkeys(places) if Path(place).is_dir()]
        mounts = tuple(Mount(source=place, target=f"/given/{number}") for number, place in enumerate(folders))
        if not mounts:
            continue
        words = ["-xdev", *which, "-exec", "chown", "-h", f"{uid}:{gid}", "{}", "+"]
        plan = ContainerPlan(
            host="owner",
            name="",
            image=duty.image,
            user="0",
            entrypoint=("find", *(mount.target for mount in mounts), *words),
            command=(),
            mounts=mounts,
            labels={JOB_LABEL: Path(duty.value).name, duty.label: duty.value},
        )
        found.append(plan)
    return found
