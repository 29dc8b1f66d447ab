"""Requests that are forms with a file (RFC 7578): policies read the texts, the file is passed on while it arrives.

A form is held back until its texts are known, and a small one whole. What goes to the engine is written anew, so that both read the same
form: the texts first, then the file, under a name of ours. Of a large file only what the engine has not taken yet is in memory.

    GATHERING   the model, or the file, has not begun, or little has come: what comes is held
    HELD        the request goes through its policies and waits for an engine: nothing more is taken
    PASSING     what comes is passed on, as fast as the engine takes it
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
from collections.abc import Callable
from typing import Any, Final

import msgspec

from gateway.core.errors import GatehouseError, RequestError
from gateway.core.types import InferenceRequest
from gateway.core.uploads import BodySink
from gateway.core.waiting import Signal
from gateway.pipeline.exchange import Exchange
from gateway.pipeline.memory import STEP, UNCOUNTED
from gateway.wire.table import find

HELD_BYTES: Final = 256 * 1024
"""A form of up to so many bytes is held as a whole, whatever comes first in it."""
MAX_TEXT: Final = 256 * 1024
"""The most bytes of all its texts together."""
MAX_NAME: Final = 64
MAX_TEXTS: Final = 64
FILE: Final = "file"
FORMAT: Final = "response_format"
LISTS: Final = "[]"
"""The suffix of the names of texts that may be given more than once."""
_SUFFIX: Final = re.compile(r"\.([A-Za-z0-9]{1,8})$").search
_FIELDS: Final = msgspec.json.Decoder(dict[str, str | list[str]])


class Upload:
    """One form on its way through the pipeline. `part`, `data`, `end` and `room` are the server's, which reads it; it gives them what it
    reads in that order. begun: an engine has got some of it, so that no other one can get it. size: as it was announced, or the most that
    it may be. opening: done when what is known suffices for the policies."""

    def __init__(self, exchange: Exchange, size: int, start: Callable[[], None]) -> None:
        self._exchange, self.size, self.start = exchange, size, start
        self.opening: Signal[None] = Signal()
        self.begun = self.sent = self.over = self._paused = False
        self._complete = False
        self._texts: dict[str, list[str]] = {}
        self._late: dict[str, list[str]] = {}
        self._name = ""
        self._text = bytearray()
        self._spent = self._count = 0
        self._suffix: str | None = None
        self._held: list[bytes] = []
        self._bytes = self._reserved = 0
        self._digest = hashlib.sha256()
        self._boundary = secrets.token_hex(16).encode()
        self._sink: BodySink | None = None
        self.wake = asyncio.Event()

    # --- from the server

    def part(self, name: str, filename: str | None) -> None:
        """A part begins. Raises RequestError."""
        self._close_text()
        if filename is not None or name == FILE:
            if name != FILE or filename is None:
                raise RequestError(f"{FILE}: send the recording as a file, in a part of this name.", param=FILE, code="invalid_value")
            if self._suffix is not None:
                raise RequestError(f"{FILE}: only one is allowed.", param=FILE, code="invalid_value")
            found = _SUFFIX(filename)
            self._suffix = "" if found is None else found[1].lower()
            self._name = FILE
            return
        shown = name[:MAX_NAME]
        self._count += 1
        if not name or len(name) > MAX_NAME or self._count > MAX_TEXTS:
            raise RequestError(f"{shown}: no such field.", param=shown, code="invalid_value")
        if (name in self._texts or name in self._late) and not name.endswith(LISTS):
            raise RequestError(f"{shown} is given twice.", param=shown, code="invalid_value")
        if self.opening.done and self._guarded(self._exchange.request.model):  # type: ignore[union-attr]
            raise RequestError(
                f"{shown}: policies read the fields of this model; send them before the file.", param=shown, code="invalid_value"
            )
        self._name = name

    def data(self, data: bytes) -> None:
        """Some of the part. Raises RequestError."""
        if self._name == FILE:
            self._bytes += len(data)
            self._digest.update(data)
            if self._sink is None:
                self._held.append(data)
                self._reserve()
            else:
                self._sink.more(data)
            return
        self._spent += len(data)
        if self._spent > MAX_TEXT:
            raise RequestError(
                f"{self._name}: the text fields of a form may have {MAX_TEXT} bytes in total.", param=self._name, code="invalid_value"
            )
        self._text += data

    def end(self) -> None:
        """The form is complete. Raises RequestError."""
        self._close_text()
        if self._suffix is None:
            raise RequestError(f"{FILE} is required.", param=FILE, code="missing_required_parameter")
        self._complete = True
        x = self._exchange
        heard = {"bytes": self._bytes, "hash": x.snapshot.audit.hash_body(self._digest.digest())}
        x.detail = {**(x.detail or {}), FILE: heard}
        if self._sink is not None:
            self._sink.more(self._tail(self._last_texts()))
            self._sink.last()
            self.sent = True
        self.opening.set(None)

    @property
    def waits(self) -> bool:
        """Whether nothing more can be taken at the moment."""
        return not self.over and self.opening.done and (self._sink is None or self._paused)

    async def room(self) -> None:
        """Waits until more may be given, or the exchange is over. Raises RequestError for a form that cannot go on."""
        if self._enough():
            self.opening.set(None)
        while self.waits:
            self.wake.clear()
            await self.wake.wait()

    def _enough(self) -> bool:
        """Whether the policies can judge the form."""
        if self._suffix is None or self.opening.done:
            return False
        most = self._exchange.snapshot.spec.listen.max_body_bytes
        model = self._texts.get("model")
        if model is None:
            if self._bytes > most:
                raise RequestError(
                    f"model: send it before the file; at most {most} bytes of the file are held until it arrives.",
                    param="model",
                    code="invalid_value",
                )
            return False
        return self._bytes > (most if self._guarded(model[0]) else HELD_BYTES)

    def _guarded(self, model: str) -> bool:
        """Whether policies read the texts of requests for a model."""
        x = self._exchange
        entry = x.snapshot.models.get(model) if x.entry is None else x.entry
        return entry is not None and (bool(entry.request_guardrails) or x.plane.texts is not None)

    def _close_text(self) -> None:
        name, self._name = self._name, ""
        if not name or name == FILE:
            return
        try:
            text = self._text.decode()
        except UnicodeDecodeError:
            raise RequestError(f"{name}: not UTF-8.", param=name, code="invalid_value") from None
        self._text.clear()
        (self._late if self.opening.done else self._texts).setdefault(name, []).append(text)

    def _reserve(self) -> None:
        if self._bytes > max(self._reserved, UNCOUNTED):
            self._exchange.client.reserve(STEP)
            self._reserved += STEP

    # --- from the pipeline

    def fields(self) -> bytes:
        """The texts that are known, as a JSON object."""
        return msgspec.json.encode(_object(self._texts))

    @property
    def content(self) -> bytes:
        return b"content-type: multipart/form-data; boundary=%b\r\n" % self._boundary

    def body(self, fields: bytes) -> tuple[bytes, bool]:
        """The form for an engine, as far as it is known, and whether that is all. fields: the texts that it may get."""
        suffix = f".{self._suffix}" if self._suffix else ""
        head = b'--%b\r\ncontent-disposition: form-data; name="file"; filename="audio%b"\r\ncontent-type: application/octet-stream\r\n\r\n'
        parts = [self._written(_FIELDS.decode(fields)), head % (self._boundary, suffix.encode()), *self._held]
        if self._complete:
            parts.append(self._tail(b""))
        return b"".join(parts), self._complete

    def _tail(self, texts: bytes) -> bytes:
        return b"\r\n%b--%b--\r\n" % (texts, self._boundary)

    def _written(self, fields: dict[str, Any]) -> bytes:
        parts = []
        for name, given in fields.items():
            quoted = name.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A").encode()
            for value in given if isinstance(given, list) else (given,):
                parts.append(b'--%b\r\ncontent-disposition: form-data; name="%b"\r\n\r\n%b\r\n' % (self._boundary, quoted, value.encode()))
        return b"".join(parts)

    def _last_texts(self) -> bytes:
        """The texts that came behind a file that was being passed on. Raises RequestError for those that may not reach an engine."""
        if not self._late:
            return b""
        x = self._exchange
        assert x.request is not None and x.entry is not None
        late = x.request.api.form(x.path, msgspec.json.encode({"model": x.request.model, **_object(self._late)}), x.headers)
        if late.unknown:
            late.api.settle_unknown(late, x.entry.spec.unknown_fields, x.entry.spec.engine_tools)
        if FORMAT in late.fields:
            x.request.view.response_format = late.view.response_format  # by which the answer is read
        fields = _FIELDS.decode(msgspec.json.encode(late.fields))
        del fields["model"]
        return self._written(fields)

    # --- from the transport (BodySource)

    def attached(self, sink: BodySink) -> None:
        self._sink, self.begun = sink, True
        self._held.clear()
        self.wake.set()

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self.wake.set()

    # --- the end

    def failed(self, error: GatehouseError) -> None:
        """The form cannot be read."""
        self._exchange.cancel(error)

    def close(self) -> None:
        """The exchange is over."""
        self.over, self._sink = True, None
        self._held.clear()
        self.wake.set()


def _object(texts: dict[str, list[str]]) -> dict[str, Any]:
    return {name: given if name.endswith(LISTS) else given[0] for name, given in texts.items()}


async def opened(x: Exchange) -> tuple[bytes, InferenceRequest]:
    """The texts of a form, and the request that they make up. Raises RequestError."""
    upload = x.upload
    x.client.read_body()
    upload.start()
    await upload.opening  # the connection's deadline bounds the wait
    fields = upload.fields()
    api = find(x.path)
    assert api is not None
    request = x.request = api.form(x.path, fields, x.headers)
    request.content = upload.content
    return fields, request
