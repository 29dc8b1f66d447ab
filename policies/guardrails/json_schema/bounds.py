"""What a JSON schema may be, so that checking an answer against it takes a bounded time and no other file.

A schema is a graph: an edge leads to a schema that reads the same value (`allOf`, `$ref`, ...) or one that reads a part of it
(`properties`, `items`, ...). How often one value can be read is the number of ways through the graph to it, which a small schema can make
exponential in the depth of the answer. `check` bounds it from above for every answer of at most MAX_DEPTH.

What one reading costs depends on the schema: it may have a pattern for which an automaton of thousands of states is followed, or thousands
of numbers to compare with. `check` adds that up for the readings of one value, which with the length of an answer bounds the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

MAX_NODES: Final = 4000
MAX_NESTING: Final = 48
"""How deep a schema's own JSON may nest."""
MAX_DEPTH: Final = 32
"""How deep an answer may nest."""
MAX_READINGS: Final = 200
"""How often one value may be checked."""
MAX_WORK: Final = 5_000_000
"""Steps of this check itself."""
SIMPLE: Final = 32
"""States of a pattern, where nobody knows better."""
_READING: Final = 2
"""What a reading costs at least. All costs are in steps of a pattern's automaton, of 6 nanoseconds each, as measured."""
_NUMBER: Final = 420
"""To compare a number that is no small integer with another one."""
_DIVIDED: Final = 5000
"""To divide such a number."""
_INSIDE: Final = 60
"""To compare lists or objects."""
_EACH_OTHER: Final = 50
"""To compare up to 15 elements of a list with each other; more are hashed."""
SMALL: Final = 1 << 53
"""Integers below are compared at once."""
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


class Cost(NamedTuple):
    """Of all readings of one value: for each of its characters, for each number in it that is no small integer, and how many faults may be
    found."""

    text: int
    number: int
    faults: int

    def or_more(self, other: Cost) -> Cost:
        return Cost(max(self.text, other.text), max(self.number, other.number), max(self.faults, other.faults))

    def and_more(self, other: Cost) -> Cost:
        return Cost(self.text + other.text, self.number + other.number, self.faults + other.faults)


class _Graph:
    def __init__(self, root: dict[str, Any], states: Callable[[str], int], work: int) -> None:
        self.root, self._work = root, work
        self.costs: dict[int, Cost] = {}
        self._states = states
        self._patterns: dict[str, int] = {}
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
        self.costs[number] = self._cost(schema)
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

    def _cost(self, schema: dict[str, Any]) -> Cost:
        """Of reading a value by this schema alone. Raises ValueError."""
        text, number, faults = _READING, 1, len(schema)
        for key in ("required", "dependentRequired", "dependencies", "dependentSchemas"):
            found = schema.get(key)
            if isinstance(found, list | dict):
                text += len(found)
                inner = found.values() if isinstance(found, dict) else ()
                faults += len(found) + sum(len(names) for names in inner if isinstance(names, list))
        options = schema.get("enum")
        for option in [*(options if isinstance(options, list) else ()), *([schema["const"]] if "const" in schema else ())]:
            same, alike = _compared(option)
            text, number = text + same, number + alike
        if "multipleOf" in schema:
            number += _DIVIDED
        if schema.get("uniqueItems") is True:
            text, number = text + _EACH_OTHER, number + _EACH_OTHER * _NUMBER
        patterns = [schema["pattern"]] if isinstance(schema.get("pattern"), str) else []
        if isinstance(found := schema.get("patternProperties"), dict):
            patterns += found
        for pattern in patterns:
            if pattern not in self._patterns:
                self._patterns[pattern] = self._states(pattern)
            text += self._patterns[pattern]
        return Cost(text, number, faults)

    def worked(self, steps: int) -> None:
        """Raises ValueError where the check takes too long."""
        self._work -= steps
        if self._work < 0:
            raise ValueError("the schema has too many alternatives to be checked: simplify anyOf, oneOf, allOf and $ref")

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
            self.worked(len(reached))
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


def _simple(pattern: str) -> int:
    return SIMPLE


def check(schema: Any, states: Callable[[str], int] = _simple, work: int = MAX_WORK) -> Cost:
    """What the readings of one value cost at most. states: of a pattern's; it may raise ValueError. work: steps
    that this check may take. Raises ValueError with one sentence for a schema that cannot be used."""
    if not isinstance(schema, dict):
        raise ValueError("a schema is an object")
    try:
        graph = _Graph(schema, states, work)
        closures = graph.closures()
    except RecursionError:
        raise ValueError(_TOO_MANY) from None
    state = dict(closures[id(schema)])
    most = _sum(state, graph.costs)
    for _ in range(MAX_DEPTH):
        after, cost = _deeper(state, graph, closures)
        most = most.or_more(cost)
        if after == state or not after:
            break
        state = after
    return most


def _sum(ways: dict[int, int], costs: dict[int, Cost]) -> Cost:
    text = number = faults = 0
    for node, times in ways.items():
        cost = costs[node]
        text, number, faults = text + times * cost.text, number + times * cost.number, faults + times * cost.faults
    return Cost(text, number, faults)


def _compared(option: Any) -> tuple[int, int]:
    """What it costs to compare a value with this: for each character, and for each number."""
    if isinstance(option, bool) or option is None or isinstance(option, str):
        return 1, 0
    if isinstance(option, int | float):
        return 1, _NUMBER
    found = [_compared(one) for one in (option.values() if isinstance(option, dict) else option)]
    return _INSIDE + sum(text for text, _ in found), sum(number for _, number in found)


def _deeper(state: dict[int, int], graph: _Graph, closures: dict[int, dict[int, int]]) -> tuple[dict[int, int], Cost]:
    """How often each schema reads a part of a value at most, and what all of that costs. state: the same for the value. Raises
    ValueError."""
    parts, costs = graph.parts, graph.costs
    any_part: dict[int, int] = {}
    named: dict[str, dict[int, int]] = {}
    for node, ways in state.items():
        for name, inner in parts[node]:
            into = any_part if name is None else named.setdefault(name, {})
            graph.worked(len(closures[inner]))
            for reached, times in closures[inner].items():
                into[reached] = into.get(reached, 0) + ways * times
    found: dict[int, int] = dict(any_part)
    most, cost = sum(any_part.values()), _sum(any_part, costs)
    dearest = cost
    for into in named.values():
        most = max(most, sum(into.values()) + sum(any_part.values()))
        dearest = dearest.or_more(_sum(into, costs).and_more(cost))
        for node, ways in into.items():
            found[node] = max(found.get(node, 0), ways + any_part.get(node, 0))
    if most > MAX_READINGS:
        raise ValueError(_TOO_MANY)
    return found, dearest


def depth(value: Any, most: int = MAX_DEPTH) -> int:
    """How deep a value is nested, counted up to `most` + 1."""
    level = [value]
    for count in range(most + 1):
        level = [inner for one in level if isinstance(one, dict | list) for inner in (one.values() if isinstance(one, dict) else one)]
        if not level:
            return count
    return most + 1


def numbers(value: Any) -> int:
    """The numbers in a value that are no small integers."""
    count = 0
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            waiting.extend(one.values())
        elif isinstance(one, list):
            waiting.extend(one)
        elif isinstance(one, float) or (isinstance(one, int) and not -SMALL < one < SMALL):
            count += 1
    return count
