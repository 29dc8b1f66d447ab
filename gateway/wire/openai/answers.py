"""The texts of an OpenAI answer, whole or in pieces. Engines add fields of their own (reasoning under several names, contents in parts,
tools whose input is text), so every string of a choice is a text, except those that are only names.

Outside the choices, a client whose answers guardrails read gets only the fields of ENVELOPE and FIGURES: `trim` removes others.

A `Place` is (path, holder, key): `holder[key]` is the text. The path identifies the text in all chunks of a stream: the keys that lead
to it, and for an element of a list a tuple with its `index`, or else its `type`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import Raw

from gateway.core.errors import EngineError, GuardrailViolation
from gateway.core.slices import Steps, at_once
from gateway.core.wire import Path, TextFilter, WholeAnswer
from gateway.wire.openai.scores import narrow, without_alternatives
from gateway.wire.openai.usage import usage_from
from gateway.wire.openai.views import PlainAnswer
from gateway.wire.unique import colons

Place: TypeAlias = tuple[Path, Any, Any]

LABELS: Final = frozenset(
    {"role", "finish_reason", "native_finish_reason", "stop_reason", "matched_stop", "id", "call_id", "type", "object", "format"}
)
"""Fields that name something. They are texts only if they hold more than a name."""
MAX_LABEL: Final = 128
"""Characters of a name; it has no space either."""
ENVELOPE: Final = frozenset({"id", "object", "model", "system_fingerprint", "service_tier"})
"""Names around the choices."""
FIGURES: Final = frozenset({"created", "usage", "timings", "metrics", "prompt_token_ids", "prompt_progress", "meta"})
"""Numbers around the choices, those of OpenAI, vLLM and llama.cpp. Strings inside are removed."""
LISTS: Final = frozenset({"data", "results"})
"""Where answers without choices have their results: embeddings, classes, ranks."""
LOGPROBS: Final = "logprobs"
"""Of a choice: they repeat its text and are handled with it."""
AUDIO: Final = "audio"
"""Of a message: its sound, beside the transcript."""
EMBEDDING: Final = "embedding"
BASE64: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/="
WHOLE: Final = "name"
"""The key whose text never comes in pieces."""
MAX_SAID_ONCE: Final = 1024
"""Names in one stream."""
MAX_JOINED: Final = 4096
"""Characters of the names that one index has in a stream."""
FREE: Final = frozenset({"arguments", "input", "parsed"})
"""Written freely by the model: every string and every number inside is a text."""
FIELDS: Final = frozenset(
    {"index", "delta", "message", "role", "content", "text", "reasoning", "reasoning_content", "thinking", "signature", "refusal"}
    | {"tool_calls", "function_call", "function", "custom", "id", "type", "name", "arguments", "input", "output", "status", "call_id"}
    | {"finish_reason", "native_finish_reason", "stop_reason", "matched_stop", "logprobs", "audio", "data", "transcript", "expires_at"}
    | {"annotations", "url_citation", "url", "title", "start_index", "end_index", "citations", "summary", "action", "caller", "phase"}
    | {"namespace", "object", "embedding", "document", "relevance_score", "score", "label", "labels", "probs", "num_classes", "parsed"}
    | {"token_ids", "prompt_token_ids", "prompt_logprobs", "b64_json", "revised_prompt", "partial_json", "encrypted_content"}
    | {"tool_call_id", "format", "results", "queries", "reasoning_details", "images", "image_url", "prompt", "seed"}
)
"""Names of fields in answers as engines have them. Any other name may be a text of its own, which is read too."""
_NONE: Final[frozenset[str]] = frozenset()
MAX_DEPTH: Final = 16
_DELTA: Final = "delta"


def choice_texts(choice: dict[str, Any]) -> list[Place]:
    """The places of all texts in one choice of an answer or of a chunk, in order. Raises EngineError when they are nested too deep."""
    found: list[Place] = []
    for key, value in choice.items():
        if key not in FIELDS:
            found.append((((key,), WHOLE), _Key(key), WHOLE))
        if value.__class__ is str:
            if key not in LABELS or not is_name(value):
                found.append(((key,), choice, key))
        elif key == _DELTA and value.__class__ is dict:
            for name, text in value.items():
                if name not in FIELDS:
                    found.append(((_DELTA, (name,), WHOLE), _Key(name), WHOLE))
                if text.__class__ is str:
                    if name not in LABELS or not is_name(text):
                        found.append(((_DELTA, name), value, name))
                elif text.__class__ is dict or text.__class__ is list:
                    _gather((_DELTA, name), text, found, _NONE if name in FREE else LABELS)
        elif (value.__class__ is dict or value.__class__ is list) and key != LOGPROBS:
            _gather((key,), value, found, _NONE if key in FREE else LABELS)
        elif value.__class__ in _NUMBERS and key in FREE:
            found.append(((key, WHOLE), Figure(choice, key), WHOLE))
    return found


def is_name(text: str) -> bool:
    """Whether a text is short and has no spaces."""
    return len(text) <= MAX_LABEL and text.find(" ") < 0


def _gather(path: Path, value: Any, found: list[Place], labels: frozenset[str]) -> None:
    """The texts inside a dict or a list at `path`, except those under `labels`."""
    if len(path) > MAX_DEPTH:
        raise EngineError("The engine's answer is nested too deep to be inspected.")
    if value.__class__ is dict:
        for key, inner in value.items():
            if labels is _NONE or key not in FIELDS:
                found.append(((*path, (key,), WHOLE), _Key(key), WHOLE))
            if inner.__class__ is str:
                if key not in labels or not is_name(inner):
                    found.append(((*path, key), value, key))
            elif inner.__class__ is dict or inner.__class__ is list:
                _gather((*path, key), inner, found, _NONE if key in FREE else labels)
            elif inner.__class__ in _NUMBERS and (labels is _NONE or key in FREE):
                found.append(((*path, key, WHOLE), Figure(value, key), WHOLE))
        return
    for number, inner in enumerate(value):
        if inner.__class__ is str:
            found.append(((*path, (None,)), value, number))
        elif labels is _NONE and inner.__class__ in _NUMBERS:
            found.append(((*path, (None,), WHOLE), Figure(value, number), WHOLE))
        elif inner.__class__ is dict:
            at = inner.get("index")
            _gather((*path, (at if at.__class__ is int else _kind_of(inner),)), inner, found, labels)
        elif inner.__class__ is list:
            _gather((*path, (None,)), inner, found, labels)


def _kind_of(part: dict[str, Any]) -> str:
    """The type of a part, which the rest of its text is put under when a stream ends; "" for one that says more than a name."""
    kind = str(part.get("type", ""))
    return kind if is_name(kind) else ""


class _Key:
    """Stands for the holder of a key that the model wrote, which can be read but not replaced."""

    __slots__ = ("_key",)

    def __init__(self, key: str) -> None:
        self._key = key

    def __getitem__(self, name: str) -> str:
        return self._key

    def __setitem__(self, name: str, text: str) -> None:
        if text != self._key:
            raise GuardrailViolation("The answer violates a policy where it cannot be rewritten.")


class Figure:
    """Stands for the holder of a number, which is read as it is written without an exponent. A rewritten one becomes a string."""

    __slots__ = ("_holder", "_key", "_text")

    def __init__(self, holder: Any, key: Any) -> None:
        self._holder, self._key = holder, key
        number = holder[key]
        self._text = str(int(number)) if number.__class__ is float and number.is_integer() else str(number)

    def __getitem__(self, name: str) -> str:
        return self._text

    def __setitem__(self, name: str, text: str) -> None:
        if text != self._text:
            self._holder[self._key] = text


def trim(document: dict[str, Any], lists: bool) -> bool:
    """Removes from an answer or a chunk every field around its choices that may hold a text; returns whether there was one.

    lists: the fields of LISTS are kept; their texts are inspected.
    """
    removed = False
    for key in [key for key in document if key not in ENVELOPE or not _is_label(document[key])]:
        value = document[key]
        if key == "choices" or (lists and key in LISTS):
            continue
        if key not in FIGURES or value.__class__ is str:
            del document[key]
            removed = True
        elif value.__class__ is dict or value.__class__ is list:
            removed |= only_figures(value, 0)
    return removed


def _is_label(value: Any) -> bool:
    return value is None or (value.__class__ is str and is_name(value))


def only_figures(value: Any, depth: int) -> bool:
    """Removes the strings inside and what is nested too deep; returns whether there were any."""
    if value.__class__ is list:
        kept = [inner for inner in value if inner.__class__ not in _TEXTS or (depth < MAX_DEPTH and inner.__class__ is not str)]
        removed = len(kept) < len(value)
        if removed:
            value[:] = kept
        for inner in kept:
            if inner.__class__ in _TEXTS:
                removed |= only_figures(inner, depth + 1)
        return removed
    removed = False
    for key in list(value):
        inner = value[key]
        if inner.__class__ is str or not is_name(key) or (inner.__class__ in _TEXTS and depth >= MAX_DEPTH):
            del value[key]
            removed = True
        elif inner.__class__ in _TEXTS:
            removed |= only_figures(inner, depth + 1)
    return removed


def without_codes(choice: dict[str, Any]) -> bool:
    """Removes from a choice, an item or a block what says its text again in a form that nothing reads, ahead of what guardrails hold and as
    it was before they rewrote it: lists of numbers, such as `token_ids`, and sounds. What the model writes freely keeps its lists of
    numbers, which are read there. Returns whether there was anything."""
    return _without_codes(choice, 0)


def _without_codes(holder: dict[str, Any], depth: int) -> bool:
    removed = False
    coded: list[str] = []
    for key, value in holder.items():
        if value.__class__ is dict:
            if key == AUDIO and value.get("data") is not None:
                value["data"] = None
                removed = True
            if key not in FREE and key != LOGPROBS:
                removed |= _without_codes(value, depth + 1) if depth < MAX_DEPTH else False
        elif value.__class__ is list and key not in FREE:
            if _is_code(value):
                coded.append(key)
            else:
                removed |= _within(value, depth + 1)
    for key in coded:
        del holder[key]
    return removed or coded != []


def _within(values: list[Any], depth: int) -> bool:
    removed = False
    if depth < MAX_DEPTH:
        for value in values:
            if value.__class__ is dict:
                removed |= _without_codes(value, depth + 1)
            elif value.__class__ is list:
                removed |= _within(value, depth + 1)
    return removed


def _is_code(value: list[Any], depth: int = 0) -> bool:
    """Whether a list holds numbers, or lists of them; one that is nested too deep counts as one."""
    if depth >= MAX_DEPTH:
        return True
    return any([inner.__class__ in _NUMBERS or (inner.__class__ is list and _is_code(inner, depth + 1)) for inner in value])


_NUMBERS: Final = (int, float)


_TEXTS: Final = (str, dict, list)


def said_once(said: dict[tuple[Any, Path], str], index: Any, path: Path, text: str) -> None:
    """Remembers a text of a stream that comes whole and once, such as the signature of a block. Raises EngineError for a second one that
    differs: clients may put it behind the first, and nobody has read the two together."""
    if text and said.setdefault((index, path), text) != text:
        raise EngineError(f"The engine sent two values for the {path[-1]} of one part of its answer, which must come whole.")
    if len(said) > MAX_SAID_ONCE:
        raise EngineError(f"The engine's answer has more than {MAX_SAID_ONCE} parts with a {path[-1]}.")


def named(said: dict[tuple[Any, Path], str], index: Any, path: Path, name: str, texts: TextFilter) -> None:
    """Remembers the name of a call, which comes whole and has been read by itself. Some engines send all calls under one index, and clients
    put names of one index together: so what they make of them is read, too. In a list, only parts with an index are known. Raises
    EngineError where the guardrails would change that, and what `texts` raises."""
    if not name or any([step.__class__ is tuple and step[0].__class__ is not int for step in path]):
        return
    before = said.setdefault((index, path), name)
    if before != name:
        joined = said[(index, path)] = before + name
        if len(joined) > MAX_JOINED or texts.whole(joined) != joined:
            raise EngineError("The engine sent a name in pieces, which must come whole.")
    if len(said) > MAX_SAID_ONCE:
        raise EngineError(f"The engine's answer has more than {MAX_SAID_ONCE} names.")


def append_text(choice: dict[str, Any], path: Path, text: str) -> None:
    """Appends to the text at a path of a choice of a chunk, creating the path. Raises EngineError if something else is there."""
    holder: Any = choice
    for at, step in enumerate(path[:-1]):
        holder = _inside(holder, step, path[at + 1].__class__ is tuple)
    last = path[-1]
    if last.__class__ is tuple:
        holder.append(text)
        return
    before = holder.get(last)
    if before is not None and before.__class__ is not str:
        raise _changed()
    holder[last] = (before or "") + text


def _inside(holder: Any, step: Any, listed: bool) -> Any:
    """The list or dict that a step leads to, created if missing."""
    if step.__class__ is tuple:
        name = step[0]
        for one in holder:
            if name.__class__ is int and one.__class__ is dict and one.get("index") == name:
                return one
        made: Any = [] if listed else {"index": name} if name.__class__ is int else {"type": name} if name else {}
        holder.append(made)
        return made
    found = holder.get(step)
    if found is None:
        found = holder[step] = [] if listed else {}
    if found.__class__ is not (list if listed else dict):
        raise _changed()
    return found


def _changed() -> EngineError:
    return EngineError("The engine's answer changed its form in the middle.")


# --- whole answers


def is_json(body: bytes) -> bool:
    """Whether an answer looks like whole JSON (an object or a list), by its first and its last byte."""
    if body.startswith(b"{") and body.endswith(b"}"):
        return True
    body = body.strip()
    return len(body) > 1 and body[:1] + body[-1:] in (b"{}", b"[]")


class OpenAiAnswer(WholeAnswer):
    """A whole answer, decoded. generates: its text is in `choices`. inspected: guardrails read it. Raises EngineError for one that is not
    an object with its texts where they belong: an unreadable answer must not pass. `body` is without the fields that `trim` removes, and
    without token identifiers and log probabilities that do not only repeat what is read."""

    __slots__ = ("_document",)

    def __init__(self, body: bytes, generates: bool, inspected: bool = True, decoded: Any = None, keys: int = -1) -> None:
        """decoded, keys: what `decoding` gave for this body; None: it is still to be decoded."""
        super().__init__(body)
        self._document: dict[str, Any] | None = None
        plain = plain_answer(body) if generates else None
        if plain is not None:
            for choice in plain.choices:
                self.texts.append(choice.message.content)
                self.finish = choice.finish_reason or self.finish
            self.usage = usage_from(plain.usage or None)
            if inspected:
                self.body = _ENCODE(plain)  # what was read and nothing else, also where a key is there twice
            return
        try:
            document = decoded
            if document is None and generates:
                document = without_alternatives(body) if inspected else msgspec.json.decode(body)
            elif document is None:
                document = at_once(_without_numbers(body))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise EngineError(NOT_JSON) from None
        if not isinstance(document, dict):
            raise EngineError("The engine's answer is not a JSON object.")
        choices = document.get("choices")
        if choices.__class__ is list:
            for choice in choices:
                if not isinstance(choice, dict):
                    raise EngineError("The engine's answer has a choice that is not an object.")
        elif choices is not None or generates:
            raise EngineError("The engine's answer has no list of choices.")
        changed = trim(document, lists=not generates)
        if inspected and choices.__class__ is list:
            for choice in choices:
                changed |= without_codes(choice)
                if choice.get(LOGPROBS) is not None:
                    changed |= narrow(choice)
        if changed:
            self.body = msgspec.json.encode(document)
        elif inspected:
            sent = msgspec.json.encode(document)
            if (colons(body) if keys < 0 else keys) != sent.count(b":"):  # a key that is there twice was read once
                self.body = sent
        self._document = document
        self.texts = answer_texts(document)

    def replaced(self, texts: Sequence[str]) -> bytes:
        document = self._document
        if document is None:
            document = self._document = msgspec.json.decode(self.body)
        assert document is not None
        replace_answer_texts(document, list(texts))
        return msgspec.json.encode(document)


def plain_answer(body: bytes) -> PlainAnswer | None:
    """An answer that has the plain form, in which there is nothing to remove; None for any other, which is to be read field by field. Of a
    key that is there twice, it has the last value."""
    try:
        answer = _PLAIN(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    for name in (answer.id, answer.model, answer.system_fingerprint, answer.service_tier):
        if type(name) is str and not is_name(name):
            return None
    return answer


_PLAIN: Final = msgspec.json.Decoder(PlainAnswer).decode
_ENCODE: Final = msgspec.json.Encoder().encode


def answer_texts(document: dict[str, Any]) -> list[str]:
    """The texts of a whole answer: contents, reasoning, tool calls and anything else in each choice or result, in order."""
    return [holder[key] for _, holder, key in _answer_places(document)]


def replace_answer_texts(document: dict[str, Any], texts: list[str]) -> None:
    """Replaces each text that `answer_texts` gave. Removes log probabilities, which hold the old text, token by token."""
    for (_, holder, key), text in zip(_answer_places(document), texts, strict=True):
        holder[key] = text
    for choice in document.get("choices") or ():
        if isinstance(choice, dict) and choice.get(LOGPROBS) is not None:
            choice[LOGPROBS] = None


def _answer_places(document: dict[str, Any]) -> list[Place]:
    choices = document.get("choices")
    found = [
        place for choice in (choices if isinstance(choices, list) else ()) if isinstance(choice, dict) for place in choice_texts(choice)
    ]
    for key in LISTS:
        results = document.get(key)
        if results.__class__ is str:
            found.append(((key,), document, key))
        elif results.__class__ is dict or results.__class__ is list:
            inside: list[Place] = []
            _gather((key,), results, inside, LABELS)
            found += [place for place in inside if place[2] != EMBEDDING or not _is_base64(place[1][EMBEDDING])]
    return found


def decoding(body: bytes) -> Steps[tuple[Any, int]]:
    """A large answer without choices, decoded as OpenAiAnswer does it, in steps, and its colons. Raises EngineError."""
    try:
        document = yield from _without_numbers(body)
        return document, colons(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise EngineError(NOT_JSON) from None


def _without_numbers(body: bytes) -> Steps[Any]:
    """An answer without choices, decoded but for the vectors in its results: a million numbers are nothing to read."""
    if body.lstrip()[:1] != b"{":
        return msgspec.json.decode(body)
    fields: dict[str, Any] = _FIELDS.decode(body)
    yield
    for key, value in fields.items():
        fields[key] = _rows(value) if key in LISTS else msgspec.json.decode(value)
        yield
    return fields


def _rows(value: Any) -> Any:
    try:
        rows: list[dict[str, Any]] = _ROWS.decode(value)
    except msgspec.ValidationError:
        return msgspec.json.decode(value)
    for row in rows:
        for key, raw in row.items():
            if bytes(raw).find(b'"') >= 0:
                row[key] = msgspec.json.decode(raw)
    return rows


_FIELDS: Final = msgspec.json.Decoder(dict[str, Raw])
_ROWS: Final = msgspec.json.Decoder(list[dict[str, Raw]])
NOT_JSON: Final = "The engine's answer is not valid JSON."


def _is_base64(text: str) -> bool:
    """Whether a text is only what `encoding_format: base64` writes."""
    return text.isascii() and not text.encode().translate(None, BASE64)


class CountAnswer(WholeAnswer):
    """The answer to a count of tokens: a number, which no guardrail reads."""

    __slots__ = ()

    def replaced(self, texts: Sequence[str]) -> bytes:
        return self.body
