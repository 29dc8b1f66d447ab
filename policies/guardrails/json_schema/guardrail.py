"""The guardrail `json_schema`: answers must be JSON that follows a schema, the configuration's or the request's own."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence
from importlib import import_module
from itertools import islice
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from gateway.core.errors import RequestError
from gateway.core.plugins import Context
from gateway.core.specs import Spec
from gateway.core.types import ALLOW, InferenceRequest, Verdict
from policies.guardrails.json_schema.bounds import MAX_DEPTH, check, depth

MAX_SCHEMA: Final = 64 * 1024
MOST_FAULTS: Final = 8
"""Faults of one answer that are told."""
_KNOWN: Final = 256
_PATTERN_BYTES: Final = 1 << 20
"""The memory of one compiled pattern."""


class JsonSchemaSettings(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """schema, schema_file: what answers must follow. from_request: a request's own `response_format` counts too. repair: an answer that
    does not follow it is sent back to the model once, with the faults. max_length: characters of an answer."""

    schema: dict[str, Any] | None = None
    schema_file: str | None = None
    from_request: bool = False
    action: Literal["block", "annotate"] = "block"
    repair: bool = False
    max_length: Annotated[int, Meta(ge=1, le=1024 * 1024)] = 256 * 1024


class Shape:
    """A schema, ready to judge answers. None: any JSON object."""

    def __init__(self, schema: dict[str, Any] | None) -> None:
        """Raises ValueError with one sentence."""
        self._validator: Any = None
        if schema is None:
            return
        check(schema)
        library: Any = import_module("jsonschema_rs")  # 6 MB, only where it is needed
        patterns = library.RegexOptions(size_limit=_PATTERN_BYTES)  # Rust's `regex`: linear time, no look-arounds
        try:
            self._validator = library.validator_for(schema, pattern_options=patterns, validate_formats=False, retriever=_refuse)
        except (library.ValidationError, library.ReferencingError, ValueError, TypeError) as error:
            raise ValueError(f"it is not a schema: {str(error).splitlines()[0][:200]}") from None

    def faults(self, text: str, most: int) -> list[str]:
        """What is wrong with an answer, by the places of the schema's rules and never with a word of the answer. Empty: it follows the
        schema. most: characters of an answer."""
        if len(text) > most:
            return [f"more than {most} characters"]
        try:
            value = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return ["not valid JSON"]
        if depth(value) > MAX_DEPTH:
            return [f"nested deeper than {MAX_DEPTH} levels"]
        if _twice(text, value):
            return ["a key appears twice in one object"]
        if self._validator is None:
            return [] if isinstance(value, dict) else ["not a JSON object"]
        return [_said(error) for error in islice(self._validator.iter_errors(value), MOST_FAULTS)]


def _twice(text: str, value: Any) -> bool:
    """Whether a key is there twice in one object: the decoded value has one of them, the caller may read the other. Every key has a colon
    behind it."""
    colons = text.count(":")
    if text.find("\\u003") >= 0:
        single = text.replace("\\\\", "")
        colons += single.count("\\u003a") + single.count("\\u003A")
    return colons != msgspec.json.encode(value).count(b":")


def _refuse(uri: str) -> Any:
    raise ValueError("a schema may not refer to another one")


def _said(error: Any) -> str:
    """The rule that is broken: its place in the schema."""
    path = "/" + "/".join(str(step).replace("~", "~0").replace("/", "~1") for step in error.schema_path)
    if error.schema_path and error.schema_path[-1] == "required":
        return f"{path}: {error.message[:100]}"  # names the property as the schema does
    return path[:200]


class JsonSchemaGuardrail:
    """Implements gateway.core.shapes.ShapeJudge; its texts' part lets everything pass."""

    def __init__(self, name: str, settings: JsonSchemaSettings, own: Shape | None) -> None:
        self.name, self.repair = name, settings.repair
        self.action = settings.action
        self._from_request, self._most, self._own = settings.from_request, settings.max_length, own
        self._known: OrderedDict[bytes, Shape] = OrderedDict()

    def check(self, texts: Sequence[str]) -> Verdict:
        return ALLOW

    def stream(self) -> None:
        return None

    def concerned(self, request: InferenceRequest) -> bool:
        """Whether the answer to a request must follow a schema. Raises RequestError for a schema of its own that cannot be used."""
        return self._own is not None or (self._from_request and self._asked(request) is not None)

    def faults(self, request: InferenceRequest, contents: Sequence[str]) -> list[str]:
        """The faults of all contents of an answer, each once."""
        shapes = [self._own] if self._own is not None else []
        if self._from_request and (asked := self._asked(request)) is not None:
            shapes.append(asked)
        found = [fault for shape in shapes for content in contents for fault in shape.faults(content, self._most)]
        return list(dict.fromkeys(found))[:MOST_FAULTS]

    def _asked(self, request: InferenceRequest) -> Shape | None:
        found = request.api.answer_schema(request)
        if found is None:
            return None
        raw = bytes(found)
        shape = self._known.get(raw)
        if shape is None:
            try:
                if len(raw) > MAX_SCHEMA:
                    raise ValueError(f"the schema is longer than {MAX_SCHEMA} bytes")
                shape = Shape(msgspec.json.decode(raw) if raw else None)
            except (ValueError, msgspec.DecodeError, RecursionError) as error:
                raise RequestError(f"response_format: {error}.", param="response_format") from None
            self._known[raw] = shape
            if len(self._known) > _KNOWN:
                self._known.popitem(last=False)
        return shape


def build(settings: JsonSchemaSettings, context: Context) -> JsonSchemaGuardrail:
    """Raises ValueError with one sentence."""
    schema = settings.schema
    if settings.schema_file is not None:
        if schema is not None:
            raise ValueError("schema_file: give schema or schema_file, not both")
        try:
            schema = json.loads(context.read(settings.schema_file))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"schema_file: it is not JSON: {error}") from None
    if schema is None and not settings.from_request:
        raise ValueError("schema: give schema or schema_file, or set from_request: true")
    if schema is not None and len(msgspec.json.encode(schema)) > MAX_SCHEMA:
        raise ValueError(f"schema: it is longer than {MAX_SCHEMA} bytes")
    try:
        own = None if schema is None else Shape(schema)
    except ValueError as error:
        raise ValueError(f"schema: {error}") from None
    return JsonSchemaGuardrail(context.name, settings, own)
