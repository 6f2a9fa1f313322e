"""Serves the page on loopback by uvicorn."""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path

from estimators.job.errors import BackendError, UnsupportedError

HOST = "127.0.0.1"

#: How long open pages may hold up the end, in seconds.
_GRACE_S = 1


class Page:
    """The running page; a context manager that ends it.

    Args:
        port: The port; 0 chooses a free one.
        home: Instead of ``$FLEETFIT_HOME``.

    Attributes:
        link: Opens the page, once.

    Raises:
        UnsupportedError: the packages of the extra ``ui`` are not installed.
        BackendError: the port is taken.
    """

    def __init__(self, port: int = 0, home: Path | None = None) -> None:
        try:
            import uvicorn

            from estimators.service.ui.access import ENTRANCE, Access
            from estimators.service.ui.app import application
        except ImportError as error:
            raise UnsupportedError(
                f"the page needs {error.name}, which is not installed: run `fleetfit install ui`."
            ) from error
        self._socket = socket.socket()
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind((HOST, port))
        except OSError as error:
            self._socket.close()
            raise BackendError(
                f"port {port} of {HOST} is not available: {error.strerror}. Choose another port with --port."
            ) from error
        self.port: int = self._socket.getsockname()[1]
        access = Access()
        self._ending = threading.Event()
        self.link = f"http://{HOST}:{self.port}{ENTRANCE}{access.token}"
        self._server = uvicorn.Server(
            uvicorn.Config(
                application(access, self.port, self._ending, home),
                log_config=None,
                access_log=False,
                server_header=False,
                lifespan="off",
                ws="none",
                timeout_graceful_shutdown=_GRACE_S,
                limit_concurrency=256,
                proxy_headers=False,
            )
        )
        self._thread = threading.Thread(target=self._server.run, name="page", args=([self._socket],), daemon=True)

    def __enter__(self) -> Page:
        self._socket.listen()  # from here on a browser may connect, and waits for the server
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ending.set()
        self._server.should_exit = True
        self._thread.join()
        with contextlib.suppress(OSError):
            self._socket.close()
