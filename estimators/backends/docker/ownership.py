"""Make the user who runs the job the owner of the files that containers have written.

Containers write files as root, or as the user that their image sets.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from estimators.backends.docker.containers import JOB_LABEL, ContainerPlan
from estimators.backends.docker.options import Mount

if TYPE_CHECKING:
    from estimators.backends.docker.engine import Engine
    from estimators.backends.docker.reaper import Duty

#: Names of root, which containers run as unless their image sets another user.
ROOT = ("", "0", "root")


def is_root(user: str) -> bool:
    """Return whether the value of ``USER`` in an image means root."""
    return user.partition(":")[0] in ROOT


def foreign(place: Path, uid: int) -> bool:
    """Return whether a folder contains a file or folder that does not belong to the given user.

    Also return True if a file or folder cannot be examined. Files that are deleted meanwhile are ignored.

    Args:
        place: The folder.
        uid: The uid of the user.
    """
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
    """Make the calling user the owner of the files that containers have written.

    Do nothing if the user owns all files already.

    Args:
        engine: The client of the container engine.
        duty: The description of the job's cleanup. It names the folders of the files.
        user: The user that the job's containers ran as. Empty for root.

    Raises:
        EngineError: the owner cannot be changed.
    """
    uid, gid = os.geteuid(), os.getegid()
    if uid == 0 and is_root(user):
        return
    if any(foreign(Path(place), uid) for place in (*duty.trees, *duty.shared)):
        for plan in plans(duty, user, *((0, 0) if engine.is_rootless() else (uid, gid))):
            engine.run(plan)


def plans(duty: Duty, user: str, uid: int, gid: int) -> list[ContainerPlan]:
    """Return the descriptions of containers that change the owner of files.

    In folders that others use, too, only files of root or of ``user`` get the new owner.

    Args:
        duty: The description of the job's cleanup. It names the folders and the image. The image contains GNU's
            ``find`` and ``chown``, and is already in the container engine.
        user: The user that the job's containers ran as. Empty for root.
        uid: The uid of the new owner, as containers see it.
        gid: The gid of the new owner, as containers see it.
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
