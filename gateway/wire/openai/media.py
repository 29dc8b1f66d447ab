"""Images, sounds and files in messages: only content that the client sends, in base64. Engines never fetch what a user names."""

from __future__ import annotations

import re
import string
from base64 import b64decode
from typing import Any, Final
from urllib.parse import unquote

from gateway.core.errors import GuardrailViolation, RequestError

_ALPHABET: Final = (string.ascii_letters + string.digits + "+/_-=\r\n").encode()
_DATA_URL: Final = re.compile(r"data:[\w.+-]+/[\w.+-]+(?:;[\w.+-]+=[\w.+-]+){0,8};base64,", re.ASCII)
_ADDRESS: Final = re.compile(r"\s*(?!data:)(?:[A-Za-z][A-Za-z0-9+.-]*:|/|~/|\.\.?[/\\]|\\\\)")
_STANDARD: Final = str.maketrans("-_", "+/", "\r\n")
_HEAD: Final = 512
"""Characters of base64 by which a text is told from an image or a sound; a multiple of four."""
MOST_PIECES: Final = 65_536
"""Of the files of one request, each of which is decoded by itself: percent-encoded bytes, and base64 between padding."""
_BINARY: Final = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
CONTENT: Final = frozenset({"url", "data", "file_data"})
"""Where the declared places of media hold the content."""


def is_base64(value: str) -> bool:
    """Whether a text can only be base64: its alphabet, whole groups of four."""
    return len(value) % 4 == 0 and in_alphabet(value)


def in_alphabet(value: str) -> bool:
    return value.isascii() and not value.encode().translate(None, _ALPHABET)


def is_media(value: str) -> bool:
    """Whether a value in a place for media is media: base64, bare or as a data URL. Anything else is a text."""
    url = _DATA_URL.match(value)
    if url is None:
        return is_base64(value)
    return is_base64(value[url.end() :])


class Pieces:
    """Counts what of a request's files is decoded by itself."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def add(self, count: int) -> None:
        """Raises GuardrailViolation for more than files have."""
        self.count += count
        if self.count > MOST_PIECES:
            raise GuardrailViolation("The files are percent-encoded, or padded, in too many places to be read.", code="guardrail")


def written(value: str, pieces: Pieces) -> str | None:
    """What media say that are a text (a file of plain text, Markdown, CSV): a model reads it as it reads the message. None for all others,
    which are known by their first bytes: images, sounds and PDF begin with bytes that no text has."""
    url = _DATA_URL.match(value)
    begin = 0 if url is None else url.end()
    head = _decoded(value[begin : begin + _HEAD], pieces)
    if url is None or not value.startswith("data:text/"):
        try:
            head.decode()
        except UnicodeDecodeError as error:
            if error.start < len(head) - 3:
                return None
        if _BINARY.search(head):
            return None
    data = _decoded(value[begin:], pieces)
    return data.decode("utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8", "replace") or None


def unquoted(value: Any, pieces: Pieces) -> str | None:
    """What a data URL with percent-encoding says (RFC 2397), which is no base64 as it stands. None for all other values."""
    if value.__class__ is not str or not value.startswith("data:") or "%" not in value:
        return None
    pieces.add(value.count("%"))
    plain = unquote(value)
    return written(plain, pieces) if is_media(plain) else plain


def _decoded(value: str, pieces: Pieces) -> bytes:
    """What is in base64, of either alphabet, with padding or without. Behind padding it may go on."""
    pieces.add(value.count("="))
    parts = value.translate(_STANDARD).split("=")
    return b"".join([b64decode(part[: len(part) - (len(part) % 4 == 1)] + "==") for part in parts if part])


def refuse_addresses(value: Any, place: str) -> None:
    """Refuses a value, of a setting or an unknown field of a part or document, that names an address or a file. Raises RequestError."""
    stack = [value]
    while stack:
        found = stack.pop()
        if isinstance(found, str):
            if _ADDRESS.match(found):
                raise remote(place)
        elif isinstance(found, dict):
            stack.extend(found.values())
        elif isinstance(found, list):
            stack.extend(found)


def check_url(value: Any, place: str) -> None:
    """Refuses an address that is not a data URL, also inside an object or a list. Raises RequestError."""
    if isinstance(value, str):
        if not value.startswith("data:"):
            raise remote(place)
    elif isinstance(value, dict | list):
        refuse_addresses(value, place)


def check_data(value: Any, place: str) -> None:
    """Refuses a value that should be base64 or a data URL and is not. Raises RequestError."""
    if isinstance(value, dict | list):
        raise RequestError(f"{place}: expected a text in base64.", param=place)
    if isinstance(value, str) and not value.startswith("data:") and not in_alphabet(value):
        raise RequestError(f"{place}: not base64; remote media are not fetched.", param=place)


def remote(place: str) -> RequestError:
    return RequestError(f"{place}: remote media are not fetched; send a data: URL.", param=place)
