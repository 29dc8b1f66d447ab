"""The one reader of YAML: text to a tree of nodes, each of which knows its line. Types come later (gateway.config.convert), or follow
from how a value is written (`plain`).

Built from the parser's events and not by the YAML library's constructors: no tag makes an object; `no`, `on`, `12:30` and `2026-01-01` stay
texts; a duplicate key is an error; anchors cost what they expand to, within bounds.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import yaml
from msgspec import Struct, field

from gateway.core.errors import ConfigError
from gateway.core.units import integer, number

MAX_BYTES = 1024 * 1024
MAX_DEPTH = 32
MAX_NODES = 100_000
MANY = 64
"""The members of a longer list or mapping are ended one by one, each as a whole."""
MAX_SHOWN = 31
"""Longer texts are not shown in errors: API keys have 32 characters or more."""
_TRUTH = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
NULLS = frozenset({"", "~", "null", "Null", "NULL"})
"""The words are those of YAML 1.2's core schema: `yes`, `on` and `012` are texts."""
_UNQUOTED = re.compile(r"[:,\[{]\s*\$\{")
"""A reference that begins a value without quotes: its brace would begin a mapping."""
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_CORE_TAGS = frozenset(f"tag:yaml.org,2002:{name}" for name in ("str", "map", "seq"))


class Origin(Struct, frozen=True, gc=False):
    """Where a value was written: a line of the file, or an environment variable."""

    file: str | None
    line: int | None
    variable: str | None = None

    def error(self, path: str, message: str) -> ConfigError:
        """The ConfigError for a value at this place."""
        if self.variable is not None:
            return ConfigError(message, path=path or None, file=f"environment variable {self.variable}")
        return ConfigError(message, path=path or None, line=self.line, file=self.file)


class Node(Struct, gc=False):
    """One YAML value. `text` for scalars (`plain`: written without quotes), `items` for sequences, `entries` for mappings.

    `hidden`: the text came from a reference and may be a secret, so it is never shown. The collector never looks at nodes: a tree has no
    cycles.
    """

    kind: Literal["scalar", "sequence", "mapping"]
    origin: Origin
    text: str = ""
    plain: bool = True
    hidden: bool = False
    items: list[Node] = field(default_factory=list)
    entries: dict[str, Node] = field(default_factory=dict)
    key_origins: dict[str, Origin] = field(default_factory=dict)

    @property
    def is_null(self) -> bool:
        return self.kind == "scalar" and self.plain and self.text in NULLS


def let_go(node: Node) -> None:
    """Ends a tree that nobody needs any more, a member of a long list or mapping at a time: that of ten thousand engines, ended at once,
    would keep the interpreter from the event loop for as long as it takes. Leaves it empty."""
    short = len(node.items) + len(node.entries) <= MANY
    while node.items:
        member = node.items.pop()
        if short:
            let_go(member)
    while node.entries:
        _, member = node.entries.popitem()
        if short:
            let_go(member)


def truth(text: str) -> bool | None:
    return _TRUTH.get(text)


def untyped(text: str, plain: bool) -> Any:
    """A value without a known type (free-form settings): by YAML 1.2's core schema when it is written without quotes."""
    if not plain:
        return text
    if text in NULLS:
        return None
    for known in (truth, integer, number):
        value = known(text)
        if value is not None:
            return value
    return text


def plain(node: Node) -> Any:
    """A tree as mappings, lists, texts, numbers, truth values and None."""
    if node.kind == "mapping":
        return {key: plain(member) for key, member in node.entries.items()}
    if node.kind == "sequence":
        return [plain(member) for member in node.items]
    return untyped(node.text, node.plain)


def node_of(value: Any, path: str = "", depth: int = 0) -> Node:
    """The tree of plain values, without places. Texts are not searched for references. Raises ConfigError if it is nested too deeply."""
    nowhere = Origin(None, None)
    if depth > MAX_DEPTH:
        raise nowhere.error(path, f"nested more than {MAX_DEPTH} levels deep")
    if isinstance(value, Mapping):
        entries = {str(key): node_of(member, path, depth + 1) for key, member in value.items()}
        return Node("mapping", nowhere, entries=entries, key_origins=dict.fromkeys(entries, nowhere))
    if isinstance(value, list | tuple):
        return Node("sequence", nowhere, items=[node_of(member, path, depth + 1) for member in value])
    if isinstance(value, str):
        return Node("scalar", nowhere, text=value.replace("${", "$${"), plain=False)
    return Node("scalar", nowhere, text=json.dumps(value))


def read(text: str, *, file: str | None, variable: str | None = None) -> Node:
    """The tree of a YAML (or JSON) text. Raises ConfigError, with file and line, for anything but a plain tree."""
    if len(text) > MAX_BYTES:
        raise ConfigError(f"the configuration has {len(text)} characters; at most {MAX_BYTES} are read", file=file)
    try:
        return _Builder(file, variable).document(yaml.parse(text, Loader=_LOADER))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = " ".join(part for part in (error.context, error.problem) if part) or "not YAML"
        hint = _hint(problem, text, mark.line) if mark else ""
        raise Origin(file, mark.line + 1 if mark else None, variable).error("", f"malformed YAML: {problem}{hint}") from None
    except yaml.YAMLError as error:
        reason = str(error).splitlines()[0]
        raise Origin(file, None, variable).error("", f"malformed YAML: {reason}") from None


def _hint(problem: str, text: str, number: int) -> str:
    """What is usually wrong in such a line, to be added to the parser's words; "" where nothing is known. The line itself is not shown:
    it may hold a secret."""
    line = next(itertools.islice(text.split("\n"), number, None), "")
    if "cannot start any token" in problem and line[: len(line) - len(line.lstrip())].count("\t"):
        return "; indent with spaces, not tabs"
    if "flow" in problem and _UNQUOTED.search(line):
        return '; inside [ ] or { } a reference needs quotes: "${env:NAME}"'
    if "mapping values are not allowed" in problem:
        return "; check the indentation, and put quotes around a text that has a colon"
    return "; check the indentation" if "block" in problem or "expected key" in problem else ""


class _Builder:
    """Turns events into nodes and counts them, so that aliases cannot multiply without bound."""

    def __init__(self, file: str | None, variable: str | None) -> None:
        self._file, self._variable = file, variable
        self._anchors: dict[str, tuple[Node, int] | None] = {}
        self._made = 0
        self._last = Origin(file, None if variable else 1, variable)

    def document(self, events: Iterator[Any]) -> Node:
        root: Node | None = None
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                if root is not None:
                    raise self._origin(event).error("", "a second document; the file must hold one")
                root = self._node(next(events), events, "", 0)
        if root is None:
            raise Origin(self._file, 1, self._variable).error("", "the configuration is empty; it must contain at least 'version: 1'")
        return root

    def _node(self, event: Any, events: Iterator[Any], path: str, depth: int) -> Node:
        origin = self._origin(event)
        if depth > MAX_DEPTH:
            raise origin.error(path, f"nested more than {MAX_DEPTH} levels deep")
        if isinstance(event, yaml.AliasEvent):
            return self._alias(str(event.anchor), origin, path)
        if event.tag is not None and event.tag != "!" and event.tag not in _CORE_TAGS:
            raise origin.error(path, f"the tag {event.tag} is not allowed; write plain values")
        if event.anchor is not None:
            self._anchors[event.anchor] = None
        before = self._made
        self._count(1, origin, path)
        if isinstance(event, yaml.ScalarEvent):
            node = Node("scalar", origin, text=event.value, plain=not event.style and event.tag is None)
        elif isinstance(event, yaml.SequenceStartEvent):
            node = self._sequence(origin, events, path, depth)
        else:
            node = self._mapping(origin, events, path, depth)
        if event.anchor is not None:
            self._anchors[event.anchor] = (node, self._made - before)
        return node

    def _sequence(self, origin: Origin, events: Iterator[Any], path: str, depth: int) -> Node:
        node = Node("sequence", origin)
        for event in events:
            if isinstance(event, yaml.SequenceEndEvent):
                break
            node.items.append(self._node(event, events, f"{path}[{len(node.items)}]", depth + 1))
        return node

    def _mapping(self, origin: Origin, events: Iterator[Any], path: str, depth: int) -> Node:
        node = Node("mapping", origin)
        for event in events:
            if isinstance(event, yaml.MappingEndEvent):
                break
            place = self._origin(event)
            if not isinstance(event, yaml.ScalarEvent):
                raise place.error(path, "a key must be a plain word")
            key = str(event.value)
            if key == "<<" and not event.style:
                raise place.error(path, "merge keys (<<) are not supported; write the settings out, or use an anchor for a whole value")
            if key in node.entries:
                first = node.key_origins[key].line
                raise place.error(join(path, key), f"appears twice; the first is on line {first}")
            node.key_origins[key] = place
            node.entries[key] = self._node(next(events), events, join(path, key), depth + 1)
        return node

    def _alias(self, name: str, origin: Origin, path: str) -> Node:
        if name not in self._anchors:
            raise origin.error(path, f"*{name} names no anchor")
        anchored = self._anchors[name]
        if anchored is None:
            raise origin.error(path, f"*{name} is inside the value that it names")
        node, size = anchored
        self._count(size, origin, path)
        return node

    def _count(self, nodes: int, origin: Origin, path: str) -> None:
        self._made += nodes
        if self._made > MAX_NODES:
            raise origin.error(path, f"more than {MAX_NODES} values, aliases expanded")

    def _origin(self, event: Any) -> Origin:
        line = None if self._variable else event.start_mark.line + 1
        if line != self._last.line:
            self._last = Origin(self._file, line, self._variable)
        return self._last


def join(path: str, key: str) -> str:
    """The path of a key below a path: `engines[0]` and `slots` make `engines[0].slots`. A key as long as a secret is not shown."""
    name = key if len(key) <= MAX_SHOWN else f"({len(key)} characters)"
    return f"{path}.{name}" if path else name
