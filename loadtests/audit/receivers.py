"""SIEMs for the drivers of audit sinks: a real rsyslog (TLS) and an HTTP server, which count what they got by (writer, number, hash)."""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from gateway.audit.segments import open_segment
from gateway.audit.sinks.file import list_segments
from tests.integration.rsyslog import Rsyslog

Line = tuple[str, int, bytes]
"""The writer, the number in its chain, the line."""
_DATA: Final = re.compile(rb'\[gatehouse@32473 writer="([A-Za-z0-9_-]+)" seq="([0-9]+)"\]')


def logged(directory: Path) -> Iterator[Line]:
    """All lines of a log, without their line feeds."""
    for writer, segments in list_segments(directory).items():
        for _, path in segments:
            with open_segment(path) as lines:
                for line in lines:
                    yield writer, int(line[7:].split(b",", 1)[0]), line.rstrip(b"\n")


def in_rsyslog(server: Rsyslog) -> Iterator[Line]:
    """What a real rsyslog has written to its file. What has no structured data of ours is of the writer `?`."""
    with server.received.open("rb") as lines:
        for line in lines:
            data, _, message = line.rstrip(b"\n").partition(b"\t")
            found = _DATA.fullmatch(data)
            yield ("?", 0, line) if found is None else (found[1].decode(), int(found[2]), message)


class HttpSiem:
    """An HTTP server on a port of its own that may go away and come back. got: how often each line arrived, by writer, number and hash."""

    def __init__(self) -> None:
        self.got: Counter[tuple[str, int, bytes]] = Counter()
        self._server: ThreadingHTTPServer | None = None
        self._port = 0
        self.back()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/in"

    def back(self) -> None:
        got, lock = self.got, threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                with lock:
                    for line in body.splitlines():
                        one = json.loads(line)
                        got[one["writer"], one["seq"], one["hash"].encode()] += 1
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *args: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        self._server.daemon_threads = True
        self._port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def away(self) -> None:
        """From now on nobody listens."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
