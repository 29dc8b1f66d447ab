"""The base of operations whose requests are JSON objects: how such a body is parsed, at once or in steps, and what all of them share.

Policy reads a typed view of a request; what is forwarded is a top-level object written anew, each key once and unescaped, with the
client's own bytes as its values. The same dictionary of raw values makes every change of the body cheap.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from gateway.core.errors import EngineError, RequestError
from gateway.core.types import Headers, InferenceRequest, Usage
from gateway.core.wire import JSON, WireApi
from gateway.wire.bodies import refuse_infinite, unreadable
from gateway.wire.openai.answers import is_json
from gateway.wire.openai.structure import Structure
from gateway.wire.openai.usage import tells_error, usage_of
from gateway.wire.openai.views import METADATA
from gateway.wire.scan import check, steps

FIELDS: Final = msgspec.json.Decoder(dict[str, Raw])
ENCODER: Final = msgspec.json.Encoder()
_fields: Final = FIELDS.decode
"""A method that is looked up once."""


class JsonApi(WireApi):
    """view: the type of the request. known: the names at its top level that may reach an engine."""

    __slots__ = ("_known", "_read", "_unread", "_view")

    def __init__(
        self,
        operation: str,
        paths: tuple[bytes, ...],
        view: type[Struct],
        known: frozenset[str],
        *,
        prefix: bytes = b"",
        generates: bool = False,
        moderates: bool = False,
        dialect: str = "",
    ) -> None:
        super().__init__(operation, paths, prefix=prefix, generates=generates, moderates=moderates, dialect=dialect)
        self._view = msgspec.json.Decoder(view).decode
        self._known = known
        self._read = frozenset([field.encode_name for field in msgspec.structs.fields(view)])
        self._unread = known - self._read

    # --- requests

    def parse(self, path: bytes, body: bytes, headers: Headers, max_depth: int, max_nodes: int) -> InferenceRequest:
        check(body, max_depth, max_nodes)
        try:
            view: Any = self._view(body)
            fields: dict[str, Raw] = _fields(body)
            if not body.isascii():
                body.decode()
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise unreadable(body, error) from None
        request = InferenceRequest(self, path, view.model, fields, view, content=self._content(headers))
        settled = not (self._known.issuperset(fields) and self._in_order(request, body))
        if settled:
            for _ in self._settled(request, body):
                pass
        if settled or not self._unread.isdisjoint(fields):
            refuse_infinite(fields, self._read, settled)
        self._finish(request, len(body))
        return request

    def parse_steps(
        self, path: bytes, body: bytes, headers: Headers, max_depth: int, max_nodes: int
    ) -> Generator[None, None, InferenceRequest]:
        yield from steps(body, max_depth, max_nodes)
        try:
            view: Any = self._view(body)
            yield
            fields: dict[str, Raw] = _fields(body)
            yield
            if not body.isascii():
                body.decode()
                yield
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise unreadable(body, error) from None
        request = InferenceRequest(self, path, view.model, fields, view, content=self._content(headers))
        settled = not (self._known.issuperset(fields) and (yield from self._in_order_steps(request, body)))
        if settled:
            yield
            yield from self._settled(request, body)
        if settled or not self._unread.isdisjoint(fields):
            refuse_infinite(fields, self._read, settled)
        self._finish(request, len(body))
        return request

    def _content(self, headers: Headers) -> bytes:
        """The header lines about the body that the engine gets."""
        return JSON

    def _in_order(self, request: InferenceRequest, body: bytes) -> bool:
        """Whether it is plain at a glance that the body has nothing that `_structure` would refuse. False proves nothing."""
        return False

    def _in_order_steps(self, request: InferenceRequest, body: bytes) -> Generator[None, None, bool]:
        """The same for a large body, with pauses."""
        yield
        return self._in_order(request, body)

    def _structure(self, fields: dict[str, Raw]) -> Structure:
        """The check of names, kinds and media everywhere in the request."""
        return Structure(self.operation, self._known, fields)

    def _settled(self, request: InferenceRequest, body: bytes) -> Generator[None, None, None]:
        """The whole check, with pauses. Raises RequestError."""
        structure = self._structure(request.fields)
        yield from structure.steps(body)
        if structure.unknown:
            request.unknown = tuple(structure.unknown)

    def _finish(self, request: InferenceRequest, length: int) -> None:
        """The parts of the request that limits and the relay read."""
        request.prompt_tokens = length >> 2

    def rename(self, request: InferenceRequest, model: str) -> None:
        request.model = model
        request.fields["model"] = Raw(ENCODER.encode(model))

    def label(self, request: InferenceRequest) -> str:
        found = self._metadata(request, METADATA)
        return "" if found is None else str(found.data_label)

    def _metadata(self, request: InferenceRequest, decoder: Any) -> Any:
        """A view of the request's metadata; None without any. Raises RequestError."""
        given = request.fields.get("metadata")
        if given is None:
            return None
        try:
            return decoder.decode(given)
        except msgspec.DecodeError as error:
            raise RequestError(f"metadata: {error}.", param="metadata", code="invalid_value") from None

    # --- answers

    def received(self, request: InferenceRequest, body: bytes) -> bytes:
        if not is_json(body):
            raise EngineError("The engine's answer is not JSON.")
        if tells_error(body):
            raise EngineError("The engine failed while it was answering.")
        return body

    def answer_usage(self, request: InferenceRequest, body: bytes) -> Usage | None:
        reported = self._usage(request, body)
        if reported is not None or not is_json(body) or tells_error(body):
            return reported
        return Usage(request.prompt_tokens, len(body) >> 2 if self.generates else 0, 0, True)

    def _usage(self, request: InferenceRequest, body: bytes) -> Usage | None:
        """What the engine reports."""
        return usage_of(body)
