"""Run an endpoint: start its components, and stop them in reverse order."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from container.contract.frozen import dataclass
from container.system import locks
from estimators.job.errors import ConfigurationError
from estimators.service import settings, web
from estimators.service.endpoint import Endpoint, operations
from estimators.service.logs import Logs
from estimators.service.profile import Address, job_environment, write_sdk_config
from estimators.service.queue import EndpointQueue
from estimators.service.records import Jobs
from estimators.service.settings import EndpointFiles
from estimators.service.storage import Storage
from estimators.service.training import Training
from estimators.service.translation import Local
from estimators.service.tuning import TuningJobs

DEFAULT_PORT = 8666

_PACE = 1.0
#: When the endpoint stops, requests that were received completely are answered within this number of seconds.
_GRACE_S = 30


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of an endpoint.

    Attributes:
        port: The port number. If 0, a free port is chosen.
        s3_port: The port number of the S3 server. If 0, a free port is chosen.
        s3_folder: The folder that the S3 server serves. If None, ``$FLEETFIT_HOME/s3``.
        region: The region that the endpoint appears to be in.
        limit: The maximum number of jobs that run at once.
        local: The backend for jobs, and the backend's settings.
        home: The folder to use instead of ``$FLEETFIT_HOME``.
    """

    port: int = DEFAULT_PORT
    s3_port: int = DEFAULT_PORT + 1
    s3_folder: Path | None = None
    region: str = settings.DEFAULT_REGION
    limit: int = 1
    local: Local = dataclasses.field(default_factory=Local)
    home: Path | None = None

    def __post_init__(self) -> None:
        settings.region_of(self.region)
        if self.limit < 1:
            raise ConfigurationError(f"at least 1 job must be able to run, got a limit of {self.limit}.")


class Service:
    """A running endpoint.

    The object is a context manager, which stops the endpoint at the end of the block. The endpoint's jobs continue.

    Args:
        options: The options of the endpoint.
        tell: A function that is called with a line about each event.

    Raises:
        ConfigurationError: another endpoint with the same ``$FLEETFIT_HOME`` is running, or an option is not valid.
        BackendError: a port is in use, or the S3 server does not start.
    """

    def __init__(self, options: Options, tell: Callable[[str], None] = lambda line: None) -> None:
        self.place = EndpointFiles.of(options.home)
        with _explained(self.place):
            self.place.make()
            lock = locks.take(self.place.lock_file)
        if lock is None:
            raise ConfigurationError(
                f"an endpoint of {self.place.home} is running already. Stop it, or set FLEETFIT_HOME to another folder."
            )
        self._closed = threading.Event()
        self._started = contextlib.ExitStack()
        self._started.callback(os.close, lock)
        try:
            with _explained(self.place):
                self.keys = self.place.keys()
                self._start(options, tell)
        except BaseException:
            self.close()
            raise

    def _start(self, options: Options, tell: Callable[[str], None]) -> None:
        listener = web.listen(options.port)
        self._started.callback(listener.close)
        self.storage = Storage(self.place, options.s3_folder or self.place.home / "s3", options.s3_port)
        self.storage.start()
        self.address = Address(
            endpoint=f"http://{web.HOST}:{listener.getsockname()[1]}",
            s3_endpoint=self.storage.endpoint,
            region=options.region,
            keys=self.keys,
        )
        (self.storage.folder / self.address.bucket).mkdir(exist_ok=True)
        write_sdk_config(self.place, self.address)
        jobs = Jobs(self.place.home, options.region)
        self.queue = EndpointQueue(jobs, options.limit, self._job_environment(), tell)
        self._started.callback(self._end_storage)
        training = Training(jobs, self.queue, self.storage, options.local)
        self.tuning = TuningJobs(jobs, self.storage, options.local, self._job_environment())
        endpoint = Endpoint(
            self.keys,
            operations(training, self.tuning, Logs(jobs, self.keys.secret_key), jobs),
            region=options.region,
        )
        self.queue.start()
        self.tuning.start()
        self._started.callback(self.queue.close)
        server = web.Server(endpoint, listener, _GRACE_S)
        server.start()
        self._started.callback(server.close)
        watcher = threading.Thread(target=self._watch, name="storage", daemon=True)
        watcher.start()
        self._started.callback(watcher.join)
        self._started.callback(self._closed.set)

    def _job_environment(self) -> dict[str, str]:
        return {**job_environment(os.environ, self.address), "FLEETFIT_HOME": str(self.place.home)}

    def _watch(self) -> None:
        while not self._closed.wait(_PACE):
            with contextlib.suppress(OSError):
                self.storage.keep()

    def _end_storage(self) -> None:
        """Stop the S3 server if no job is running. Otherwise the server exits after the last job."""
        if self.queue.running == 0 and self.tuning.running == 0:
            self.storage.stop()

    def close(self) -> None:
        """Stop the endpoint. Calls after the first have no effect."""
        self._started.close()

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


@contextlib.contextmanager
def _explained(place: EndpointFiles) -> Iterator[None]:
    """Convert errors of files, such as a full disk, to a ConfigurationError with a remedy."""
    try:
        yield
    except OSError as error:
        raise ConfigurationError(
            f"the endpoint cannot write its files: {error.filename or place.folder}: {error.strerror or error}. "
            "Correct the cause, or set FLEETFIT_HOME to another folder."
        ) from error
