"""An engine that takes recordings, for faults and orders that a real one does not show: it reads forms as
slowly as it is told, and answers what it is told."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email.parser import BytesParser
from email.policy import HTTP
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple


class Heard(NamedTuple):
    """One form. order: the names of its parts. file: length and SHA-256 of the recording."""

    path: str
    order: list[str]
    texts: dict[str, list[str]]
    filename: str
    file: tuple[int, str]
    headers: dict[str, str]


class Hearing:
    """received: whole forms. begun: requests whose head has come. taken: bytes of the present body. gate: reading goes on while it is set.
    says: the answer, and its type. refuses: answers with this status before it has read the body."""

    def __init__(self) -> None:
        self.port = 0
        self.received: list[Heard] = []
        self.begun = self.taken = 0
        self.gate = threading.Event()
        self.refuses = 0
        self.reset()

    def reset(self) -> None:
        self.gate.set()
        self.refuses = 0
        self.say({"text": "hello gate"})

    def say(self, answer: Any, kind: str = "application/json") -> None:
        self.answer = (answer if isinstance(answer, str) else json.dumps(answer)).encode(), kind


def parsed(path: str, headers: Any, body: bytes) -> Heard:
    """The standard library's parser reads the headers of the parts; for megabytes of content it takes seconds."""
    boundary = b"--" + headers["content-type"].partition("boundary=")[2].strip('"').encode()
    begin, *parts, end = (b"\r\n" + body).split(b"\r\n" + boundary)
    assert begin == b"" and end == b"--\r\n", (begin[:80], end[:80])
    order: list[str] = []
    texts: dict[str, list[str]] = {}
    filename, file = "", (0, "")
    for part in parts:
        head, found, content = part.removeprefix(b"\r\n").partition(b"\r\n\r\n")
        assert found
        message = BytesParser(policy=HTTP).parsebytes(head + b"\r\n\r\n", headersonly=True)
        name = str(message.get_param("name", header="content-disposition"))
        order.append(name)
        if message.get_filename() is not None:
            filename, file = str(message.get_filename()), (len(content), hashlib.sha256(content).hexdigest())
        else:
            texts.setdefault(name, []).append(content.decode())
    return Heard(path, order, texts, filename, file, {name.lower(): value for name, value in headers.items()})


@contextmanager
def hearing_engine() -> Iterator[Hearing]:
    engine = Hearing()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing."""

        def do_GET(self) -> None:
            self._send(200, b'{"object":"list","data":[]}', "application/json")

        def do_POST(self) -> None:
            engine.begun += 1
            engine.taken = 0
            if engine.refuses:
                self.close_connection = True
                self._send(engine.refuses, b'{"error":{"message":"not that"}}', "application/json")
                return
            body = self._body()
            engine.received.append(parsed(self.path, self.headers, body))
            self._send(200, *engine.answer)

        def _body(self) -> bytes:
            if "content-length" in self.headers:
                return self._read(int(self.headers["content-length"]))
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self._read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)

        def _read(self, size: int) -> bytes:
            parts = []
            while size:
                engine.gate.wait(60)
                data = self.rfile.read(min(size, 65536))
                if not data:
                    raise ConnectionError("the request ended early")
                engine.taken += len(data)
                size -= len(data)
                parts.append(data)
            return b"".join(parts)

        def _send(self, status: int, body: bytes, kind: str) -> None:
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            """Clients that leave are part of the tests."""

    server = Server(("127.0.0.1", 0), Handler)
    engine.port = server.server_port
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield engine
    finally:
        engine.gate.set()
        server.shutdown()
        server.server_close()
        thread.join()
