"""Event streams of the Responses API. Pieces of texts are forwarded unread; what is around them holds usage and the reason of the end, and
is read.

The events that end a text, a part, an item and the response say all of it again. Guardrails do not read that twice: each repeat is compared
with the pieces before it, and written from what was released of these. What is held comes out before the first repeat. A repeat that
differs, or an item that was not announced, ends the stream. Events are numbered anew, as some of them are held back.
"""

from __future__ import annotations

import re
from typing import Any, Final

from gateway.core.errors import ApprovalPending, EngineError, GatehouseError
from gateway.core.types import InferenceRequest
from gateway.core.wire import EventReader, Path, TextFilter
from gateway.wire.openai.answers import is_name
from gateway.wire.responses.answers import branded, finish_of, item_texts, items_of, trim, usage_from, without_scores
from gateway.wire.responses.chat import echo, frame
from gateway.wire.responses.events import PIECES, WHOLE, Key, Said, line, parts_of, piece, texts_of, unread, viewed
from gateway.wire.responses.views import EventView
from gateway.wire.sse import data_of, no_event, opened, says_nothing

LARGEST: Final = 4 * 1024 * 1024
"""Bytes of one event, which may repeat a whole answer and its request."""
MAX_SAID: Final = 4 * 1024 * 1024
"""Characters of all texts of one stream that guardrails read: each is kept until the response ends."""
AROUND: Final = 8
"""Events of a stream that carry no token: the start and the end of the response, its first item, part and text."""
TEXT: Final[Path] = ("text",)
_PROGRESS: Final = ("in_progress", "searching", "completed", "interpreting", "generating", "failed", "calling")
_WHOLE: Final = ("response.completed", "response.incomplete")
_BEGUN: Final = ("response.created", "response.in_progress", "response.queued")
_NUMBER: Final = re.compile(rb'"sequence_number": ?(\d{1,9})')


class ResponsesReader(EventReader):
    """One stream.

    Its framing needs the events about the response alone, whose names have one dot (`response.completed`), and errors. The others
    (`response.output_text.delta`) are known by their first line, and not decoded.
    """

    __slots__ = ("_announced", "_final", "_identity", "_known", "_last", "_number", "_request", "_said", "_size", "_texts")

    def __init__(self, request: InferenceRequest) -> None:
        super().__init__()
        self.largest = LARGEST
        self._request = request
        self._known = b""
        """How the last event that was forwarded alone and unread begins: its name, and the first byte of its data."""
        self._last = b""
        """What was forwarded last, for the number of its last event."""
        self._number = 0
        self._identity = "" if request.memory is None else request.memory.identity
        self._final: dict[str, Any] | None = None
        """The response as it ended."""
        self._texts: TextFilter | None = None
        self._said: dict[Key, Said] = {}
        self._announced: dict[int, str] = {}
        self._size = 0

    # --- events that are forwarded as they are

    def plain(self, data: bytes) -> int:
        known = self._known
        if known and data.startswith(known) and data.endswith(b"\n\n"):
            rest = data[len(known) : len(data) - 2]
            if not (10 in rest or 13 in rest):
                self._last = data
                return 1
        length = unread(data)
        if not length or 13 in data or not data.endswith(b"\n\n"):
            return 0
        if data.find(b"\n", length) == len(data) - 2:
            self._known, self._last = data[:length], data
            return 1
        events = data.count(b"\n\n")
        if events != data.count(b".delta\ndata: {") or data.count(b"\n") != 3 * events:
            return 0
        self._last = data
        return events

    # --- events that are read

    def read(self, data: bytes) -> bytes:
        kept: list[bytes] = []
        for event in data.split(b"\n\n")[:-1]:
            length = unread(event)
            if length and event.find(b"\n", length) < 0:
                kept.append(event)
                continue
            payload = data_of(event + b"\n\n")
            view = viewed(payload)
            if view is None:
                if payload != b"[DONE]":
                    kept.append(event)
                continue
            if view.type in ("error", "response.failed"):
                self.error = EngineError("The engine failed while it was answering.")
                break
            if view.response is not None:
                event = self._noted(view, event, payload)
            if event:
                kept.append(event)
        if not kept:
            return b""
        self._last = b"\n\n".join(kept) + b"\n\n"
        return self._last

    def _noted(self, view: EventView, event: bytes, payload: bytes) -> bytes:
        """Reads an event with a response; returns what is forwarded of it."""
        whole = view.type in _WHOLE
        assert view.response is not None
        self._identity = self._identity or view.response.id
        if whole:
            self.ended = True
            self.usage = usage_from(view.response.usage)
            self.finish = finish_of(view.response)
        memory = self._request.memory
        if memory is None or self.inspects:
            return event
        document = opened(payload, WHOLE)
        branded(document["response"], memory)
        if whole and memory.keeps:
            self.ended, self._final = False, document
            return b""
        return line(document)

    def forwarded(self, data: bytes) -> int:
        if data[0] != 58 and data.find(b"\n:") < 0:
            return data.count(b"\n\n")
        return sum([1 for event in data.split(b"\n\n") if event and not says_nothing(event)])

    def whole(self, marked: bool) -> bool:
        return self.ended or self._final is not None

    def end_of(self, data: bytes) -> int:
        if data.find(_WHOLE[0].encode()) < 0 and data.find(_WHOLE[1].encode()) < 0:
            return 0
        place = 0
        for event in data.split(b"\n\n")[:-1]:
            place += len(event) + 2
            view = None if unread(event) else viewed(data_of(event + b"\n\n"))
            if view is not None and view.type in _WHOLE:
                return place
        return 0

    def is_end(self, rest: bytes) -> bool:
        return rest.rstrip() in (b"data: [DONE]", b"data:[DONE]")

    def ending(self) -> bytes:
        return b"" if self._final is None else line(self._final) + b"\n\n"

    def result(self) -> dict[str, Any] | None:
        return None if self._final is None else self._final["response"]

    def estimate(self, events: int) -> int:
        return max(0, events - AROUND)

    def failed(self, error: GatehouseError) -> bytes:
        """An `error` event, and the response that failed; both say which approval is waited for."""
        number = self._next()
        approval = error.told() if isinstance(error, ApprovalPending) else {}
        told = {"type": "error", "code": error.code, "message": error.message, "param": error.param, **approval, "sequence_number": number}
        identity = self._identity if not self.inspects or is_name(self._identity) else ""  # guardrails may have refused it
        document = frame(self._request, identity, "", 0)
        document |= {"status": "failed", "error": {"code": error.code, "message": error.message, **approval}}
        ended = {"type": "response.failed", "response": document, "sequence_number": number + 1}
        return line(told) + b"\n\n" + line(ended) + b"\n\n"

    def _next(self) -> int:
        if self.inspects:
            return self._number
        found = _NUMBER.findall(self._last)
        return int(found[-1]) + 1 if found else 0

    # --- events that guardrails read

    def smaller(self, event: bytes, most: int) -> list[bytes]:
        payload = data_of(event + b"\n\n")
        if not payload:
            return [event]
        document = opened(payload, WHOLE)
        name = str(document.get("type"))
        base, _, what = name.rpartition(".")
        known = PIECES.get(base)
        if known is None or what not in ("delta", "done"):
            return [event]
        kind, index, field = known
        text = document.get("delta" if what == "delta" else field)
        if text.__class__ is not str or len(text) <= most:
            return [event]
        if what == "done" and self._key(document, kind, index) in self._said:
            return [event]
        head = {key: value for key, value in document.items() if key not in (field, "logprobs")}
        pieces = [line({**head, "type": f"{base}.delta", "delta": text[at : at + most]}) for at in range(0, len(text), most)]
        return pieces if what == "delta" else [*pieces, event]

    def inspected(self, event: bytes, texts: TextFilter) -> bytes:
        payload = data_of(event + b"\n\n")
        if not payload or payload == b"[DONE]":
            return b""
        if texts is not self._texts:
            self._anew(texts)
        document = opened(payload, WHOLE)
        out: list[bytes] = []
        kind = document.get("type")
        if kind.__class__ is not str:
            raise no_event(WHOLE)
        self._inspect(str(kind), document, texts, out)
        return b"".join(out)

    def _anew(self, texts: TextFilter) -> None:
        self._texts = texts
        self._said, self._announced = {}, {}
        self._number = self._size = 0
        self._final = None

    def _inspect(self, kind: str, document: dict[str, Any], texts: TextFilter, out: list[bytes]) -> None:
        base, _, what = kind.rpartition(".")
        known = PIECES.get(base)
        if known is not None and what == "delta":
            self._delta(document, known, texts, out)
        elif known is not None and what == "done":
            self._done(document, known, texts, out)
        elif kind in _BEGUN or kind in _WHOLE:
            self._response(kind, document, texts, out)
        elif base == "response.output_item" and what in ("added", "done"):
            self._inspect_output_item(kind, document, texts, out)
        elif base.endswith("_part") and what in ("added", "done"):
            self._inspect_part(kind, document, texts, out)
        elif kind == "response.output_text.annotation.added":
            self._annotation(kind, document, texts, out)
        elif what in _PROGRESS and base.startswith("response.") and is_name(kind):
            self._emit({"type": kind, **self._where(document)}, out)
        else:
            raise EngineError("The engine sent an event of a kind that cannot be inspected.")

    def _emit(self, document: dict[str, Any], out: list[bytes]) -> None:
        document["sequence_number"] = self._number
        self._number += 1
        out.append(line(document) + b"\n\n")

    def _where(self, document: dict[str, Any]) -> dict[str, Any]:
        """Which item an event is about. Raises EngineError for one that was not announced."""
        number, identity = document.get("output_index"), document.get("item_id", "")
        if number.__class__ is not int or number not in self._announced or identity.__class__ is not str or not is_name(identity):
            raise no_event(WHOLE)
        return {"item_id": identity, "output_index": number}

    def _key(self, document: dict[str, Any], kind: str, index: str) -> Key:
        number, inner = document.get("output_index"), document.get(index, 0) if index else 0
        if number.__class__ is not int or inner.__class__ is not int:
            raise no_event(WHOLE)
        return (number, kind, inner)

    def _of(self, key: Key, item: str) -> Said:
        said = self._said.get(key)
        if said is None:
            said = self._said[key] = Said(item)
        return said

    def _feed(self, key: Key, item: str, text: str, texts: TextFilter) -> str:
        said = self._of(key, item)
        self._size += len(text)
        if said.ended:
            raise EngineError("The engine continued a text that had ended.")
        if self._size > MAX_SAID:
            raise EngineError("The engine's answer is too long to be inspected.")
        said.given.append(text)
        released = texts.feed(key, TEXT, text)
        said.released.append(released)
        return released

    def _delta(self, document: dict[str, Any], known: tuple[str, str, str], texts: TextFilter, out: list[bytes]) -> None:
        where, text = self._where(document), document.get("delta")
        if text.__class__ is not str:
            raise no_event(WHOLE)
        key = self._key(document, known[0], known[1])
        released = self._feed(key, where["item_id"], text, texts)
        if released or not text:
            self._emit(piece(key, where["item_id"], released), out)

    def _done(self, document: dict[str, Any], known: tuple[str, str, str], texts: TextFilter, out: list[bytes]) -> None:
        where, (kind, index, field) = self._where(document), known
        key = self._key(document, kind, index)
        text = self._repeated(key, where["item_id"], document.get(field), texts, out)
        told: dict[str, Any] = {"type": document["type"], **where, field: text}
        if index:
            told[index] = key[2]
        if kind == "output_text":
            told["logprobs"] = []
        if document.get("name").__class__ is str:
            told["name"] = texts.whole(document["name"])
        self._emit(told, out)

    def _repeated(self, key: Key, item: str, text: Any, texts: TextFilter, out: list[bytes]) -> str:
        """What was released of a text that an event says again. Raises EngineError for a repeat that differs."""
        if text.__class__ is not str:
            raise no_event(WHOLE)
        fresh = key not in self._said
        if fresh:
            self._feed(key, item, text, texts)
        said = self._said[key]
        if len(said.given) != 1:
            said.given = ["".join(said.given)]
        if said.given[0] != text:
            raise EngineError("The engine's answer repeats a text with other content.")
        if not said.ended:
            said.ended = True
            for _, rest in texts.finish(key):
                if rest and not fresh:
                    self._emit(piece(key, said.item, rest), out)
                said.released.append(rest)
            said.released = ["".join(said.released)]
        return said.released[0]

    def _response(self, kind: str, document: dict[str, Any], texts: TextFilter, out: list[bytes]) -> None:
        response = document.get("response")
        if response.__class__ is not dict:
            raise no_event(WHOLE)
        assert isinstance(response, dict)
        items = items_of(response) if kind in _WHOLE else []
        for number, item in enumerate(items):
            if self._announced.get(number) != item["type"]:
                raise EngineError("The engine's answer ends with an item that it has not announced.")
            self._inspect_item(number, item, texts, out, True)
        if kind in _WHOLE:
            out.append(self.rest(texts))
        response["output"] = items
        trim(response, echo(self._request))
        memory = self._request.memory
        if memory is not None:
            branded(response, memory)
        told: dict[str, Any] = {"type": kind, "response": response}
        if memory is not None and memory.keeps and kind in _WHOLE:
            told["sequence_number"] = self._number
            self._number += 1
            self.ended, self._final = False, told
            return
        self._emit(told, out)

    def _inspect_output_item(self, kind: str, document: dict[str, Any], texts: TextFilter, out: list[bytes]) -> None:
        number, item = document.get("output_index"), document.get("item")
        if number.__class__ is not int or item.__class__ is not dict or item.get("type").__class__ is not str:
            raise no_event(WHOLE)
        assert isinstance(number, int) and isinstance(item, dict)
        ends = kind.endswith("done")
        if ends != (self._announced.get(number, "") == item["type"]) or (not ends and number in self._announced):
            raise EngineError("The engine's answer has an item that it has not announced, or announces one twice.")
        self._announced[number] = item["type"]
        self._inspect_item(number, item, texts, out, ends)
        self._emit({"type": kind, "output_index": number, "item": item}, out)

    def _inspect_item(self, number: int, item: dict[str, Any], texts: TextFilter, out: list[bytes], ends: bool) -> None:
        """Writes the texts of an item from what was released. ends: they are whole."""
        without_scores(item)
        identity = item.get("id")
        name = identity if isinstance(identity, str) and is_name(identity) else ""
        known: set[tuple[int, Any]] = set()
        for key, holder, field in texts_of(number, item):
            known.add((id(holder), field))
            text = holder[field]
            if ends:
                holder[field] = self._repeated(key, name, text, texts, out)
            elif text:
                holder[field] = self._feed(key, name, text, texts)
        for _, place, where in item_texts(item):  # not the names from above: compiled code would take a list for a dict
            if (id(place), where) not in known:
                place[where] = texts.whole(place[where])

    def _inspect_part(self, kind: str, document: dict[str, Any], texts: TextFilter, out: list[bytes]) -> None:
        where, part = self._where(document), document.get("part")
        if part.__class__ is not dict:
            raise no_event(WHOLE)
        assert isinstance(part, dict)
        name = "summary_index" if "summary_index" in document else "content_index"
        index = self._key(document, "", name)[2]
        holder = {"type": "", "content": [part]}
        without_scores(holder)
        kept = {"type": part.get("type", ""), "content": [part]}
        number = where["output_index"]
        known: set[tuple[int, Any]] = set()
        for found, place, field in parts_of(number, [part], index):
            known.add((id(place), field))
            if kind.endswith("done"):
                place[field] = self._repeated(found, where["item_id"], place[field], texts, out)
            elif place[field]:
                place[field] = self._feed(found, where["item_id"], place[field], texts)
        for _, holder_of, name_of in item_texts(kept):
            if (id(holder_of), name_of) not in known and holder_of is not kept:
                holder_of[name_of] = texts.whole(holder_of[name_of])
        self._emit({"type": kind, **where, name: index, "part": part}, out)

    def _annotation(self, kind: str, document: dict[str, Any], texts: TextFilter, out: list[bytes]) -> None:
        where, note = self._where(document), document.get("annotation")
        if note.__class__ is not dict:
            raise no_event(WHOLE)
        without_scores({"annotation": note})
        for _, place, field in item_texts({"type": "", "content": [note]}):
            if field != "type" or place is note:
                place[field] = texts.whole(place[field])
        found: dict[str, Any] = {"type": kind, **where, "annotation": note}
        for name in ("content_index", "annotation_index"):
            found[name] = document[name] if document.get(name).__class__ is int else 0
        self._emit(found, out)

    def rest(self, texts: TextFilter) -> bytes:
        """What is still held, where the engine did not end its texts."""
        out: list[bytes] = []
        for choice, _, rest in texts.finish_all():
            said = self._said.get(choice)
            if said is not None and rest:
                said.released.append(rest)
                self._emit(piece(choice, said.item, rest), out)
        return b"".join(out)
