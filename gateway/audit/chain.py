"""The hash chain: line n carries H(n) = SHA-256(H(n-1) as 64 hex characters, then the line's body), in lower-case hex.

The body is everything in the line before `,"hash":"`, so it covers `seq`, `kind` and every field. Each segment's header carries the
hash before it, so the chain runs through all segments of one writer. With a shell: `printf %s%s "$previous" "$body" | sha256sum`.
A hash costs half a microsecond a record, or three without SHA instructions. Hashing whole batches would save that, and would take the
standard, line-by-line proof from the auditor.
"""

from __future__ import annotations

import hashlib
import re
from binascii import hexlify
from collections.abc import Iterator, Sequence
from typing import BinaryIO, Final, TypeAlias

import msgspec

from gateway.audit.encode import encode, encode_all
from gateway.audit.record import KINDS, MAX_LINE, Line, Record

FORMAT: Final = 1
GENESIS: Final = "0" * 64
"""The hash before the first line of a writer's first segment."""
_MARK: Final = b',"hash":"'
_END: Final = b'"}\n'
_TAIL: Final = len(_MARK) + 64 + len(_END)
_fresh: Final = hashlib.sha256().copy
_hex: Final = hexlify
_HEX64: Final = re.compile(rb"[0-9a-f]{64}")

_KINDS: Final = KINDS
"""Compiled, a Final is one load, and a name that was imported a look-up."""

Entry: TypeAlias = Record | bytes
"""A record, or the payload of one that is encoded already."""


class ChainError(Exception):
    """A line is not the one that belongs here. The message says why."""


_decode_line = msgspec.json.Decoder(Line).decode


class Draft:
    """Lines that are linked ahead of their batch: to one another, and to the line that the chain ended with when the draft began. They are
    the chain's next lines as long as it still ends there. `count`: how many there are."""

    __slots__ = ("_head", "_pieces", "_root", "_start", "count")

    def __init__(self, chain: Chain) -> None:
        self._start = chain.seq
        self._root = self._head = chain.head.encode()
        self._pieces: list[bytes] = []
        self.count = 0

    def follows(self, chain: Chain) -> bool:
        """Whether the chain ends where the draft begins."""
        return self._start == chain.seq and self._root == chain.head.encode()

    @property
    def end(self) -> tuple[int, str]:
        """Number and hash of the last line."""
        return self._start + self.count, self._head.decode()

    @property
    def data(self) -> bytes:
        """The lines."""
        return b"".join(self._pieces)

    def extend(self, payloads: Sequence[bytes]) -> None:
        """Links a line for each payload."""
        for encoded in payloads:
            self._link(encoded)

    def follow(self, entries: list[Entry], most: int) -> None:
        """Links the entries that come next, up to so many, and not beyond one that is not encoded yet. entries: of the whole batch."""
        place, end = self.count, min(len(entries), self.count + most)
        while place < end:
            entry = entries[place]
            if not isinstance(entry, bytes):
                return
            self._link(entry)
            place += 1

    def _link(self, encoded: bytes) -> None:
        """The payload is kept as it is, as a copy of it would be twice the line's size in memory. What is hashed is copied for that: one
        call costs more than a copy of a line."""
        self.count += 1
        begin = b'{"seq":%d' % (self._start + self.count)
        digest = _fresh()
        digest.update(b"%b%b%b" % (self._head, begin, encoded))
        head: bytes = _hex(digest.digest())
        pieces = self._pieces
        pieces.append(begin)
        pieces.append(encoded)
        pieces.append(b"%b%b%b" % (_MARK, head, _END))
        self._head = head


class Chain:
    """The state between two lines: `seq` and `head` of the last one. Sealing changes nothing until `commit`."""

    __slots__ = ("_next_head", "_next_seq", "head", "seq")

    def __init__(self, seq: int = 0, head: str = GENESIS) -> None:
        self.seq, self.head = seq, head
        self._next_seq, self._next_head = seq, head

    def seal(self, records: Sequence[Entry], draft: Draft | None = None) -> bytes:
        """The records as linked lines, ready to be written after the last committed one. They follow an earlier seal only if that
        was committed. `draft`: the first of these records, already linked; ignored unless it still follows the chain."""
        if draft is None or not draft.follows(self):
            draft = Draft(self)
        draft.extend(_payloads(records[draft.count :]))
        self._next_seq, self._next_head = draft.end
        return draft.data

    def commit(self) -> None:
        """The lines that were sealed last are written."""
        self.seq, self.head = self._next_seq, self._next_head


def payload(record: Record) -> bytes:
    """The part of a record's line between its sequence number and its hash."""
    return _KINDS[type(record)] + encode(record)[1:-1]


def _payloads(records: Sequence[Entry]) -> list[bytes]:
    """The payload of each."""
    fresh: list[Record] = [record for record in records if not isinstance(record, bytes)]
    if len(fresh) != len(records):
        return [record if isinstance(record, bytes) else payload(record) for record in records]
    return [_KINDS[type(record)] + encoded[1:-1] for record, encoded in zip(fresh, encode_all(fresh), strict=True)]


def payload_of(line: bytes) -> bytes:
    """The payload of a well-formed line with its line feed. Any other line gives bytes that are not a payload, or none."""
    begin, end = line.find(b","), len(line) - _TAIL
    return line[begin:end] if 0 <= begin < end else b""  # compiled, a slice that starts behind its end raises SystemError


def check_line(line: bytes, seq: int, head: bytes) -> bytes:
    """Verifies that `line` (with its line feed) is line number `seq` and follows the hash `head`; returns its hash. Raises ChainError."""
    body = line[:-_TAIL]
    digest = _fresh()
    digest.update(head + body)
    found = digest.hexdigest().encode()
    if line[-_TAIL:] == _MARK + found + _END and body.startswith(b'{"seq":%d,' % seq):
        return found
    raise ChainError(_reason(line, seq, found))


def _reason(line: bytes, seq: int, found: bytes) -> str:
    if line[-1:] != b"\n":
        return "the line is cut off"
    if line[-_TAIL : -_TAIL + len(_MARK)] != _MARK or line[-3:] != _END:
        return "the line is not an audit record"
    if line[-67:-3] != found:
        return "the hash does not match the record and the line before it"
    return f"sequence number {seq} expected"


def read_lines(file: BinaryIO) -> Iterator[bytes]:
    """The lines of a file from its current position, each with its line feed (the last one perhaps without), in constant memory: a line
    that is longer than any record comes in pieces, none of which counts as a whole line."""
    return iter(lambda: file.readline(MAX_LINE), b"")


def read_line(line: bytes) -> Line | None:
    """What a well-formed line claims to be (its hash is not checked); None for any other line."""
    if line[-1:] != b"\n" or line[-_TAIL : -_TAIL + len(_MARK)] != _MARK or not _HEX64.fullmatch(line[-67:-3]):
        return None
    try:
        return _decode_line(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
