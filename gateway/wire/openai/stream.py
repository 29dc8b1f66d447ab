"""The OpenAI API's event streams. An event is parsed only when necessary."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from gateway.core.errors import EngineError
from gateway.core.wire import EventReader, Path, TextFilter
from gateway.wire.openai.answers import WHOLE, append_text, choice_texts, named, trim, without_codes
from gateway.wire.openai.usage import MAX_FINISH, finish_in, usage_from
from gateway.wire.openai.views import ChunkView
from gateway.wire.shapes import MAX_MISSES, Spoken, plain, shape
from gateway.wire.sse import data_of, says_nothing
from gateway.wire.unique import colons

CHUNK: Final = msgspec.json.Decoder(ChunkView)
DONE: Final = b"data: [DONE]\n\n"
_MARK: Final = b"[DONE]"
END: Final = b"[DONE]\n\n"
DONE_LINES: Final = (b"data: [DONE]", b"data:[DONE]")
TEXT_BEGINS: Final = (b'content":"', b'content": "', b'text":"', b'text": "')
"""Prefixes of an event's text: content, reasoning_content, text; with or without the space that Python's encoder writes."""
_CLOSING: Final = (44, 125, 93)
"""What may follow an event's text: a comma or a bracket."""


class OpenAiReader(EventReader):
    """One stream. Withholds the usage that the client did not ask for.

    Nearly all events of a stream differ only in their text. An event fits the known shape when it is `_before`, a text without a quote
    or a line end, and `_after`. Those are taken from an event of one line that did not have to be read, so this one need not be read
    either: what `must_be_read` looks for has two quotes and a colon behind the second. Neither `_before` nor `_after` contains that by
    itself; the last quote of `_before` follows a colon (or a space) and opens the text, the first of `_after` closes it, and a comma or a
    bracket follows it.
    """

    __slots__ = ("_after", "_before", "_frame", "_include_usage", "_misses", "_names", "_spoken", "_withheld")

    def __init__(self, include_usage: bool) -> None:
        super().__init__()
        self._include_usage = include_usage
        self._before = self._after = b""
        self._misses = 0
        self._frame: dict[str, Any] = _NO_FRAME
        self._names: dict[tuple[Any, Path], str] = {}
        self._spoken: Spoken | None = None
        self._withheld: dict[str, dict[str, Any]] = _NO_CHUNKS

    # --- events that are forwarded as they are

    def plain(self, data: bytes) -> int:
        if self.fits(data):
            return 1
        if not data.endswith(b"\n\n") or data.endswith(END) or data[0] == 58 or must_be_read(data):  # 58: a comment, which is not counted
            return 0
        if data.find(b"\n") != len(data) - 2:
            if data.find(b"\n:") >= 0 or data.find(END) >= 0:
                return 0
            self.note_finish(data)
            return data.count(b"\n") >> 1  # a data line and an empty one; counting single bytes is four times as fast
        self.note_finish(data)
        self.learn(data)
        return 1

    def note_finish(self, data: bytes) -> None:
        """Reads a finish reason from events that are forwarded unread."""
        if (finish := finish_in(data)) != "":
            self.finish = finish

    def fits(self, data: bytes) -> bool:
        """Whether this is one whole event of the known shape."""
        before, after = self._before, self._after
        if not before or not data.startswith(before) or not data.endswith(after):
            return False
        start, end = len(before), len(data) - len(after)
        if end < start:
            return False
        text = data[start:end]
        if 34 in text or 10 in text or 13 in text:  # a quote, a line feed, a carriage return
            return False
        self._misses = 0
        return True

    def learn(self, event: bytes) -> None:
        """Learns the shape of a one-line event that did not have to be read; gives up on a stream whose events share none."""
        if self._misses >= MAX_MISSES:
            return
        self._misses += 1
        before, after = shape(event, TEXT_BEGINS, _CLOSING)
        if before:
            self._before, self._after = before, after

    # --- events that are read

    def read(self, data: bytes) -> bytes:
        self.note_finish(data)
        if not must_be_read(data):
            return data
        kept: list[bytes] = []
        for event in data.split(b"\n\n")[:-1]:
            payload = event[5:].lstrip() if event.startswith(b"data:") and b"\n" not in event else data_of(event)
            view = decode_chunk(payload)
            if view is None:
                kept.append(event)
                continue
            if view.error is not msgspec.UNSET and bytes(view.error) != b"null":
                self.error = EngineError("The engine failed while it was answering.")
                break
            if view.usage is not None:
                self.usage = usage_from(view.usage)
                if not view.choices and not self._include_usage:
                    self.untold = b"data: %b\n\n" % payload.replace(b"\n", b" ")
                    continue
            kept.append(event)
        return b"\n\n".join(kept) + b"\n\n" if kept else b""

    def forwarded(self, data: bytes) -> int:
        if data.endswith(END):
            self.ended = True
        if data[0] != 58 and data.find(b"\n:") < 0:
            return data.count(b"\n\n")
        return sum([1 for event in data.split(b"\n\n") if event and not says_nothing(event)])

    def whole(self, marked: bool) -> bool:
        """An engine that has said why it stopped may leave out the end marker."""
        return marked or self.finish != ""

    def end_of(self, data: bytes) -> int:
        return end_of(data)

    def is_end(self, rest: bytes) -> bool:
        return rest.rstrip() in DONE_LINES

    def ending(self) -> bytes:
        return DONE

    # --- events that guardrails read

    def smaller(self, event: bytes, most: int) -> list[bytes]:
        payload = data_of(event + b"\n\n")
        if not payload or payload == b"[DONE]":
            return [event]
        document, choices = _opened(payload)
        frame = {key: value for key, value in document.items() if key not in ("choices", "usage")}
        followers: list[bytes] = []
        ends: list[dict[str, Any]] = []
        for choice in choices:
            if choice.__class__ is not dict:
                return [event]  # `inspected` refuses it
            longest = [place for place in choice_texts(choice) if place[2] != WHOLE and len(place[1][place[2]]) > most]
            for path, holder, key in longest:
                if path[-1].__class__ is tuple:
                    continue
                text = holder[key]
                holder[key] = text[:most]
                for start in range(most, len(text), most):
                    piece: dict[str, Any] = {"index": choice.get("index", 0)}
                    append_text(piece, path, text[start : start + most])
                    followers.append(_line({**frame, "choices": [piece]}))
            if followers and choice.get("finish_reason"):
                ends.append({"index": choice.get("index", 0), "delta": {}, "finish_reason": choice["finish_reason"]})
                choice["finish_reason"] = None
        if not followers:
            return [event]
        last = {"usage": document.pop("usage")} if "usage" in document else {}
        if ends or last:
            followers.append(_line({**frame, "choices": ends, **last}))
        return [_line(document), *followers]

    def spoken(self, data: bytes, texts: TextFilter) -> bytes:
        shape = self._spoken
        if shape is None or self._withheld:
            return b""
        text = shape.text(data)
        if text == "":
            return b""
        self._misses = 0
        self._frame = shape.frame
        released = texts.feed(shape.choice, shape.path, text)
        return data if released == text else shape.event(released)

    def _learned(self, event: bytes, document: dict[str, Any], choices: list[Any]) -> Spoken | None:
        """The shape of an event, if those that differ from it only in the text need not be parsed: it has one text of one choice, and
        nothing else that guardrails, limits or the end of the stream depend on. This is tried out: with another text in its place it must
        read as it does now."""
        known = self._spoken
        if known is not None and event.startswith(known.before) and event.endswith(known.after[:-2]):
            return known  # only its text is not plain
        if self._misses >= MAX_MISSES or len(choices) != 1 or not event.startswith(b"data: {") or event.find(b"\n") >= 0:
            return known
        choice = choices[0]
        if choice.__class__ is not dict or choice.get("index", 0).__class__ is not int or "error" in document:
            return known
        if choice.get("finish_reason") or choice.get("logprobs") is not None or document.get("usage") is not None:
            return known
        places = choice_texts(choice)
        if len(places) != 1 or places[0][2] == WHOLE or not plain(places[0][1][places[0][2]]):
            return known
        self._misses += 1
        before, after = shape(event, TEXT_BEGINS, _CLOSING)
        if not before or colons(event) != _line(document).count(b":"):  # a key that is there twice is read once
            return known
        path, holder, key = places[0]
        text, holder[key] = holder[key], _PROBE
        try:
            same = msgspec.json.decode(before[6:] + _PROBE.encode() + after) == document
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            same = False
        holder[key] = text
        frame = {name: value for name, value in document.items() if name not in ("choices", "usage")}
        return Spoken(before, after + b"\n\n", choice.get("index", 0), path, frame) if same else known

    def inspected(self, event: bytes, texts: TextFilter) -> bytes:
        """A finish reason is withheld while guardrails hold text of its choice, because that text belongs in front of it and an engine may
        send more: it follows with the text when the next chunk of the choice, or the end, shows which."""
        payload = data_of(event + b"\n\n")
        if not payload:
            return b""
        if payload == b"[DONE]":
            return self.rest(texts) + DONE
        document, choices = _opened(payload)
        changed = trim(document, lists=False)
        for choice in choices:
            if choice.__class__ is dict:
                changed |= without_codes(choice)
        if not changed:
            self._spoken = self._learned(event, document, choices)
        before = b""
        if choices:
            self._frame = {key: value for key, value in document.items() if key not in ("choices", "usage")}
        elif self._withheld:
            before = self.rest(texts)  # usage, or something else that comes behind all choices
        for choice in choices:
            if choice.__class__ is not dict or choice.get("index", 0).__class__ is not int:
                raise EngineError("The engine sent an event that is not a chunk of an answer.")
            changed |= _filtered(choice, texts, self._names)
            before += self._released(choice)
        count = len(choices)
        self._withhold(document, choices, texts)
        if count and not choices:
            return before
        line = _line(document)
        if changed or event.find(b"\n") >= 0 or not event.startswith(b"data:") or colons(event) != line.count(b":"):
            return before + line + b"\n\n"  # a key that is there twice is read once, and sent once
        return before + event + b"\n\n"

    def _released(self, choice: dict[str, Any]) -> bytes:
        """The withheld chunk, without its finish reason, of a choice that continues after all."""
        number = str(choice.get("index", 0))
        document = self._withheld.pop(number, None)
        if document is None:
            return b""
        document["choices"][0]["finish_reason"] = None
        return _event(document)

    def _withhold(self, document: dict[str, Any], choices: list[Any], texts: TextFilter) -> None:
        """Removes from an event the finished choices whose text is still held."""
        kept: list[Any] = []
        for choice in choices:
            finish = choice.get("finish_reason")
            if finish.__class__ is str:
                self.finish = finish if finish.isidentifier() and len(finish) <= MAX_FINISH else ""
            if finish and texts.holds(choice.get("index", 0)):
                if not self._withheld:
                    self._withheld = {}
                self._withheld[str(choice.get("index", 0))] = {**document, "choices": [choice]}
            else:
                kept.append(choice)
        if len(kept) < len(choices):
            choices[:] = kept

    def rest(self, texts: TextFilter) -> bytes:
        events: list[bytes] = []
        for document in self._withheld.values():
            choice = document["choices"][0]
            for path, rest in texts.finish(choice.get("index", 0)):
                append_text(choice, path, rest)
            events.append(_event(document))
        self._withheld = _NO_CHUNKS
        choices: list[dict[str, Any]] = []
        for index, path, rest in texts.finish_all():
            choice = {"index": index}
            append_text(choice, path, rest)
            choices.append(choice)
        if choices:
            events.append(_event({**self._frame, "choices": choices}))
        return b"".join(events)


_PROBE: Final = "another text"
_NO_FRAME: Final[dict[str, Any]] = {}
_NO_CHUNKS: Final[dict[str, dict[str, Any]]] = {}


def _opened(payload: bytes) -> tuple[dict[str, Any], list[Any]]:
    """The document of an event and its choices. Raises EngineError."""
    try:
        document = msgspec.json.decode(payload)
        choices = document.get("choices") or []
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, AttributeError):
        raise EngineError("The engine sent an event that is not valid JSON.") from None
    if choices.__class__ is not list:
        raise EngineError("The engine sent an event that is not a chunk of an answer.")
    return document, choices


def _line(document: dict[str, Any]) -> bytes:
    """One event without its empty line."""
    return b"data: %b" % msgspec.json.encode(document)


def _event(document: dict[str, Any]) -> bytes:
    return b"%b\n\n" % _line(document)


def _filtered(choice: dict[str, Any], texts: TextFilter, names: dict[tuple[Any, Path], str]) -> bool:
    """Puts the texts of one choice of a chunk through the filter; returns whether the event must be rewritten."""
    index, changed = choice.get("index", 0), False
    if choice.get("logprobs") is not None:  # the same text again, token by token, ahead of what the guardrails hold
        choice["logprobs"] = None
        changed = True
    for path, holder, key in choice_texts(choice):
        text = holder[key]
        if key == WHOLE:
            if holder.__class__ is dict:  # no key or number, which have no pieces
                named(names, index, path, text, texts)
            released = texts.whole(text)
        else:
            released = texts.feed(index, path, text)
        if released != text:
            holder[key] = released
            changed = True
    return changed


def end_of(data: bytes) -> int:
    """Where `data: [DONE]` ends in whole events, however it is written; 0 without one."""
    found = data.find(_MARK)
    while found >= 0:
        begin, end = data.rfind(b"\n\n", 0, found) + 2, data.find(b"\n\n", found) + 2
        if data_of(data[0 if begin == 1 else begin : end]) == _MARK:
            return end
        found = data.find(_MARK, end)
    return 0


def must_be_read(data: bytes) -> bool:
    """Whether whole events may hold what settle or the framing must look at: a CR, an error, a usage that is not null.

    `find` where `in` reads better: on bytes, `in` first tries its operand as a number and drops the error, which costs more than the
    search; a regular expression costs ten times as much as all of this.
    """
    if 13 in data:
        return True
    found = data.find(b'"error"')
    if found >= 0 and _value_begins(data, found, 7) >= 0:
        return True
    found = data.find(b'"usage"')
    while found >= 0:
        begin = _value_begins(data, found, 7)
        if begin >= 0 and data[begin : begin + 4] != b"null":
            return True
        found = data.find(b'"usage"', found + 7)
    return False


def _value_begins(data: bytes, found: int, length: int) -> int:
    """Where the value begins of the key whose string of `length` bytes is at `found`; -1 when that string is not a key."""
    size, place = len(data), found + length
    while place < size and (data[place] == 32 or data[place] == 9 or data[place] == 10):
        place += 1
    if place >= size or data[place] != 58:
        return -1
    place += 1
    while place < size - 1 and (data[place] == 32 or data[place] == 9 or data[place] == 10):
        place += 1
    return place if place < size else -1


def decode_chunk(payload: bytes) -> ChunkView | None:
    """The typed view of one event's data; None when it is not a chunk ([DONE], a comment, not JSON)."""
    if not payload.startswith(b"{"):
        return None
    try:
        return CHUNK.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
