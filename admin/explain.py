"""Explains what is wrong with a value and what would be right, from the types it was checked against."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from typing import Any, Final

from msgspec import inspect

from admin.moments import LAST, WORDS, seconds
from gateway.core.specs import DURATIONS, Name
from gateway.core.specs.base import EngineName
from gateway.core.standing import TARGET
from gateway.core.units import DURATION, SIZE, duration, number, size

_DURATIONS: Final = tuple(map(inspect.type_info, DURATIONS))
_MOMENT: Final = inspect.FloatType(ge=0, le=LAST)
_NAME: Final = "1 to 128 letters, digits, '.', '_', ':', '/' or '-', beginning with a letter or digit"
_WORDS: Final = {
    getattr(inspect.type_info(Name), "pattern", ""): _NAME,
    getattr(inspect.type_info(EngineName), "pattern", ""): _NAME,
    r"^[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}$": _NAME,
    r"^(:[0-9]{1,5})?/[!-~]{0,256}$": "a path such as /metrics, or a port and a path such as :8002/metrics",
    r"^(cpu|metal|(cuda|rocm|vulkan):\d+(,\d+)*)$": "cpu, metal, cuda:N, rocm:N or vulkan:N",
    r"^(cpu|metal|(rocm|vulkan):\d+(,\d+)*|cuda:(\d+|(GPU|MIG)-[0-9a-fA-F-]{8,64})(,(\d+|(GPU|MIG)-[0-9a-fA-F-]{8,64}))*)$": (
        "cpu, metal, cuda:N or cuda:UUID, rocm:N or vulkan:N"
    ),
    r"^(prefix|session|tenant|key|header:[A-Za-z0-9-]+)$": "prefix, session, tenant, key or header:NAME",
    r"^(tenant|key|model|day)(,(tenant|key|model|day)){0,3}$": "any of tenant, key, model and day, separated by commas",
    r"^[A-Za-z0-9][A-Za-z0-9._-]{0,119}$": "1 to 120 letters, digits or any of '._-', beginning with a letter or digit",
    r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$": "1 to 64 letters, digits or any of '._-', beginning with a letter or digit",
    r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$": "a day such as 2026-01-31",
    r"^[0-9a-f]{64}$": "a SHA-256 in 64 lower-case hexadecimal digits",
    r"^[0-9a-fA-F]{64}$": "a SHA-256 in 64 hexadecimal digits",
    r"^(file:[A-Za-z0-9._:/-]{0,255}|store:[A-Za-z0-9_-]{0,1000})$": "the cursor of the previous page",
    TARGET: "all, or one of key/ID, agent/ID, user/NAME, user/NAME@TENANT, tenant/ID and model/NAME",
}
"""The meaning of patterns, for people."""
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
            return _WORDS.get(one.pattern, f"a text that matches {one.pattern}")
        if isinstance(one, inspect.BoolType) and "`bool`" in message:
            return "true or false"
    return ""


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
