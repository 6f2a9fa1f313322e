"""Run the S3 server as a child process, for ``fleetfit s3``, tests and benchmarks."""

from __future__ import annotations

import functools
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from container.system import processes
from estimators.job.errors import BackendError, ConfigurationError

#: The environment variables that contain the keys. Every user of the machine could read keys in argv.
KEY, SECRET = "FLEETFIT_S3_KEY", "FLEETFIT_S3_SECRET"
#: The region for signatures; the server accepts any region.
REGION = "us-east-1"

_ROOT = str(Path(__file__).resolve().parents[3])
_START_TIMEOUT = 30.0
_STOP_TIMEOUT = 5.0
_STARTED = re.compile(rb"serving at (http://\S+)\n")


class S3Server:
    """A running S3 server. The object is a context manager, which stops the server at the end of the block.

    Args:
        folder: The folder to serve. The folder is created if missing.
        port: The port number. If 0, a free port is chosen.
        key: The access key. If None, a new key is created.
        secret: The secret key. If None, a new key is created.
        dies_with_us: Whether the server exits when this process is killed.

    Raises:
        ConfigurationError: the folder cannot be created, or a key is not valid.
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
    ) -> None:
        self.folder = Path(folder).expanduser().absolute()
        self.key = key or f"fleetfit-{secrets.token_hex(6)}"
        self.secret = secret or secrets.token_hex(20)
        for what, value, least in (("key", self.key, 3), ("secret", self.secret, 8)):
            if len(value) < least or not re.fullmatch(r"[A-Za-z0-9+/_=.-]+", value):
                raise ConfigurationError(f"the {what} must have at least {least} letters, digits and '+/_=.-'.")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(f"{str(self.folder)!r} cannot be served: {error.strerror}.") from error
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the server runs
        death = functools.partial(processes.set_death_signal, signal.SIGTERM if dies_with_us else 0, os.getpid())
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "estimators.service.s3"),
                *("--folder", os.fspath(self.folder), "--port", str(port)),
            ],
            # The keys are not in argv, which every user of the machine can read.
            env={**os.environ, "PYTHONPATH": _ROOT, KEY: self.key, SECRET: self.secret},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            preexec_fn=death,
        )
        try:
            self.endpoint = self._wait_until_up()
        except BaseException:
            self.stop()
            raise

    @property
    def pid(self) -> int:
        """Return the pid of the server."""
        return self._process.pid

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment variables with which boto3, fleetfit and the AWS command line use the server."""
        return {
            "AWS_ENDPOINT_URL_S3": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_REGION": REGION,
        }

    def said(self) -> str:
        """Return the output of the server, with the secret key masked."""
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), size, 0).decode("utf-8", "replace").replace(self.secret, "***")

    def wait(self) -> int:
        """Wait until the server exits, and return its exit code."""
        return self._process.wait()

    def stop(self) -> None:
        """Stop the server. Calls after the first have no effect."""
        self._process.terminate()
        try:
            self._process.wait(_STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def _wait_until_up(self) -> str:
        deadline = time.monotonic() + _START_TIMEOUT
        while time.monotonic() < deadline:
            match = _STARTED.search(os.pread(self._log.fileno(), 65536, 0))
            if match is not None:
                return match[1].decode()
            if self._process.poll() is not None:
                break
            time.sleep(0.02)
        ended = " The server ended." if self._process.poll() is not None else ""
        raise BackendError(
            f"the S3 server for {str(self.folder)!r} did not start.{ended} Its output: {self.said()[-500:]}"
        )

    def __enter__(self) -> S3Server:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()
