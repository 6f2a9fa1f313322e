"""Control the access to the web interface: a link that works once gives access to one browser.

Every response has a content security policy that allows only files of this server. If a request's ``Host`` header names
a different host, as in an attack by DNS rebinding, the request is refused before any data is read. Changes need a POST
from a page of this server. The browser's ``Origin`` header must name this server, and the form must contain a token
that only pages of this server have.
"""

from __future__ import annotations

import hmac
import secrets
import threading

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: The path of the link, before the token.
ENTRANCE = "/enter/"

_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",  # otherwise a browser would not send the origin of a form
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class Access:
    """The secrets of this process.

    The secrets are the token of the link, the cookie that the browser gets in exchange for this token, and the token of
    the pages' forms.
    """

    def __init__(self) -> None:
        self.token = secrets.token_urlsafe(32)
        self._cookie = secrets.token_urlsafe(32)
        self.form_token = secrets.token_urlsafe(32)
        self._unused = True
        self._guard = threading.Lock()

    def redeem(self, token: str) -> str | None:
        """Return the cookie's value for the link's token. Return None if the token is wrong or was used before."""
        with self._guard:
            if not self._unused or not _same(token, self.token):
                return None
            self._unused = False
            return self._cookie

    def admits(self, cookie: str | None) -> bool:
        """Return whether a cookie is valid."""
        return cookie is not None and _same(cookie, self._cookie)

    def admits_form(self, token: str) -> bool:
        """Return whether a form's token is from a page of this server."""
        return _same(token, self.form_token)


def _same(given: str, ours: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), ours.encode())


def cookie_name(port: int) -> str:
    """Return the cookie's name. The name contains the port, because browsers share cookies among the ports of a
    machine.
    """
    return f"fleetfit-{port}"


class Gate:
    """An ASGI application that admits only requests with the cookie, and adds the security headers to every response.

    Args:
        app: The application that answers admitted requests.
        access: The secrets that a request is checked against.
        port: The port of this server.
    """

    def __init__(self, app: ASGIApp, access: Access, port: int) -> None:
        self._app = app
        self._access = access
        self._port = port

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
            await send(message)

        app: ASGIApp = self._app
        headers = Headers(scope=scope)
        host = headers.get("host")
        if host not in (f"127.0.0.1:{self._port}", f"localhost:{self._port}"):
            app = PlainTextResponse("This page is available only on the machine that serves it.\n", 421)
        elif not scope["path"].startswith(ENTRANCE) and not self._access.admits(
            Request(scope).cookies.get(cookie_name(self._port))
        ):
            app = PlainTextResponse(
                "Open the link that `fleetfit ui` printed. The link works once, in one browser. Start `fleetfit ui` "
                "again for a new link.\n",
                403,
            )
        elif scope["method"] not in ("GET", "HEAD") and headers.get("origin") != f"http://{host}":
            app = PlainTextResponse("This request comes from another site, not from this page.\n", 403)
        await app(scope, receive, guarded)
