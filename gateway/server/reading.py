"""Reading requests: bytes in, ParsedRequests out, everything bounded. Knows nothing of answers.

A request that is malformed, too large or ambiguous (RFC 9112) is refused, and nothing behind it on the same connection is read: it could be
taken for a request that the client never sent.
"""

from __future__ import annotations

from typing import Final

import httptools

from gateway.core.errors import GatehouseError, RequestError
from gateway.core.proofs import PROOF, note_target
from gateway.core.types import Headers
from gateway.pipeline.memory import UNCOUNTED
from gateway.pipeline.plane import DataPlane
from gateway.server.head import REQUEST_ID, UNDERSCORE, check_head, foreign_protocol, malformed, split_target
from gateway.server.refusals import body_too_large, head_too_large
from gateway.server.request import KnownRequest, ParsedRequest, Refusal
from gateway.server.states import BEGIN, BETWEEN, BODY, HEAD, HEAD_READ, MESSAGE_READ, OVER, READING, STOP, UPGRADE, UPGRADE_ASKED, after
from gateway.server.upgrade import parser_after
from gateway.transport.repeated import LENGTH, MOST_DIGITS, TRIES, known_head, number
from gateway.wire.table import APIS

SINGLE: Final = frozenset(
    {b"authorization", b"content-length", b"host", b"content-type", b"transfer-encoding", b"x-api-key", b"api-key", b"traceparent"}
)
"""Headers that may occur only once: of two, another reader could take the other one."""
_COMMON: Final = (
    *SINGLE,
    *(b"accept", b"accept-encoding", b"accept-language", b"connection", b"user-agent", b"x-request-id", b"x-forwarded-for", b"forwarded"),
)
LOWERED: Final = {spelt: name for name in _COMMON for spelt in (name, name.title())}
"""Names of headers as most clients spell them. Their hashes are known, and none has an underscore."""
NEVER: Final = float("inf")
MOST_PARTS: Final = 4096
"""Parts of a body that are kept as they came: of two bytes, each is twenty times as large in memory."""
_ALONE: Final = (b"transfer-encoding", b"expect", b"upgrade", b":version")
"""What a request with these means is more than its lines."""
UPLOAD: Final = b"/v1/files"
UPLOADS: Final = frozenset(path for api in APIS if api.forms for path in api.paths)
"""Where bodies are taken as they arrive."""


class RequestReader:
    """The reading half of a connection; the other half (protocol.Connection) extends it. See states.READING.

    `due`: monotonic time by which what is being read must be complete. `request`: the one whose body is being read.
    `refusal`: set when reading has ended with an error. A request whose head is that of the one before is read without the parser, which
    sees none of it; `_owed`: bytes of its body that are still to come.
    """

    def __init__(self, plane: DataPlane) -> None:
        self.plane = plane
        self.limits = plane.current().spec.listen
        self.due = plane.now + self.limits.header_timeout
        self.reading = BETWEEN
        self.request: ParsedRequest | None = None
        self.refusal: Refusal | None = None
        self.parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._headers: Headers = {}
        self._head_bytes = self._repeats = 0
        self._unparsed_bytes = 0
        self._begun = 0
        self._line = b""
        self._read = b""
        self._known: KnownRequest | None = None
        self._tries = TRIES
        self._owed = 0

    # --- what the other half does with requests

    def head_read(self, request: ParsedRequest) -> None:
        """A request's head is complete. Raises to refuse it (`rejected`)."""
        raise NotImplementedError

    def body_read(self, request: ParsedRequest, body: bytes) -> None:
        """A request is complete."""
        raise NotImplementedError

    def body_grew(self, request: ParsedRequest) -> None:
        """The body has become larger than its `room`: an admitted one takes more memory. Raises to refuse it (`rejected`)."""
        raise NotImplementedError

    # --- what it asks of this half

    def parse(self, data: bytes) -> Refusal | None:
        """Reads what the client sent; the reason when it must be refused."""
        if self._owed or (self._known is not None and self.reading == BETWEEN):
            rest = self._parsed_before(data)
            if self.refusal is not None:
                return self.refusal
            if not rest:
                return None
            data = rest
        before, state, begun = self.request, self.reading, self._begun
        one_head = begun + (state != HEAD) if before is None else -1
        if state == BETWEEN:
            self._read = data
        elif self._line and (refusal := self._line_refused(self._line + data)) is not None:
            return refusal
        try:
            self._feed(data)
        except httptools.HttpParserError as error:
            if self.refusal is None:
                self.refusal = Refusal(malformed(str(error)))
            return self.refusal
        if self._begun - begun > (state == BETWEEN):  # there are request lines in it that were not looked at yet
            if foreign_protocol(data):
                return self._foreign()
            self._line = data[data.rfind(b"\n") + 1 :] if self.reading == HEAD else b""
        elif self._read:  # a head began in it and did not end
            self._read = b""
            if (refusal := self._line_refused(data.lstrip(b"\r\n"))) is not None:
                return refusal
        limits = self.limits
        if self.reading == HEAD:
            if self._begun == one_head:  # all of this read belongs to one head, of which the parser may not have told anything yet
                self._unparsed_bytes += len(data)
                if self._unparsed_bytes > limits.max_header_bytes:
                    return Refusal(head_too_large(limits.max_header_bytes))
        elif before is not None and self.request is before:  # all of it belongs to one body: chunk sizes and extensions are bounded too
            self._unparsed_bytes += len(data)
            if self._unparsed_bytes - before.size > limits.max_body_bytes + limits.max_header_bytes:
                return Refusal(body_too_large(limits.max_body_bytes))
        return None

    def _parsed_before(self, data: bytes) -> bytes:
        """Reads what needs no parser; what is left of the data. Sets `refusal` where it must be refused."""
        try:
            while data:
                if not self._owed:
                    data = self._repeated(data)
                    if not self._owed:
                        break
                if len(data) > self._owed:
                    part, data = data[: self._owed], data[self._owed :]
                else:
                    part, data = data, b""
                if part:
                    self._owed -= len(part)
                    self.on_body(part)
                    if not self._owed:
                        self.on_message_complete()
        except GatehouseError:
            if self.refusal is None:
                raise
        return data

    def _repeated(self, data: bytes) -> bytes:
        """Takes a head that is known from the beginning of the data; what follows it. Without one the data is as before."""
        known, limits = self._known, self.limits
        if known is None or self.reading != BETWEEN or known.limits is not limits:
            return data
        head = known.head
        digits = head.digits(data)
        size = number(digits)
        bound = limits.max_body_bytes
        if not size or size > bound:
            return data
        headers = known.headers.copy()
        headers[LENGTH] = digits
        request = ParsedRequest(known.method, known.path, known.query, headers, True, known.named or self.plane.next_id())
        request.bound = bound
        self._tries = TRIES
        self._owed = size
        self.reading = BODY
        self.request = request
        self.due = self.plane.now + limits.body_timeout
        self.head_read(request)
        return data[len(head.before) + len(digits) + len(head.after) :]

    def _remember(self, request: ParsedRequest, data: bytes, named: bytes) -> None:
        """The head of this request, with which the data begins, may come again. named: its own identifier. What is sent behind a last
        request is for the parser to refuse; uploads have bounds of their own."""
        limits, headers, path = self.limits, request.headers, request.raw_path
        self._known = None
        if not self._tries or not request.keep_alive or request.streams or path == UPLOAD or LENGTH not in headers:
            return
        for name in _ALONE:
            if name in headers:
                return
        if self._head_bytes + MOST_DIGITS > limits.max_header_bytes:
            return
        self._tries -= 1
        head = known_head(data, request.method + b" ", headers[LENGTH])
        if head is not None:
            self._known = KnownRequest(head, request, named, limits)

    def _line_refused(self, line: bytes) -> Refusal | None:
        """Looks at the request line with which a head begins that comes in parts; keeps what there is of it until it is whole."""
        end = line.find(b"\n") + 1
        if not end:
            self._line = line
            return None
        self._line = b""
        return self._foreign() if foreign_protocol(line[:end]) else None

    def _foreign(self) -> Refusal:
        self.refusal = Refusal(RequestError("This protocol is not supported; use HTTP/1.1.", code="invalid_request"), drops=True)
        return self.refusal

    def rejected(self, error: GatehouseError, request: ParsedRequest | None = None) -> GatehouseError:
        """Notes why reading ends here; the caller raises what this returns, and the parser stops."""
        self.refusal = Refusal(error, request)
        return error

    def stop_reading(self) -> None:
        """No further request is read."""
        self.reading = after(READING, self.reading, STOP)
        self.request = None

    def release_parser(self) -> None:
        """Breaks the circle of parser and connection, so that both are freed as soon as the client is gone."""
        request, self.request = self.request, None
        if request is not None:
            request.parts.clear()
        self._headers = {}
        self.parser = None

    # --- called by the parser

    def _feed(self, data: bytes) -> None:
        """At a request to change the protocol the parser stops, and another one goes on."""
        while True:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                self.parser, head = parser_after(self._headers, self)
                data = head + data[upgrade.args[0] :]

    def on_message_begin(self) -> None:
        self.reading = after(READING, self.reading, BEGIN)
        self._url = b""
        self._headers = {}
        self._head_bytes = self._repeats = 0
        self._unparsed_bytes = 0
        self._begun += 1
        if self.reading == HEAD:
            self.due = self.plane.now + self.limits.header_timeout

    def on_url(self, url: bytes) -> None:
        self._url += url
        self._head_bytes += len(url)
        if self._head_bytes > self.limits.max_header_bytes:
            raise self.rejected(head_too_large(self.limits.max_header_bytes))

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.reading != HEAD:
            if self.reading == OVER:
                return
            raise self.rejected(RequestError("Trailer fields are not supported.", code="invalid_request"))
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > self.limits.max_header_bytes:
            raise self.rejected(head_too_large(self.limits.max_header_bytes))
        headers = self._headers
        known = LOWERED.get(name)
        name = name.lower() if known is None else known
        if name in headers:
            if name in SINGLE:
                raise self.rejected(RequestError(f"The header {name.decode('latin-1')} is given twice.", code="invalid_header"))
            self._repeats += 1
            if self._repeats > self.limits.max_headers:  # each of them copies what is there
                raise self.rejected(head_too_large(self.limits.max_header_bytes))
            headers[name] = headers[name] + b", " + value
        elif known is not None or UNDERSCORE not in name:
            headers[name] = value

    def on_headers_complete(self) -> None:
        headers, parser, plane, limits = self._headers, self.parser, self.plane, self.limits
        upgrades = parser.should_upgrade()
        self.reading = after(READING, self.reading, UPGRADE_ASKED if upgrades else HEAD_READ)
        if self.reading == OVER:
            return
        if len(headers) + self._repeats > limits.max_headers or self._head_bytes > limits.max_header_bytes:
            raise self.rejected(head_too_large(limits.max_header_bytes))
        if upgrades and parser.get_method() == b"CONNECT":
            raise self.rejected(RequestError("CONNECT is not supported.", code="invalid_request"))
        method, read = parser.get_method(), self._read
        if read:
            self._read = b""
            place = len(method) + 1 + len(self._url)
            if read[place : place + 6] != b" HTTP/" and foreign_protocol(read[: read.find(b"\n", place) + 1]):
                raise self.rejected(self._foreign().error)
        path, query = split_target(self._url)
        if PROOF in headers:
            note_target(headers, method, path)
        keep_alive = parser.should_keep_alive()
        if (not keep_alive or b"connection" in headers) and (version := parser.get_http_version()) != "1.1":
            self._old_version(version, headers)
            keep_alive = False
        given = headers.get(b"x-request-id")
        request_id = given if given is not None and REQUEST_ID(given) else plane.next_id()
        request = ParsedRequest(method, path, query, headers, keep_alive, request_id)
        request.bound = limits.max_body_bytes
        if path in UPLOADS and method == b"POST":
            request.bound, request.streams = limits.max_upload_bytes, True
        elif plane.upload_bytes and path == UPLOAD and method == b"POST":
            request.bound, request.streams = plane.upload_bytes, True
        error = check_head(method, path, headers, request.bound)
        if error is not None:
            raise self.rejected(error, request)
        self._remember(request, read, request_id if request_id is given else b"")
        self.request = request
        self.due = plane.now + limits.body_timeout
        self.head_read(request)

    def _old_version(self, version: str, headers: Headers) -> None:
        """Versions other than HTTP/1.1 (RFC 9112, 2.3, 6.1 and 9.3): HTTP/1.0 has no transfer codings, and its connections end with their
        answer, since a client that asks for more would have to be told that it gets it. No other version is served."""
        if version != "1.0":
            raise self.rejected(RequestError(f"HTTP/{version} is not supported; use HTTP/1.1.", code="invalid_request"))
        if b"transfer-encoding" in headers:
            raise self.rejected(RequestError("HTTP/1.0 has no Transfer-Encoding.", code="invalid_header"))
        headers.pop(b"expect", None)  # without meaning in HTTP/1.0 (RFC 9110, 10.1.1), whose clients know no 100
        headers[b":version"] = b"1.0"  # a name that no client can send

    def on_body(self, data: bytes) -> None:
        request = self.request
        if request is None:
            return
        request.size += len(data)
        if request.size > request.bound:
            raise self.rejected(body_too_large(request.bound))
        if request.size > request.room:
            self.body_grew(request)
        request.parts.append(data)
        if len(request.parts) >= MOST_PARTS and not request.streams:
            request.parts[:] = [b"".join(request.parts)]
        if request.arrived is not None:
            request.arrived()

    def on_message_complete(self) -> None:
        before = self.reading
        self.reading = after(READING, before, MESSAGE_READ)
        if before == UPGRADE:  # the end for the parser; the request's body follows
            return
        request, self.request = self.request, None
        if request is None:
            return
        self.due = NEVER
        parts = request.parts
        if request.streams:
            body = b""
        elif len(parts) == 1:
            body = parts[0]
        else:
            body = b"".join(parts)
            parts.clear()  # a large body is not held twice
        request.body = body
        request.complete = True
        if request.arrived is not None:
            request.arrived()
        self.body_read(request, body)

    def readable(self, request: ParsedRequest) -> bool:
        """Whether more of a body may be read: a large one only once its memory is taken, which is when its handler asks for it; one that
        streams only while little of it waits to be taken."""
        if request.streams:
            return request.size - request.taken <= UNCOUNTED
        if request.admitted:
            return True
        declared = request.declared()
        return (request.size if declared is None else declared) <= UNCOUNTED

    @property
    def in_request(self) -> bool:
        """Whether a request is being read."""
        return self.reading == HEAD or self.reading == BODY or self.reading == UPGRADE
