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
from policies.guardrails.json_schema.bounds import MAX_DEPTH, MAX_NODES, MAX_WORK, Cost, check, depth, numbers

MAX_SCHEMA: Final = 64 * 1024
MOST_FAULTS: Final = 8
"""Faults of one answer that are told."""
_KNOWN: Final = 256
_KNOWN_PATTERNS: Final = 1024
"""Of the schemas of requests that are kept ready."""
_PATTERN_BYTES: Final = tuple(1 << bits for bits in range(9, 21))
"""Of one compiled pattern: what is tried, and the most."""
_PATTERNS_BYTES: Final = 1 << 20
"""Of all compiled patterns of a request's schema: about twenty milliseconds."""
_CACHE_BYTES: Final = 256 * 1024
"""That matching one pattern may keep."""
MAX_PATTERNS: Final = 64
"""Different ones of a request's schema."""
WORK: Final = 100_000
"""Steps that the check of a request's schema may take: about ten milliseconds."""
_STATE_BYTES: Final = 64
"""Of one state of a compiled pattern, about."""
STEPS: Final = 8_000_000
"""What checking an answer against a request's schema may cost, in steps of an automaton: about 50 milliseconds."""
LISTED: Final = 12_000
"""Twice as many faults as are looked for at once: each costs 8 microseconds. Where there may be more, the first one ends the search."""
TOO_MUCH: Final = "too long to be checked against so large a schema"


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
    """A schema, ready to judge answers. None: any JSON object. bounded: a caller wrote it, so what it costs is bounded."""

    def __init__(self, schema: dict[str, Any] | None, bounded: bool = False) -> None:
        """Raises ValueError with one sentence."""
        self._validator: Any = None
        self._cost, self._bounded, self.patterns = Cost(1, 1, 1), bounded, 0
        if schema is None:
            return
        library: Any = import_module("jsonschema_rs")  # 6 MB, only where it is needed
        sizes = _Sizes(library, bounded)
        self._cost = check(schema, sizes.states, WORK if bounded else MAX_WORK)
        self.patterns = sizes.count
        patterns = library.RegexOptions(size_limit=_PATTERN_BYTES[-1], dfa_size_limit=_CACHE_BYTES)  # linear time, no look-arounds
        try:
            self._validator = library.validator_for(
                schema, pattern_options=patterns, validate_formats=False, retriever=_refuse, mask="a value"
            )
        except (library.ValidationError, library.ReferencingError, ValueError, TypeError) as error:
            raise ValueError(f"it is not a schema: {str(error).splitlines()[0][:200]}") from None

    def faults(self, text: str, most: int, beside: int = 0) -> list[str]:
        """What is wrong with an answer, by the places of the schema's rules and never with a word of the answer. Empty: it follows the
        schema. most: characters of an answer. beside: characters of others that are checked with it."""
        if len(text) > most:
            return [f"more than {most} characters"]
        steps = STEPS * len(text) // (len(text) + beside) if text else STEPS
        if self._bounded and len(text) * self._cost.text > steps:
            return [TOO_MUCH]
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
        if self._bounded and len(text) * self._cost.text + numbers(value) * self._cost.number > steps:
            return [TOO_MUCH]
        if self._validator.is_valid(value):
            return []
        if (len(text) + beside) * self._cost.faults <= LISTED:
            return [_said(error) for error in islice(self._validator.iter_errors(value), MOST_FAULTS)]
        try:
            self._validator.validate(value)
        except ValueError as error:  # jsonschema_rs.ValidationError is one
            return [_said(error)]
        return []


class _Sizes:
    """How large compiled patterns are. Each is compiled with small bounds first, as making a large one takes as long as it is large."""

    def __init__(self, library: Any, bounded: bool) -> None:
        self._library, self._left = library, _PATTERNS_BYTES if bounded else _PATTERNS_BYTES << 10
        self._most = MAX_PATTERNS if bounded else MAX_NODES
        self.count = 0
        """Of patterns."""

    def states(self, pattern: str) -> int:
        """Raises ValueError for a pattern that is none, or too large."""
        self.count += 1
        if self.count > self._most:
            raise ValueError(f"the schema has more than {self._most} different patterns")
        fault: Exception | None = None
        for size in _PATTERN_BYTES:
            if size > self._left:
                break
            options = self._library.RegexOptions(size_limit=size)
            try:
                self._library.validator_for({"pattern": pattern}, pattern_options=options)
            except (self._library.ValidationError, ValueError) as error:
                fault = error
                continue
            self._left -= size
            return size // _STATE_BYTES
        if fault is None or self._left < _PATTERN_BYTES[-1]:
            raise ValueError(f"its patterns are larger than {_PATTERNS_BYTES} bytes, compiled")
        raise ValueError(f"it is not a schema: {str(fault).splitlines()[0][:200]}")


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
        self._patterns = 0
        """Of the known schemas."""

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
        size = sum(map(len, contents))
        found = [fault for shape in shapes for text in contents for fault in shape.faults(text, self._most, size - len(text))]
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
                shape = Shape(msgspec.json.decode(raw) if raw else None, bounded=True)
            except (ValueError, msgspec.DecodeError, RecursionError) as error:
                raise RequestError(f"response_format: {error}.", param="response_format") from None
            self._known[raw] = shape
            self._patterns += shape.patterns
            while len(self._known) > _KNOWN or self._patterns > _KNOWN_PATTERNS:
                _, old = self._known.popitem(last=False)
                self._patterns -= old.patterns
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
