"""Run the endpoint's S3 server as a separate process.

Jobs use the S3 server until they end. Therefore the server runs as long as the endpoint **or** one of its jobs runs.
Afterwards, the server exits, even if the endpoint was killed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from container.system import files, locks
from estimators.job.errors import BackendError, ConfigurationError
from estimators.records.record import JobRecord, job_names, jobs_folder
from estimators.service.s3.keys import bucket_of
from estimators.service.s3.web import serving
from estimators.service.settings import EndpointFiles

_ROOT = str(Path(__file__).resolve().parents[2])
_START_TIMEOUT = 30.0
#: Seconds between two checks whether the server is still needed.
_PACE = 0.5


class Storage:
    """The object with which an endpoint starts and stops its S3 server.

    Args:
        place: The endpoint's files.
        folder: The folder to serve. Each folder in it is a bucket.
        port: The port number. If 0, a free port is chosen.
    """

    def __init__(self, place: EndpointFiles, folder: Path, port: int = 0) -> None:
        self._place = place
        self.folder = Path(os.path.abspath(folder))
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None
        self.endpoint = ""

    def start(self) -> None:
        """Use the running server of an earlier endpoint. If no server runs, start one.

        Raises:
            ConfigurationError: the running server serves a different folder, or has different keys.
            BackendError: the server does not start.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not locks.is_held(self._place.storage_lock_file):
            self._spawn()
            return
        there = self._wait_for_file()
        if there.get("folder") != str(self.folder) or there.get("access_key") != self._place.keys().access_key:
            raise ConfigurationError(
                f"an S3 server of an earlier endpoint still serves {there.get('folder')} for that endpoint's jobs. "
                "The server's folder or keys differ from this endpoint's. Wait for these jobs or stop them, then "
                "start this endpoint again."
            )
        self.endpoint = str(there["endpoint"])

    def keep(self) -> None:
        """Restart the server if the server has ended. Call this method regularly."""
        if self._process is not None and self._process.poll() is not None:
            self._process = None
        if not locks.is_held(self._place.storage_lock_file):
            self._port = int(self.endpoint.rpartition(":")[2])
            with contextlib.suppress(BackendError):  # the port may still be in use
                self._spawn()

    def stop(self) -> None:
        """Stop the server, and wait up to 10 seconds until it has stopped."""
        pid = files.read_json(self._place.storage_file).get("pid")
        if locks.is_held(self._place.storage_lock_file) and isinstance(pid, int):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
            until = time.monotonic() + 10
            while locks.is_held(self._place.storage_lock_file) and time.monotonic() < until:
                time.sleep(0.02)
        if self._process is not None:
            self._process.wait()

    def path(self, bucket: str, key: str) -> Path | None:
        """Return the file of an object. Return None if the object does not exist."""
        found = bucket_of(self.folder, bucket)
        return found.find(key) if found is not None else None

    def _spawn(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._place.storage_file.unlink()
        log = os.open(self._place.folder / "s3.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "estimators.service.storage", "--home", str(self._place.home)),
                    *("--folder", str(self.folder), "--port", str(self._port)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env={**os.environ, "PYTHONPATH": _ROOT},
                start_new_session=True,  # Ctrl-C stops the endpoint, but its jobs still need the server
            )
        finally:
            os.close(log)
        self.endpoint = str(self._wait_for_file()["endpoint"])

    def _wait_for_file(self) -> dict[str, object]:
        until = time.monotonic() + _START_TIMEOUT
        while time.monotonic() < until:
            there = files.read_json(self._place.storage_file)
            if there.get("endpoint"):
                return there
            if self._process is not None and self._process.poll() is not None:
                break
            time.sleep(0.01)
        said = (self._place.folder / "s3.log").read_text(encoding="utf-8", errors="replace").strip()
        raise BackendError(f"the S3 server did not start: {said.splitlines()[-1] if said else 'no output'}")


# --- the process ---


def _needed(place: EndpointFiles) -> bool:
    """Return whether the endpoint or one of its jobs is running."""
    if locks.is_held(place.lock_file):
        return True
    jobs = jobs_folder(place.home)
    return any(
        (jobs / name / "service.json").exists() and JobRecord(jobs / name).is_supervised()
        for name in job_names(place.home)
    )


def main(argv: list[str] | None = None) -> int:
    """Run the S3 server as long as it is needed.

    Returns:
        0 on success; 1 if another server of the endpoint is running, or the server cannot start.
    """
    parser = argparse.ArgumentParser(prog="estimators.service.storage")
    parser.add_argument("--home", required=True)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--port", type=int, required=True)
    arguments = parser.parse_args(argv)
    place = EndpointFiles.of(arguments.home)
    held = locks.take(place.storage_lock_file)
    if held is None:
        print("another S3 server of this endpoint is running.", file=sys.stderr)
        return 1
    keys = place.keys()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # required by sigtimedwait()
    try:
        with serving(arguments.port, Path(arguments.folder), keys, "--s3-port") as endpoint:
            there = {"endpoint": endpoint, "pid": os.getpid(), "folder": arguments.folder}
            files.write_json(place.storage_file, {**there, "access_key": keys.access_key})
            while _needed(place) and signal.sigtimedwait({signal.SIGTERM}, _PACE) is None:
                pass
    except BackendError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
