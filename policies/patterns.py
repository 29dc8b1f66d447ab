"""Patterns of names in which `*` is any run of characters, even none. Everything else is literal. Linear time."""

from __future__ import annotations


def matches(pattern: str, name: str) -> bool:
    """Whether the whole of `name` fits `pattern`. Greedy from the left is enough, as `*` is the only wildcard."""
    first, *rest = pattern.split("*")
    if not rest:
        return name == pattern
    last = rest.pop()
    if not name.startswith(first) or len(name) < len(first) + len(last) or not name.endswith(last):
        return False
    position, end = len(first), len(name) - len(last)
    for part in rest:
        found = name.find(part, position, end)
        if found < 0:
            return False
        position = found + len(part)
    return True


def names(pattern: str, model: str, version: str = "") -> bool:
    """Whether a pattern means this model: `model` means every version, `model@version` only calls whose path names that version. The two
    halves are matched apart, because callers choose the version. No model's name contains an `@`."""
    wanted, at, wanted_version = pattern.rpartition("@")
    if at:
        return version != "" and matches(wanted, model) and matches(wanted_version, version)
    return matches(pattern, model)


def within(outer: str, inner: str) -> bool:
    """Whether the inner pattern of models allows only what the outer one does: `demo-*` is within `*`, `demo-chat@1` within `demo-*`."""
    model, at, version = inner.rpartition("@")
    if not at:
        return "@" not in outer and matches(outer, inner)
    return names(outer, model, version)
