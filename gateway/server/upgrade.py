"""Requests that ask to change the protocol are served as if they had not (RFC 9110, 7.8). Java's HttpClient asks for h2c with the first
request of each connection.

llhttp ends such a message with its head. A parser of its own reads the body and what follows: it gets a head that says no more than how
long the body is, of which the connection hears nothing.
"""

from __future__ import annotations

from typing import Protocol

import httptools

from gateway.core.types import Headers


class Reader(Protocol):
    """What a parser calls: the connection."""

    def on_message_begin(self) -> None: ...

    def on_url(self, url: bytes) -> None: ...

    def on_header(self, name: bytes, value: bytes) -> None: ...

    def on_headers_complete(self) -> None: ...

    def on_body(self, data: bytes) -> None: ...

    def on_message_complete(self) -> None: ...


class _AfterHead:
    """Passes everything on but one head."""

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
    """A parser for what follows a head with these headers, and the bytes to feed it before."""
    if b"transfer-encoding" in headers:
        framing = b"transfer-encoding: chunked\r\n"
    else:
        framing = b"content-length: %b\r\n" % headers.get(b"content-length", b"0")
    return httptools.HttpRequestParser(_AfterHead(reader)), b"POST / HTTP/1.1\r\n%b\r\n" % framing
