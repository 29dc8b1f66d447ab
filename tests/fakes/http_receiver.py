"""A receiver of POST requests in a thread: it keeps what it gets and answers as a test says."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class HttpReceiver:
    def __init__(self) -> None:
        self.requests: list[tuple[dict[str, str], bytes]] = []
        self.answers: list[tuple[int, bytes]] = []
        self.retry_after: str | None = None
        """A header of the answers that are no success."""
        self.content_type: str | None = None
        """A header of all answers."""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                outer.requests.append(({name.lower(): value for name, value in self.headers.items()}, body))
                status, answer = outer.answers.pop(0) if outer.answers else (200, b"{}")
                self.send_response(status)
                self.send_header("content-length", str(len(answer)))
                if outer.content_type is not None:
                    self.send_header("content-type", outer.content_type)
                if outer.retry_after is not None and status >= 300:
                    self.send_header("retry-after", outer.retry_after)
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *args: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/in"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()
