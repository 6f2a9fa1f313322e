"""The instance metadata service with the paths of spot instances, second version only.

    python imds.py ADDRESS PORT FILE

FILE is JSON: path -> text; it is read for each request, and what is not in it is not found.
"""

from __future__ import annotations

import http.server
import json
import secrets
import sys
from pathlib import Path


def server(address: str, port: int, file: Path) -> http.server.ThreadingHTTPServer:
    """A server, not started."""
    tokens: set[str] = set()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            if self.path != "/latest/api/token" or not self.headers.get("X-aws-ec2-metadata-token-ttl-seconds"):
                self._say(400, "")
                return
            tokens.add(token := secrets.token_hex(16))
            self._say(200, token)

        def do_GET(self) -> None:
            documents = json.loads(file.read_text()) if file.exists() else {}
            if documents.get("forget-tokens"):
                tokens.clear()
            if self.headers.get("X-aws-ec2-metadata-token") not in tokens:
                self._say(401, "")
            elif self.path in documents:
                self._say(200, documents[self.path])
            else:
                self._say(404, "")

        def _say(self, status: int, text: str) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *arguments: object) -> None:
            pass

    return http.server.ThreadingHTTPServer((address, port), Handler)


if __name__ == "__main__":
    server(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])).serve_forever()
