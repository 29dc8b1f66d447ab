"""A server of model files for `models pull`: a hub's and a registry's paths over one file, with faults by the first segment of the path.

good: all well, ranges included. deaf: ignores ranges. cut: ends each answer after 40,000 bytes. changed: cut, and another ETag each time.
mixed: the same, and it answers ranges of the other file. endless: sends chunks until nobody reads them. linked: redirects as the hub does,
with `X-Linked-Etag`. wrong: the same with another checksum. away: redirects to `elsewhere`. round: redirects to itself. fails: answers 503
twice, then well.
"""

from __future__ import annotations

import hashlib
import json
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class ModelHub:
    """content: of the one file. elsewhere: where `away` leads. asked: (path, headers) of all requests."""

    def __init__(self, content: bytes, elsewhere: str = "") -> None:
        self.content, self.elsewhere = content, elsewhere
        self.sha256 = hashlib.sha256(content).hexdigest()
        self.asked: list[tuple[str, dict[str, str]]] = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                hub.asked.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
                hub.answer(self, self.path.split("/")[1])
                self.close_connection = True

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def answer(self, request: Any, how: str) -> None:
        if "/manifests/" in request.path:
            layer = {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{self.sha256}", "size": len(self.content)}
            return self._send(request, 200, json.dumps({"schemaVersion": 2, "layers": [layer]}).encode())
        if how == "fails" and len(self.asked) < 3:
            return self._send(request, 503, b"")
        if how in ("linked", "wrong"):
            named = self.sha256 if how == "linked" else "0" * 64
            return self._send(request, 302, b"", {"location": "/good/blob", "x-linked-etag": f'"{named}"'})
        if how in ("away", "round"):
            return self._send(request, 302, b"", {"location": self.elsewhere if how == "away" else request.path})
        if how == "endless":
            return self._endless(request)
        tag = f'"{self.sha256[:16]}{len(self.asked) if how in ("changed", "mixed") else ""}"'
        begin, status, headers = 0, 200, {"etag": tag}
        wanted = request.headers.get("range", "")
        if wanted and how != "deaf" and (how == "mixed" or request.headers.get("if-range") == tag):
            begin, status = int(wanted.removeprefix("bytes=").rstrip("-")), 206
            headers["content-range"] = f"bytes {begin}-{len(self.content) - 1}/{len(self.content)}"
        self._send(request, status, self.content[begin:], headers, 40_000 if how in ("cut", "changed", "mixed") else None)

    def _endless(self, request: Any) -> None:
        request.send_response(200)
        request.send_header("transfer-encoding", "chunked")
        request.end_headers()
        with suppress(OSError):
            while True:
                request.wfile.write(b"10000\r\n%b\r\n" % bytes(0x10000))

    def _send(self, request: Any, status: int, body: bytes, headers: dict[str, str] | None = None, most: int | None = None) -> None:
        request.send_response(status)
        for name, value in {**(headers or {}), "content-length": str(len(body)), "connection": "close"}.items():
            request.send_header(name, value)
        request.end_headers()
        request.wfile.write(body[:most])

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
