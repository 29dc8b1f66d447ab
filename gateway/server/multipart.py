"""Reads multipart/form-data (RFC 7578, RFC 2046 5.1) as it arrives, with bounds: so many parts, so many bytes of a part's headers. The
content of a part is given as it comes and never gathered here. No transfer encodings: RFC 7578 has deprecated them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from gateway.core.errors import RequestError

MOST_PARTS: Final = 16
MOST_HEAD: Final = 8 * 1024
_BOUNDARY: Final = re.compile(r"""boundary=(?:"([^"\r\n]{1,70})"|([!#$%&'*+.^_`|~0-9A-Za-z(),/:=?-]{1,70}))""", re.IGNORECASE | re.ASCII)
_PARAMETER: Final = re.compile(r';\s*(name|filename\*?)=(?:"((?:[^"\\\r\n]|\\.)*)"|([^;\s"]+))', re.IGNORECASE)


class Part(NamedTuple):
    """The beginning of a part. filename: None where it is not a file."""

    name: str
    filename: str | None


class Data(NamedTuple):
    """Some of the content of the part that began last."""

    data: bytes


def boundary_of(content_type: bytes) -> bytes:
    """Raises RequestError for anything but multipart/form-data with a boundary."""
    text = content_type.decode("latin-1")
    found = _BOUNDARY.search(text)
    if text.partition(";")[0].strip().lower() != "multipart/form-data" or found is None:
        raise RequestError("Send multipart/form-data with a boundary.", code="unsupported_media_type", status=415)
    return (found[1] or found[2]).encode("latin-1")


class MultipartReader:
    """`feed` gives what has come; `finish` raises RequestError where the body ended too early."""

    def __init__(self, boundary: bytes) -> None:
        self._mark = b"\r\n--" + boundary
        self._rest = b"\r\n"  # so that the first boundary is like the others
        self._state = "preamble"
        self._parts = 0

    def feed(self, data: bytes) -> Iterator[Part | Data]:
        """Raises RequestError."""
        self._rest += data
        while True:
            if self._state in ("preamble", "content"):
                place = self._rest.find(self._mark)
                if place < 0:
                    yield from self._passed(len(self._rest) - len(self._mark) + 1)
                    return
                yield from self._passed(place)
                self._rest = self._rest[len(self._mark) :]
                self._state = "boundary"
            if self._state == "boundary":
                if len(self._rest) < 2:
                    return
                if self._rest.startswith(b"--"):
                    self._state, self._rest = "end", b""
                    return
                line, found, rest = self._rest.partition(b"\r\n")
                if not found or line.strip(b" \t"):
                    if found or len(line) > MOST_HEAD or line.strip(b" \t\r"):
                        raise _malformed("a boundary is not followed by the end of its line")
                    return
                self._rest, self._state = b"\r\n" + rest, "head"
            if self._state == "head":
                end = self._rest.find(b"\r\n\r\n")
                if end < 0:
                    if len(self._rest) > MOST_HEAD:
                        raise _malformed("the headers of a part are too long")
                    return
                head, self._rest = self._rest[:end], self._rest[end + 2 :]
                self._state = "content"
                yield self._part(head)
                # The content may be empty: then its boundary begins with the line break that ended the headers.
                if not self._rest.startswith(self._mark[: len(self._rest)]):
                    self._rest = self._rest[2:]
                elif len(self._rest) >= len(self._mark):
                    continue
                else:
                    self._state = "first"
            if self._state == "first":
                if len(self._rest) < len(self._mark) and self._mark.startswith(self._rest):
                    return
                if not self._rest.startswith(self._mark):
                    self._rest = self._rest[2:]
                self._state = "content"
            if self._state == "end":
                self._rest = b""
                return

    def _passed(self, count: int) -> Iterator[Data]:
        if count > 0:
            passed, self._rest = self._rest[:count], self._rest[count:]
            if self._state == "content":
                yield Data(passed)

    def _part(self, head: bytes) -> Part:
        self._parts += 1
        if self._parts > MOST_PARTS:
            raise _malformed(f"it has more than {MOST_PARTS} parts")
        if len(head) > MOST_HEAD:
            raise _malformed("the headers of a part are too long")
        disposition = encoding = ""
        for line in head.decode("utf-8", "replace").split("\r\n"):
            name, _, value = line.partition(":")
            if name.strip().lower() == "content-disposition":
                disposition = value
            elif name.strip().lower() in ("content-transfer-encoding", "content-encoding"):
                encoding = value.strip().lower()
        if encoding not in ("", "binary", "7bit", "8bit", "identity"):
            raise _malformed("its parts may not be encoded")
        values = {key.lower(): quoted if quoted or not plain else plain for key, quoted, plain in _PARAMETER.findall(disposition)}
        if disposition.partition(";")[0].strip().lower() != "form-data" or "name" not in values:
            raise _malformed("a part has no Content-Disposition with a name")
        return Part(_unquoted(values["name"]), _unquoted(values["filename"]) if "filename" in values else None)

    def finish(self) -> None:
        if self._state != "end":
            raise _malformed("it ends before its last boundary")


def _unquoted(value: str) -> str:
    """Browsers and clients escape quotes as %22 or with a backslash."""
    return re.sub(r"\\(.)", r"\1", value).replace("%22", '"')


def _malformed(why: str) -> RequestError:
    return RequestError(f"The multipart body cannot be read: {why}.", code="invalid_multipart")
