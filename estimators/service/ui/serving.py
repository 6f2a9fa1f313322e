"""Serve the pages of the web interface on the loopback interface."""

from __future__ import annotations

import threading
from pathlib import Path

from estimators.service import web
from estimators.service.ui.access import ENTRANCE, Access
from estimators.service.ui.app import application

#: How long open pages may delay the shutdown, in seconds.
_GRACE_S = 1


class Page:
    """The running server of the pages. The object is a context manager, which starts and stops the server.

    Args:
        port: The port number. If 0, a free port is chosen.
        home: The folder to use instead of ``$FLEETFIT_HOME``.

    Attributes:
        port: The number of the port that is used.
        link: The URL that opens the page. The URL works only once.

    Raises:
        BackendError: the port is in use.
    """

    def __init__(self, port: int = 0, home: Path | None = None) -> None:
        listener = web.listen(port)
        self.port: int = listener.getsockname()[1]
        access = Access()
        self.link = f"http://{web.HOST}:{self.port}{ENTRANCE}{access.token}"
        self._ending = threading.Event()
        self._server = web.Server(application(access, self.port, self._ending, home), listener, _GRACE_S)

    def __enter__(self) -> Page:
        self._server.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ending.set()
        self._server.close()
