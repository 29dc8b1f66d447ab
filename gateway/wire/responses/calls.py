"""Tools in the Responses API: what a request offers and brings, and what an answer calls, whole or in a stream.

In an answer every item is a call of a tool, except those of SAYING and what ends with `_output`: a kind of item that nobody knew yet is
judged, too. A call of a tool that has no name of its own (a shell, a patch, a search) is named after its kind: `local_shell`,
`apply_patch`, `web_search`. Calls inside a message are found as in every format (gateway.wire.openai.calls).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw

from gateway.core.errors import EngineError, RequestError
from gateway.core.tools import ToolUse
from gateway.wire.bodies import plain
from gateway.wire.openai.calls import MAX_CALLS, MAX_CHARACTERS, document_of, in_answer
from gateway.wire.responses.answers import decoded
from gateway.wire.responses.fields import IN_NAMESPACE
from gateway.wire.responses.structure import kind_of
from gateway.wire.responses.tool_names import NAMESPACE
from gateway.wire.responses.views import NAMED
from gateway.wire.sse import data_of

SAYING: Final = frozenset({"message", "reasoning", "compaction", "mcp_list_tools"})
OUTPUT: Final = "_output"
CALL: Final = "_call"
_WRITTEN: Final = ("arguments", "input")
_AROUND: Final = frozenset({"id", "type", "status", "call_id", "caller", "name", "namespace"})
_WHOLE: Final = ("response.completed", "response.incomplete")


def is_call(kind: str) -> bool:
    """Whether an item of this type calls a tool."""
    folded = kind.casefold()
    return folded not in SAYING and not folded.endswith(OUTPUT)


def use_of(item: dict[str, Any], place: str, fault: str = "") -> ToolUse:
    """One item that calls a tool."""
    kind = str(item.get("type", ""))
    name = item.get("name")
    if name is not None and not isinstance(name, str):
        fault = fault or "its name is not text"
    inner = [
        item[key]["name"] for key in ("function", "custom") if isinstance(item.get(key), dict) and isinstance(item[key].get("name"), str)
    ]
    space = item.get("namespace")
    own = [str(name)] if isinstance(name, str) and name else []
    names = [*own, *inner]
    if isinstance(space, str) and own:
        names += _names_of(space, own[0])[1:]
    if not names:
        names = [kind.removesuffix(CALL), kind]
    given = [item[key] for key in _WRITTEN if item.get(key) is not None]
    if len(given) > 1:
        fault = fault or "it has two different sets of arguments"
    if given:
        text = given[0] if isinstance(given[0], str) else msgspec.json.encode(given[0]).decode()
    else:
        text = msgspec.json.encode({key: value for key, value in item.items() if key not in _AROUND}).decode()
    return ToolUse("call", tuple(dict.fromkeys(names)), text, place, fault, kind == "custom_tool_call")


# --- requests


def offered(fields: dict[str, Raw]) -> list[str]:
    """The names of the tools that a request offers, those of a namespace also with it in front (`files.read`); of one that is known by its
    type, that, whatever name the request adds. Raises RequestError."""
    return [name for names in _offered(fields) for name in names]


def _offered(fields: dict[str, Raw]) -> list[tuple[str, ...]]:
    given = fields.get("tools")
    if given is None:
        return []
    try:
        tools = NAMED.decode(given) or ()
    except msgspec.DecodeError as error:
        raise RequestError(f"tools: {error}.", param="tools", code="invalid_value") from None
    found: list[tuple[str, ...]] = []
    for tool in tools:
        if tool.type == NAMESPACE:
            found += [_names_of(tool.name, inner.name) for inner in tool.tools]
        else:
            kind = "" if tool.type in IN_NAMESPACE else tool.type
            found.append((tool.name, kind) if tool.name and kind else (tool.name or tool.type,))
    return found


def _names_of(namespace: str, name: str) -> tuple[str, ...]:
    return (name, f"{namespace}.{name}") if namespace and name else (name,)


def in_request(fields: dict[str, Raw]) -> list[ToolUse]:
    """The tools that a request offers, and the results that it brings, each by the name of the call that it answers. Raises
    RequestError."""
    uses = [ToolUse("definition", names, "", f"tools[{number}]") for number, names in enumerate(_offered(fields))]
    items = plain(fields["input"], "input")
    called: dict[str, tuple[str, ...]] = {}
    for number, item in enumerate(items if isinstance(items, list) else ()):
        kind = str(kind_of(item))
        identity = item.get("call_id") or item.get("id")
        if kind.endswith(OUTPUT):
            own = item.get("name")
            space = item.get("namespace")
            itself = _names_of(space if isinstance(space, str) else "", own) if isinstance(own, str) and own else ()
            names = tuple(dict.fromkeys((*called.get(str(identity), ()), *itself)))
            names = names or (kind.removesuffix(OUTPUT).removesuffix(CALL),)
            uses.append(ToolUse("result", names, _text_of(item.get("output")), f"input[{number}]"))
        elif is_call(kind) and isinstance(identity, str):
            called[identity] = use_of(item, "").names
    if len(uses) > MAX_CALLS:
        raise RequestError(f"input, tools: the request has more than {MAX_CALLS} tools and results together.", param="input")
    return uses


def _text_of(output: Any) -> str:
    if isinstance(output, str):
        return output
    if isinstance(output, list) and all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in output):
        return "\n".join(part["text"] for part in output)
    return "" if output is None else msgspec.json.encode(output).decode()


# --- answers


def of_answer(body: bytes) -> tuple[bytes, list[ToolUse]]:
    """A whole answer written anew, so that no key is there twice, and its calls. Raises EngineError."""
    document = decoded(body)
    uses = uses_of(document["output"], "output")
    around = {key: value for key, value in document.items() if key not in ("output", "tools", "tool_choice", "metadata", "text")}
    return msgspec.json.encode(document), [*uses, *in_answer(around)]


def uses_of(items: Sequence[Any], place: str) -> list[ToolUse]:
    """The calls among the items of an answer, and inside them. Raises EngineError for more than MAX_CALLS, or MAX_CHARACTERS."""
    uses: list[ToolUse] = []
    for number, item in enumerate(items):
        where = f"{place}[{number}]"
        if is_call(item["type"]):
            uses.append(use_of(item, where))
        else:
            uses += in_answer({"item": {key: value for key, value in item.items() if key != "type"}})
    if len(uses) > MAX_CALLS:
        raise EngineError(f"The engine's answer has more than {MAX_CALLS} tool calls.")
    if sum(len(use.arguments) for use in uses) > MAX_CHARACTERS:
        raise EngineError(f"The calls of the engine's answer have more than {MAX_CHARACTERS} characters.")
    return uses


class ResponseCalls:
    """The calls of one stream, as a `CallReader`. What a stream says again is compared with what it said before: a client may go by
    either."""

    def __init__(self) -> None:
        self._pieces: dict[int, list[str]] = {}
        self._begun: dict[int, dict[str, Any]] = {}
        self._items: dict[int, dict[str, Any]] = {}
        self._faults: dict[int, str] = {}
        self._inside: list[ToolUse] = []
        self._size = 0

    def feed(self, event: bytes) -> tuple[bytes, bool]:
        data = data_of(event + b"\n\n")
        if not data.startswith(b"{"):
            return event + b"\n\n", False
        document = document_of(data)
        kind = document.get("type")
        found = self._read(str(kind), document)
        name = kind.encode() if isinstance(kind, str) and kind.replace(".", "_").isidentifier() else b"message"
        return b"event: %b\ndata: %b\n\n" % (name, msgspec.json.encode(document)), found

    def _read(self, kind: str, document: dict[str, Any]) -> bool:
        number, item = document.get("output_index"), document.get("item")
        if isinstance(item, dict):
            return self._item(number if isinstance(number, int) else -1, item, kind.endswith(".done"))
        response = document.get("response")
        if isinstance(response, dict):
            items = response.get("output")
            if kind in _WHOLE and isinstance(items, list):
                return any([self._item(at, one, True) for at, one in enumerate(items) if isinstance(one, dict)])
            return False
        base = kind.rpartition(".")[0]
        if base.endswith(("_call_arguments", "_call_input", "_call_code")) and isinstance(number, int):
            self._text(number, document, kind.endswith(".delta"))
            return True
        return number in self._begun or self._inner(document)

    def _item(self, number: int, item: dict[str, Any], ends: bool) -> bool:
        if not is_call(str(item.get("type", ""))):
            if number in self._begun:
                self._faults[number] = "two items have the same index"
            return self._inner(item)
        before = self._begun.get(number)
        if before is None:
            self._begun[number] = item
            if len(self._begun) > MAX_CALLS:
                raise EngineError(f"The engine's answer has more than {MAX_CALLS} tool calls.")
        elif any(before.get(key) != item.get(key) for key in ("type", "name", "call_id", "namespace")):
            self._faults[number] = "two events name it differently"
        if ends:
            known = self._items.setdefault(number, item)
            if any(known.get(key) != item.get(key) for key in _changing(known, item)):
                self._faults[number] = "two events describe it differently"
            self._added(item)
        return True

    def _text(self, number: int, document: dict[str, Any], piece: bool) -> None:
        if piece:
            text = document.get("delta")
            if not isinstance(text, str):
                raise EngineError("The engine sent an event that is not one of a response.")
            self._pieces.setdefault(number, []).append(text)
            self._count(len(text))
            return
        said = "".join(self._pieces.get(number, ()))
        again = next((document[key] for key in ("arguments", "input", "code") if key in document), None)
        if not isinstance(again, str) or (number in self._pieces and said != again):
            self._faults[number] = "it has two different sets of arguments"
        elif number not in self._pieces:
            self._pieces[number] = [again]
            self._count(len(again))

    def _inner(self, holder: dict[str, Any]) -> bool:
        found = in_answer({"item": {key: value for key, value in holder.items() if key != "type"}})
        self._inside += found
        return bool(found)

    def _added(self, item: dict[str, Any]) -> None:
        self._count(sum(len(value) for value in item.values() if isinstance(value, str)))

    def _count(self, more: int) -> None:
        self._size += more
        if self._size > 3 * MAX_CHARACTERS:  # each is said up to three times
            raise EngineError(f"The calls of the engine's answer have more than {MAX_CHARACTERS} characters.")

    def uses(self) -> Sequence[ToolUse]:
        numbers = sorted({*self._begun, *self._pieces})
        return [*[self._use(number) for number in numbers], *self._inside]

    def _use(self, number: int) -> ToolUse:
        item = self._items.get(number) or self._begun.get(number) or {"type": ""}
        fault = self._faults.get(number, "")
        said = self._pieces.get(number)
        if number not in self._begun:
            fault = fault or "it has no name"
        if said is not None:
            whole = "".join(said)
            for key in ("arguments", "input", "code"):
                given = item.get(key)
                if given and given != whole:
                    fault = fault or "it has two different sets of arguments"
            item = {**item, "input" if item.get("type") == "custom_tool_call" else "arguments": whole}
            item.pop("arguments" if item.get("type") == "custom_tool_call" else "input", None)
        return use_of(item, f"output[{number}]", fault)


def _changing(known: dict[str, Any], item: dict[str, Any]) -> set[str]:
    """What may not differ between two sayings of one item."""
    return {*known, *item} - {"status", "id"}
