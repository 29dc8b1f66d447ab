"""What a JSON schema may be, so that checking an answer against it takes a bounded time and no other file.

A schema is a graph: an edge leads to a schema that reads the same value (`allOf`, `$ref`, ...) or one that reads a part of it
(`properties`, `items`, ...). How often one value can be read is the number of ways through the graph to it, which a small schema can make
exponential in the depth of the answer. `check` bounds it from above for every answer of at most MAX_DEPTH.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

MAX_NODES: Final = 4000
MAX_NESTING: Final = 48
"""How deep a schema's own JSON may nest."""
MAX_DEPTH: Final = 32
"""How deep an answer may nest."""
MAX_READINGS: Final = 200
"""How often one value may be checked."""
_SAME_LIST: Final = ("allOf", "anyOf", "oneOf")
_SAME: Final = ("not", "if", "then", "else")
_ANY_PART: Final = ("items", "additionalItems", "contains", "propertyNames", "additionalProperties")
_REFUSED: Final = (
    "$dynamicRef",
    "$recursiveRef",
    "$dynamicAnchor",
    "$recursiveAnchor",
    "unevaluatedProperties",
    "unevaluatedItems",
    "$anchor",
)
_DEFINED: Final = ("$defs", "definitions")
Edges = dict[int, list[tuple[str | None, int]]]
"""From a schema to those of parts: (name of the property, or None for any part; schema)."""


class _Graph:
    def __init__(self, root: dict[str, Any]) -> None:
        self.root = root
        self.nodes: dict[int, dict[str, Any]] = {}
        self.same: dict[int, list[int]] = {}
        self.parts: Edges = {}
        self._count = 0
        self._add(root, 0)

    def _add(self, schema: Any, nesting: int) -> int | None:
        """Adds a schema and those in it. Raises ValueError."""
        if not isinstance(schema, dict):
            return None
        number = id(schema)
        if number in self.nodes:
            return number
        if len(self.nodes) >= MAX_NODES:
            raise ValueError(f"the schema has more than {MAX_NODES} parts")
        if nesting > MAX_NESTING:
            raise ValueError(f"the schema is nested deeper than {MAX_NESTING} levels")
        self.nodes[number] = schema
        same, parts = self.same.setdefault(number, []), self.parts.setdefault(number, [])
        for key in _REFUSED:
            if key in schema:
                raise ValueError(f"the keyword {key} is not supported")
        if "$id" in schema and nesting:
            raise ValueError("$id is only allowed at the top")
        reference = schema.get("$ref")
        if reference is not None:
            target = self._add(self._target(reference), nesting + 1)
            same += [] if target is None else [target]
        for inner in _same(schema):
            target = self._add(inner, nesting + 1)
            same += [] if target is None else [target]
        for name, inner in _parts(schema):
            target = self._add(inner, nesting + 1)
            parts += [] if target is None else [(name, target)]
        for key in _DEFINED:
            if isinstance(found := schema.get(key), dict):
                for inner in found.values():
                    self._add(inner, nesting + 1)
        return number

    def _target(self, reference: Any) -> Any:
        """The schema that a reference names. Raises ValueError for one outside of this schema."""
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            raise ValueError("$ref: only references into the schema itself (#/...) are allowed")
        found: Any = self.root
        for step in reference[2:].split("/") if len(reference) > 1 else ():
            step = step.replace("~1", "/").replace("~0", "~")
            try:
                found = found[int(step)] if isinstance(found, list) else found[step]
            except (KeyError, IndexError, TypeError, ValueError):
                raise ValueError(f"$ref: there is no {reference[:100]!r}") from None
        return found

    def closures(self) -> dict[int, dict[int, int]]:
        """For each schema those that read the same value, and by how many ways. Raises ValueError for circles and for too many."""
        found: dict[int, dict[int, int]] = {}
        under_way: set[int] = set()

        def closure(number: int) -> dict[int, int]:
            if number in found:
                return found[number]
            if number in under_way:
                raise ValueError("$ref: a schema refers to itself for the same value")
            under_way.add(number)
            reached = {number: 1}
            for inner in self.same[number]:
                for node, ways in closure(inner).items():
                    reached[node] = reached.get(node, 0) + ways
            if sum(reached.values()) > MAX_READINGS:
                raise ValueError(_TOO_MANY)
            under_way.discard(number)
            found[number] = reached
            return reached

        for number in self.nodes:
            closure(number)
        return found


_TOO_MANY: Final = f"an answer could make it be read more than {MAX_READINGS} times: simplify anyOf, oneOf, allOf and $ref"


def _same(schema: dict[str, Any]) -> Iterator[Any]:
    for key in _SAME_LIST:
        if isinstance(found := schema.get(key), list):
            yield from found
    for key in _SAME:
        if key in schema:
            yield schema[key]
    for key in ("dependentSchemas", "dependencies"):
        if isinstance(found := schema.get(key), dict):
            yield from found.values()


def _parts(schema: dict[str, Any]) -> Iterator[tuple[str | None, Any]]:
    if isinstance(found := schema.get("properties"), dict):
        yield from found.items()
    if isinstance(found := schema.get("patternProperties"), dict):
        for inner in found.values():
            yield None, inner
    for key in _ANY_PART:
        found = schema.get(key)
        for inner in found if isinstance(found, list) else (found,):
            yield None, inner
    if isinstance(found := schema.get("prefixItems"), list):
        for number, inner in enumerate(found):
            yield f"\0{number}", inner


def check(schema: Any) -> None:
    """Raises ValueError with one sentence for a schema that cannot be used."""
    if not isinstance(schema, dict):
        raise ValueError("a schema is an object")
    try:
        graph = _Graph(schema)
        closures = graph.closures()
    except RecursionError:
        raise ValueError(_TOO_MANY) from None
    state = dict(closures[id(schema)])
    for _ in range(MAX_DEPTH):
        after = _deeper(state, graph.parts, closures)
        if after == state or not after:
            return
        state = after


def _deeper(state: dict[int, int], parts: Edges, closures: dict[int, dict[int, int]]) -> dict[int, int]:
    """How often each schema reads a part of a value at most. state: the same for the value. Raises ValueError."""
    any_part: dict[int, int] = {}
    named: dict[str, dict[int, int]] = {}
    for node, ways in state.items():
        for name, inner in parts[node]:
            into = any_part if name is None else named.setdefault(name, {})
            for reached, times in closures[inner].items():
                into[reached] = into.get(reached, 0) + ways * times
    found: dict[int, int] = dict(any_part)
    most = sum(any_part.values())
    for into in named.values():
        most = max(most, sum(into.values()) + sum(any_part.values()))
        for node, ways in into.items():
            found[node] = max(found.get(node, 0), ways + any_part.get(node, 0))
    if most > MAX_READINGS:
        raise ValueError(_TOO_MANY)
    return found


def depth(value: Any, most: int = MAX_DEPTH) -> int:
    """How deep a value is nested, counted up to `most` + 1."""
    level = [value]
    for count in range(most + 1):
        level = [inner for one in level if isinstance(one, dict | list) for inner in (one.values() if isinstance(one, dict) else one)]
        if not level:
            return count
    return most + 1
