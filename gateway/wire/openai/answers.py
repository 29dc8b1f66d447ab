"""Where the texts of an answer stand, whole or in pieces. Engines add fields of their own (reasoning under several names, contents in
parts, tools whose input is text), so every string of a choice is a text, but for those that only name something.

A `Place` is (path, holder, key): `holder[key]` is the text. The path tells what is one text in all chunks of a stream: the keys that lead
there, and for an element of a list a tuple of one, its `index`, or else its `type`.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from gateway.core.errors import EngineError

Path: TypeAlias = tuple[Any, ...]
Place: TypeAlias = tuple[Path, Any, Any]

LABELS: Final = frozenset(
    {
        "role",
        "finish_reason",
        "native_finish_reason",
        "stop_reason",
        "matched_stop",
        "id",
        "call_id",
        "type",
        "object",
        "format",
        "logprobs",
        "token_ids",
    }
)
"""What is no text, whatever it holds; log probabilities are the same text again, and go with it."""
WHOLE: Final = "name"
"""The key whose text never comes in pieces."""
FREE: Final = frozenset({"arguments", "input", "parsed"})
"""What a model writes as it likes: inside of it every string is a text."""
_NONE: Final[frozenset[str]] = frozenset()
MAX_DEPTH: Final = 16
_DELTA: Final = "delta"


def choice_texts(choice: dict[str, Any]) -> list[Place]:
    """The places of all texts in one choice of an answer or of a chunk, in order. Raises EngineError where they stand too deep."""
    found: list[Place] = []
    for key, value in choice.items():
        if value.__class__ is str:
            if key not in LABELS:
                found.append(((key,), choice, key))
        elif key == _DELTA and value.__class__ is dict:
            for name, text in value.items():
                if text.__class__ is str:
                    if name not in LABELS:
                        found.append(((_DELTA, name), value, name))
                elif text.__class__ is dict or text.__class__ is list:
                    _gather((_DELTA, name), text, found, _NONE if name in FREE else LABELS)
        elif (value.__class__ is dict or value.__class__ is list) and key not in LABELS:
            _gather((key,), value, found, LABELS)
    return found


def _gather(path: Path, value: Any, found: list[Place], labels: frozenset[str]) -> None:
    """The texts inside a dict or a list at `path`, but for those under `labels`."""
    if len(path) > MAX_DEPTH:
        raise EngineError("The engine's answer is nested too deep to be inspected.")
    if value.__class__ is dict:
        for key, inner in value.items():
            if inner.__class__ is str:
                if key not in labels:
                    found.append(((*path, key), value, key))
            elif (inner.__class__ is dict or inner.__class__ is list) and key not in labels:
                _gather((*path, key), inner, found, _NONE if key in FREE else labels)
        return
    for number, inner in enumerate(value):
        if inner.__class__ is str:
            found.append(((*path, (None,)), value, number))
        elif inner.__class__ is dict:
            at = inner.get("index")
            _gather((*path, (at if at.__class__ is int else str(inner.get("type", "")),)), inner, found, labels)
        elif inner.__class__ is list:
            _gather((*path, (None,)), inner, found, labels)


def append_text(choice: dict[str, Any], path: Path, text: str) -> None:
    """Adds to the text at a path of a choice of a chunk; makes what leads there. Raises EngineError where something else stands there."""
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
    """The list or the dict that a step leads to, made where it is not there."""
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
