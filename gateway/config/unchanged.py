"""What a configuration that is read again has in common with the one in force: the same objects.

What is built from ten thousand endpoints can then see by identity that one of them has not changed, which costs a hundredth of comparing
all its settings. Pure; called in a thread, and never compares more than one member of a list in one call, so that the event loop gets the
interpreter in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeVar

import msgspec

from gateway.core.slices import Steps
from gateway.core.specs import ConfigSpec

T = TypeVar("T")
COMPARED: Final = 256
"""Members that are compared in one step of `common_start` and `common_end`."""


def sharing(before: ConfigSpec, after: ConfigSpec) -> ConfigSpec:
    """A configuration equal to `after`, never `before` itself, with every part of `before` that is the same."""
    parts = {name: _shared(getattr(before, name), getattr(after, name)) for name in after.__struct_fields__}
    return msgspec.structs.replace(after, **parts)


def apart(before: ConfigSpec, after: ConfigSpec) -> tuple[ConfigSpec, ConfigSpec]:
    """Both with one at most of the members with names that their lists have in common: what differs is the same, and a list is as empty as
    it was."""
    fewer: tuple[dict[str, Any], dict[str, Any]] = {}, {}
    for name in after.__struct_fields__:
        old, new = getattr(before, name), getattr(after, name)
        if not (isinstance(old, tuple) and isinstance(new, tuple) and all(_named(one) for one in (*old, *new))):
            continue
        known = {one.name: one for one in old}
        same = set([name for name, one in [(one.name, one) for one in new] if known.get(name) is one][1:])
        for spec, members in zip(fewer, (old, new), strict=True):
            spec[name] = tuple([one for one in members if one.name not in same])
    return msgspec.structs.replace(before, **fewer[0]), msgspec.structs.replace(after, **fewer[1])


def members(spec: msgspec.Struct) -> list[object]:
    """All members of lists and mappings of settings. With nothing but this list left of them, `let_go` ends them one by one."""
    found: list[object] = []
    for name in spec.__struct_fields__:
        value = getattr(spec, name)
        if isinstance(value, tuple):
            found += value
        elif isinstance(value, dict):
            found += value.values()
        elif isinstance(value, msgspec.Struct):
            found += members(value)
    return found


def let_go(members: list[object]) -> None:
    """Ten thousand engines that end in one step would keep the interpreter from the event loop for as long as that takes."""
    while members:
        members.pop()


def common_start(old: Sequence[Any], new: Sequence[Any]) -> Steps[int]:
    """How many members at the beginning of both are the same. Members that are the same objects are not looked into."""
    place = 0
    while place < len(old) and place < len(new):
        if old[place : place + COMPARED] != new[place : place + COMPARED]:
            while place < len(old) and place < len(new) and old[place] == new[place]:
                place += 1
            break
        place = min(place + COMPARED, len(old), len(new))
        yield
    return place


def common_end(old: Sequence[Any], new: Sequence[Any], same: int) -> Steps[int]:
    """How many members at the end of both are the same, beside so many at the beginning."""
    most, count = min(len(old), len(new)) - same, 0
    while count < most:
        some = min(COMPARED, most - count)
        before, after = len(old) - count, len(new) - count
        if old[before - some : before] != new[after - some : after]:
            while count < most and old[len(old) - count - 1] == new[len(new) - count - 1]:
                count += 1
            break
        count += some
        yield
    return count


def _named(member: object) -> bool:
    return isinstance(getattr(member, "name", None), str)


def _shared(before: Any, after: Any) -> Any:
    if type(before) is not type(after):
        return after
    if isinstance(after, tuple):
        return _members(before, after)
    if isinstance(after, dict):
        made = {key: _same(before.get(key), value) for key, value in after.items()}
        unchanged = list(before) == list(made) and all(before[key] is value for key, value in made.items())
        return before if unchanged else made
    if isinstance(after, msgspec.Struct):
        parts = {name: _shared(getattr(before, name), getattr(after, name)) for name in after.__struct_fields__}
        if all(getattr(before, name) is part for name, part in parts.items()):
            return before
        return msgspec.structs.replace(after, **parts)
    return _same(before, after)


def _members(before: tuple[Any, ...], after: tuple[Any, ...]) -> tuple[Any, ...]:
    known = {name: member for member in before if (name := _name(member)) is not None}
    made = tuple(
        [_same(known.get(_name(member), before[place] if place < len(before) else None), member) for place, member in enumerate(after)]
    )
    return before if len(before) == len(made) and all(old is new for old, new in zip(before, made, strict=True)) else made


def _name(member: object) -> object:
    name = getattr(member, "name", None)
    return getattr(member, "id", None) if name is None else name


def _same(before: Any, after: T) -> T:
    return before if type(before) is type(after) and before == after else after
