"""Serves requests that ask for another protocol as if they had not asked (RFC 9110, 7.8). Java's HttpClient asks for h2c with the first
request of each connection.

For llhttp such a message ends with its head, so a second parser reads the body and everything after it. It is first fed a head that only
states the body's length; the connection does not hear of that head.
"""

from __future__ import annotations

from typing import Protocol

import httptools

from gateway.core.types import Headers


class Reader(Protocol):
    """What a parser calls; implemented by the connection."""

    def on_message_begin(self) -> None: ...

    def on_url(self, url: bytes) -> None: ...

    def on_header(self, name: bytes, value: bytes) -> None: ...

    def on_headers_complete(self) -> None: ...

    def on_body(self, data: bytes) -> None: ...

    def on_message_complete(self) -> None: ...


class _AfterHead:
    """Passes on everything but the first head."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._silent = True
        self.on_body = reader.on_body
        self.on_message_complete = reader.on_message_complete

    def on_message_begin(self) -> None:
        if not self._silent:
            self._reader.on_message_begin()

    def on_url(self, url: bytes) -> None:
        if not self._silent:
            self._reader.on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._silent:
            self._reader.on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._silent:
            self._silent = False
        else:
            self._reader.on_headers_complete()


def parser_after(headers: Headers, reader: Reader) -> tuple[httptools.HttpRequestParser, bytes]:
    """A parser for what follows a head with these headers, and the bytes to feed it first."""
    if b"transfer-encoding" in headers:
        framing = b"transfer-encoding: chunked\r\n"
    else:
        framing = b"content-length: %b\r\n" % headers.get(b"content-length", b"0")
    return httptools.HttpRequestParser(_AfterHead(reader)), b"POST / HTTP/1.1\r\n%b\r\n" % framing
