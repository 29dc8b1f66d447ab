"""An issuer of access tokens whose keys a gateway fetches over HTTP. The tokens are signed here."""

from __future__ import annotations

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.unit.gateway.identity import issuing


class Issuer:
    """url: of the issuer, and of its keys."""

    def __init__(self) -> None:
        keys = issuing.jwks(issuing.jwk(issuing.RSA, "RS256"))

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("content-length", str(len(keys)))
                self.end_headers()
                self.wfile.write(keys)

            def log_message(self, *args: Any) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._count = 0

    def token(self, user: str, *groups: str, tenant: str = "initech", **claims: Any) -> str:
        """A new token each time, as a new login gets, good for some hours."""
        self._count += 1
        now = time.time()
        claims = {"iss": self.url, "sub": user, "tenant": tenant, "groups": list(groups), "iat": now, "exp": now + 7200, **claims}
        return issuing.token({"jti": str(self._count), **claims}).decode()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)
