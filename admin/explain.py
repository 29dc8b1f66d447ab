"""Explains what is wrong with a value and what would be right, from the types it was checked against."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from typing import Any, Final

from msgspec import inspect

from admin.moments import LAST, WORDS, seconds
from gateway.core.patterns import words as meaning
from gateway.core.specs import DURATIONS
from gateway.core.units import DURATION, SIZE, duration, number, size

_DURATIONS: Final = tuple(map(inspect.type_info, DURATIONS))
_MOMENT: Final = inspect.FloatType(ge=0, le=LAST)
_PART: Final = re.compile(r"([^.\[\]]+)|\[([^\]]*)\]")


def amended(value: Any, wanted: Any) -> Any:
    """A decoded body whose durations and sizes, written as in the configuration ("1m30s", "8MiB"), and moments are numbers."""
    return _amended(value, inspect.type_info(wanted))


def _amended(value: Any, kind: inspect.Type) -> Any:
    kinds = list(_members(kind))
    if isinstance(value, dict):
        for one in kinds:
            if isinstance(one, inspect.StructType):
                fields = {f.encode_name: f for f in one.fields}
                return {k: _field(v, one.cls, fields[k]) if k in fields else v for k, v in value.items()}
            if isinstance(one, inspect.DictType):
                return {k: _amended(v, one.value_type) for k, v in value.items()}
    if isinstance(value, list):
        for one in kinds:
            if isinstance(one, inspect.VarTupleType | inspect.ListType):
                return [_amended(v, one.item_type) for v in value]
    return value


def _field(value: Any, owner: type, field: inspect.Field) -> Any:
    if not isinstance(value, str):
        return _amended(value, field.type)
    read = duration if _is_duration(owner, field) else size if _is_size(field) else seconds if _is_moment(field) else None
    found = read(value) if read is not None and number(value) is None else None  # in JSON a number is not a text
    return value if found is None else found


def _is_duration(owner: type, field: inspect.Field) -> bool:
    return any(one in _DURATIONS for one in _members(field.type))


def _is_moment(field: inspect.Field) -> bool:
    return any(one == _MOMENT for one in _members(field.type))


def _is_size(field: inspect.Field) -> bool:
    return field.name.endswith("_bytes") and any(isinstance(one, inspect.IntType) for one in _members(field.type))


def right(message: str, path: str, wanted: Any) -> str:
    """What would be right here, as the end of a sentence; "" where the message already says it."""
    kind, words = _at(path, inspect.type_info(wanted))
    if words and "got `str`" in message:
        return words
    for one in _members(kind) if kind is not None else ():
        if isinstance(one, inspect.LiteralType) and "enum" in message:
            return _choice(message, [str(value) for value in one.values])
        if isinstance(one, inspect.StrType) and one.pattern is not None and "regex" in message:
            return meaning(one.pattern)
        if isinstance(one, inspect.BoolType) and "`bool`" in message:
            return "true or false"
    return ""


def fields(path: str, wanted: Any) -> list[str]:
    """The names of the fields that a body may have at this path, in order; [] if there are none."""
    kind, _ = _at(path, inspect.type_info(wanted))
    structs = [one for one in _members(kind) if isinstance(one, inspect.StructType)] if kind is not None else []
    return sorted({field.encode_name for one in structs for field in one.fields})


def _choice(message: str, choices: list[str]) -> str:
    given = re.search(r"'([^']*)'", message)
    near = difflib.get_close_matches(given[1], choices, n=1, cutoff=0.6) if given else []
    return f"one of {', '.join(choices)}{f' (the nearest is {near[0]!r})' if near else ''}"


def _at(path: str, kind: inspect.Type | None) -> tuple[inspect.Type | None, str]:
    """The type at a path such as `pool[0].weight`, and what kind of text belongs there (a duration, a size)."""
    words = ""
    for name, _ in _PART.findall(path):
        kind, words = _step(kind, name)
    return kind, words


def _step(kind: inspect.Type | None, name: str) -> tuple[inspect.Type | None, str]:
    for one in _members(kind) if kind is not None else ():
        if isinstance(one, inspect.StructType) and name:
            for field in one.fields:
                if field.encode_name == name:
                    return field.type, _words(one.cls, field)
        if not name and isinstance(one, inspect.VarTupleType | inspect.ListType):
            return one.item_type, ""
        if not name and isinstance(one, inspect.DictType):
            return one.value_type, ""
    return None, ""


def _words(owner: type, field: inspect.Field) -> str:
    return DURATION if _is_duration(owner, field) else SIZE if _is_size(field) else WORDS if _is_moment(field) else ""


def _members(kind: inspect.Type) -> Iterator[inspect.Type]:
    """The types a value may have: a union's members, or the type itself without its annotations."""
    if isinstance(kind, inspect.UnionType):
        for one in kind.types:
            yield from _members(one)
    elif isinstance(kind, inspect.Metadata):
        yield from _members(kind.type)
    else:
        yield kind
