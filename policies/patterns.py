"""Patterns of names with `*` (any run of characters, also none); everything else stands for itself. Linear time."""

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
