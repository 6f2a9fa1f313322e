"""Who may see the page: whoever opened its link, which works once, in the browser that did.

Every answer carries a content policy that allows this server's own files only. Requests that name another host (a web
site whose name was made to mean this machine) are refused before anything is read. What changes something is a POST
that comes from one of this server's own pages: the browser says so (``Origin``), and the form holds a token that only
those pages have.
"""

from __future__ import annotations

import hmac
import secrets
import threading

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: Where the link leads; the token is behind it.
ENTRANCE = "/enter/"

_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",  # without one, a browser would not say from which origin a form comes
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class Access:
    """The link's token, the cookie that it becomes, and the token of the pages' forms; all are of this process only."""

    def __init__(self) -> None:
        self.token = secrets.token_urlsafe(32)
        self._cookie = secrets.token_urlsafe(32)
        self.form_token = secrets.token_urlsafe(32)
        self._unused = True
        self._guard = threading.Lock()

    def redeem(self, token: str) -> str | None:
        """Return the cookie's value for the link's token; None if it is another one, or was used."""
        with self._guard:
            if not self._unused or not _same(token, self.token):
                return None
            self._unused = False
            return self._cookie

    def admits(self, cookie: str | None) -> bool:
        """Return whether a cookie is the one that the link became."""
        return cookie is not None and _same(cookie, self._cookie)

    def admits_form(self, token: str) -> bool:
        """Return whether a form is one of this server's own pages."""
        return _same(token, self.form_token)


def _same(given: str, ours: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), ours.encode())


def cookie_name(port: int) -> str:
    """Return the cookie's name: browsers share cookies among the ports of a machine."""
    return f"fleetfit-{port}"


class Gate:
    """Lets requests through that carry the cookie, and puts the headers onto every answer.

    Args:
        app: What is behind it.
        access: Who may pass.
        port: The port that is served.
    """

    def __init__(self, app: ASGIApp, access: Access, port: int) -> None:
        self._app = app
        self._access = access
        self._port = port

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
            await send(message)

        port = self._port
        app: ASGIApp = self._app
        headers = Headers(scope=scope)
        host = headers.get("host")
        if host not in (f"127.0.0.1:{port}", f"localhost:{port}"):
            app = PlainTextResponse("This page is available only on the machine that serves it.\n", 421)
        elif not scope["path"].startswith(ENTRANCE) and not self._access.admits(
            Request(scope).cookies.get(cookie_name(port))
        ):
            app = PlainTextResponse(
                "Open the link that `fleetfit ui` printed. The link works once, in one browser. Start `fleetfit ui` "
                "again for a new link.\n",
                403,
            )
        elif scope["method"] not in ("GET", "HEAD") and headers.get("origin") != f"http://{host}":
            app = PlainTextResponse("This request comes from another site, not from this page.\n", 403)
        await app(scope, receive, guarded)
