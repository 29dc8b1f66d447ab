"""The input of a batch: JSON Lines (https://jsonlines.org), one request a line, as OpenAI's Batch API has it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec

from gateway.core.batches import MOST_ERRORS, BatchError
from gateway.core.errors import RequestError
from gateway.wire import unique

MOST_ID: Final = 512
"""Characters of a `custom_id`."""
_WRITTEN: Final = re.compile(rb"[^ \t\r\n]").search
_MARKS: Final = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")
"""Byte order marks of UTF-8 and UTF-16."""
_FIELD: Final = re.compile(r"`\$\.(\w+)`|required field `(\w+)`").search
"""Finds the field in an error of msgspec."""


class Line(msgspec.Struct):
    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


class _Body(msgspec.Struct):
    model: Any = None
    stream: Any = None
    background: Any = None


class Asked(NamedTuple):
    """One request of a batch. number: of its line, from 1."""

    number: int
    custom_id: str
    model: str
    body: bytes


class LineRefused(Exception):
    def __init__(self, error: BatchError) -> None:
        super().__init__(error.message)
        self.error = error


_LINE: Final = msgspec.json.Decoder(Line)
_BODY: Final = msgspec.json.Decoder(_Body)
_FIELDS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Splitter:
    """Cuts a stream of bytes into lines. Blank lines are counted, however many, but not given; nor is what is blank before a line. most:
    bytes of one line; a longer one is given as far as it was read, and ends the reading (`overlong`)."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._rest = bytearray()
        self.number = 0
        self.overlong = False

    def feed(self, data: bytes, last: bool = False) -> Iterator[tuple[int, bytes]]:
        start = 0
        while not self.overlong:
            if not self._rest:
                written = _WRITTEN(data, start)
                begins = len(data) if written is None else written.start()
                self.number += data.count(b"\n", start, begins)
                start = begins
            end = data.find(b"\n", start)
            if end < 0:
                self._rest += data[start:]
                break
            line, start = bytes(self._rest) + data[start:end], end + 1
            self._rest.clear()
            yield from self._given(line)
        if len(self._rest) > self._most or (last and self._rest and not self.overlong):
            line = bytes(self._rest)
            self._rest.clear()
            yield from self._given(line)

    def _given(self, line: bytes) -> Iterator[tuple[int, bytes]]:
        self.number += 1
        self.overlong = self.overlong or len(line) > self._most
        yield self.number, line


def asked(number: int, line: bytes, endpoint: str, most: int) -> Asked:
    """Raises LineRefused."""

    def refused(code: str, message: str, param: str | None = None) -> LineRefused:
        return LineRefused(BatchError(code=code, message=message, param=param, line=number))

    if len(line) > most:
        raise refused("line_too_long", f"The line has more than {most} bytes.")
    if number == 1 and line.startswith(_MARKS):
        raise refused("invalid_json_line", "The file begins with a byte order mark: save it as UTF-8 without one.")
    try:
        line.decode()
        found = _LINE.decode(line)
        twice = _twice(line)
    except UnicodeDecodeError as error:
        raise refused("invalid_json_line", f"The line is not UTF-8 (byte {error.start}).") from None
    except (msgspec.MsgspecError, RecursionError) as error:
        field = _FIELD(str(error))
        param = None if field is None else field[1] or field[2]
        raise refused("invalid_json_line", f"The line is not a request of a batch: {_reason(error)}.", param) from None
    if twice is not None:
        raise refused("invalid_json_line", f"The line is not a request of a batch: {twice.message}", twice.param)
    if not found.custom_id or len(found.custom_id) > MOST_ID:
        raise refused("invalid_custom_id", f"custom_id has 1 to {MOST_ID} characters.", "custom_id")
    if found.method != "POST":
        raise refused("invalid_method", "method must be POST.", "method")
    if found.url != endpoint:
        raise refused("invalid_url", f"url must be the batch's endpoint, {endpoint}.", "url")
    body = bytes(found.body)
    try:
        known = _BODY.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise refused("invalid_request", f"body is not an object: {_reason(error)}.", "body") from None
    if not isinstance(known.model, str) or not known.model:
        raise refused("invalid_request", "body.model is missing.", "body.model")
    if known.stream is True:
        raise refused("invalid_request", "body.stream: an answer of a batch cannot be streamed; leave it out.", "body.stream")
    if known.background is True:
        raise refused(
            "invalid_request", "body.background: a request of a batch cannot run in the background; leave it out.", "body.background"
        )
    return Asked(number, found.custom_id, known.model, body)


def _twice(line: bytes) -> RequestError | None:
    """Why the line has two readings: a field stands twice in it. What stands twice within `body` is found when the request runs."""
    fields = _FIELDS.decode(line)
    if unique.colons(line) == sum(1 + name.count(":") + unique.colons(bytes(value)) for name, value in fields.items()):
        return None
    return unique.duplicate(line, "")


def _reason(error: Exception) -> str:
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)[:200]


class Check:
    """What is wrong with an input. `total`: requests that were read."""

    def __init__(self, endpoint: str, most_lines: int, most_bytes: int) -> None:
        self._endpoint, self._most_lines, self._most_bytes = endpoint, most_lines, most_bytes
        self._splitter = Splitter(most_bytes)
        self._seen: dict[bytes, int] = {}
        """The first line of each `custom_id`, by its digest: a million ids of 512 characters would take 2 GB."""
        self.errors: list[BatchError] = []
        self.total = 0

    @property
    def over(self) -> bool:
        """Whether reading on would tell nothing more."""
        return len(self.errors) >= MOST_ERRORS or self._splitter.overlong or self.total > self._most_lines

    def feed(self, data: bytes, last: bool = False) -> None:
        for number, line in self._splitter.feed(data, last):
            if self.over and not self._splitter.overlong:
                return
            self._line(number, line)

    def _line(self, number: int, line: bytes) -> None:
        self.total += 1
        if self.total > self._most_lines:
            self.errors.append(BatchError(code="too_many_lines", message=f"The file has more than {self._most_lines} requests."))
            return
        try:
            found = asked(number, line, self._endpoint, self._most_bytes)
        except LineRefused as refused:
            self.errors.append(refused.error)
            return
        first = self._seen.setdefault(hashlib.blake2b(found.custom_id.encode(), digest_size=16).digest(), number)
        if first != number:
            message = f"custom_id: {found.custom_id[:64]!r} is the one of line {first} too; each must be unique."
            self.errors.append(BatchError(code="duplicate_custom_id", message=message, param="custom_id", line=number))

    def finish(self) -> None:
        if not self.over:
            self.feed(b"", last=True)
        if not self.total and not self.errors:
            self.errors.append(BatchError(code="empty_file", message="The file has no requests."))
