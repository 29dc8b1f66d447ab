"""What a condition reads of a tool's arguments, and whether a tool may read the same arguments otherwise.

Many frameworks that run tools forgive how a name is written (`Path`, `max_amount` for `maxAmount`) and turn a text into the number or the
truth value that a parameter declares. A condition that saw only the exact name or the text would be met by one value, and the tool would
work with another. So where an argument's name is another spelling of one that the condition names, at the same place, or where a value is
another spelling of the constant that it is compared with, the condition cannot be evaluated.

Names are compared by their letters and digits alone, folded as guardrails fold texts. Places are found in the compiled expression: a name
behind `arguments` counts where it stands, any other at every depth.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import Any, Final

from policies.guardrails.folding import fold

Path = tuple[str | None, ...]
"""Where something is, from the arguments on. None: every element of a list, every value of an object."""
_ELSEWHERE: Final = "elsewhere"
"""Stands for the path of what is no part of the arguments."""
_ROOT: Final = "arguments"
_ROOTS: Final = frozenset({"tool", "kind", "model", "principal"})
_EQUAL: Final = frozenset({"_==_", "_!=_"})
_APART: Final = re.compile(r"[\W_]+")
_NUMBER: Final = re.compile(r"\s*[-+]?\.?\d")


def loose(name: str) -> str:
    """The letters and digits of a name, folded; "" without any."""
    return _APART.sub("", fold(name))


class Reads:
    """The names and constants of one expression, with their places. Immutable once made."""

    __slots__ = ("_anywhere", "_compared", "_named")

    def __init__(self, expression: Any) -> None:
        """expression: the message Expr."""
        self._named: dict[Path, dict[str, set[str]]] = {}
        self._anywhere: dict[str, set[str]] = {}
        self._compared: list[tuple[Path, Any]] = []
        _Walk(self._name, self._compared, _constants(expression)).of(expression, {})

    def _name(self, path: Path | None, name: str) -> None:
        if key := loose(name):
            (self._anywhere if path is None else self._named.setdefault(path, {})).setdefault(key, set()).add(name)

    def doubtful(self, arguments: Any) -> bool:
        """Whether a tool may take from these arguments what the expression does not see."""
        for path, names in self._named.items():
            if any(_misspelt(found, names) for found in _at(arguments, path)):
                return True
        if self._anywhere and any(_misspelt(found, self._anywhere) for found in _all(arguments)):
            return True
        return any(_mistyped(value, constant) for path, constant in self._compared for value in _at(arguments, path))


class _Walk:
    """Finds what an expression names, by the paths of its parts: a tuple, _ELSEWHERE, or None where it is not known."""

    def __init__(self, name: Any, compared: list[tuple[Path, Any]], texts: list[str]) -> None:
        self._name, self._compared, self._texts = name, compared, texts

    def of(self, part: Any, bound: dict[str, Any]) -> Any:
        """The path of a part. bound: those of the names that loops have bound."""
        kind = part.WhichOneof("kind")
        if kind == "ident":
            name = part.ident.name
            return bound.get(name, () if name == _ROOT else _ELSEWHERE if name in _ROOTS else None)
        if kind == "select":
            return self._step(self.of(part.select.operand, bound), part.select.field)
        if kind == "call":
            return self._call(part.call, bound)
        if kind == "loop":
            self._loop(part.loop, bound)
        elif kind == "list":
            for element in part.list.elements:
                self.of(element, bound)
        elif kind == "struct":
            for entry in part.struct.entries:
                self.of(entry.map_key, bound)
                self.of(entry.value, bound)
        return None

    def _step(self, path: Any, name: str | None) -> Any:
        if path == _ELSEWHERE:
            return path
        if name is not None:
            self._name(path, name)
        return None if path is None else (*path, name)

    def _call(self, call: Any, bound: dict[str, Any]) -> Any:
        parts = ([call.target] if call.HasField("target") else []) + list(call.args)
        paths = [self.of(one, bound) for one in parts]
        if call.function == "dyn":
            return paths[0]
        if call.function == "_[_]":
            return self._indexed(paths[0], parts[1])
        if call.function == "@in":
            if parts[1].WhichOneof("kind") != "list":
                self._keys(paths[1], parts[0])
            for element in parts[1].list.elements:
                self._compare(paths[0], element)
        elif call.function in _EQUAL:
            self._compare(paths[0], parts[1])
            self._compare(paths[1], parts[0])
        return None

    def _indexed(self, path: Any, key: Any) -> Any:
        if key.constant.WhichOneof("kind") == "text":
            return self._step(path, key.constant.text)
        self._keys(path, key)
        return self._step(path, None)

    def _keys(self, path: Any, key: Any) -> None:
        """Notes what a key may be: a text, or, where it is made, every text of the expression."""
        kind = key.constant.WhichOneof("kind")
        for name in [key.constant.text] if kind == "text" else self._texts if kind is None else ():
            self._step(path, name)

    def _loop(self, loop: Any, bound: dict[str, Any]) -> None:
        path = self.of(loop.range, bound)
        inner = {**bound, loop.variable: self._step(path, None), loop.accumulator: _ELSEWHERE}
        if isinstance(path, tuple):
            for part in (loop.condition, loop.step):  # over an object, the variable is a key
                for name in _constants(part):
                    self._step(path, name)
        self.of(loop.start, bound)
        for part in (loop.condition, loop.step, loop.result):
            self.of(part, inner)

    def _compare(self, path: Any, other: Any) -> None:
        kind = other.constant.WhichOneof("kind")
        if not isinstance(path, tuple):
            return
        if kind is not None and kind != "null":
            self._compared.append((path, getattr(other.constant, kind)))
        for entry in other.struct.entries:
            if name := entry.map_key.constant.text:
                self._compare(self._step(path, name), entry.value)


def _misspelt(found: Any, names: dict[str, set[str]]) -> bool:
    if not isinstance(found, dict):
        return False
    return any(name not in exact for name in found if (exact := names.get(loose(name))) is not None)


def _mistyped(value: Any, constant: Any) -> bool:
    """Whether a value is not of a constant's kind and may be turned into it."""
    if isinstance(value, str) is isinstance(constant, str) and isinstance(value, bool) is isinstance(constant, bool):
        return False
    if value is None or isinstance(value, dict | list):
        return False
    if isinstance(constant, str):
        return loose(str(int(value) if isinstance(value, float) and value.is_integer() else value)) == loose(constant)
    return isinstance(constant, bool) or isinstance(value, bool) or _NUMBER.match(fold(value)) is not None


def _at(value: Any, path: Path) -> Iterable[Any]:
    """The values at a path."""
    found = [value]
    for step in path:
        if step is None:
            found = [inner for one in found for inner in _values(one)]
        else:
            found = [one[step] for one in found if isinstance(one, dict) and step in one]
    return found


def _all(value: Any) -> Iterator[Any]:
    waiting = [value]
    while waiting:
        one = waiting.pop()
        yield one
        waiting.extend(_values(one))


def _values(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _constants(part: Any) -> list[str]:
    """Every text in a part of an expression."""
    found: list[str] = []
    waiting = [part]
    while waiting:
        one = waiting.pop()
        for field, value in one.ListFields():
            if field.name == "text":
                found.append(value)
            elif field.message_type is not None:
                waiting.extend(value if field.is_repeated else [value])
    return found


# --- cel.expr.CheckedExpr of github.com/google/cel-spec (proto/cel/expr/checked.proto, syntax.proto), as far as it is needed

_FIELDS: Final = {
    "Any": {2: "value:bytes"},
    "Checked": {4: "expr:Expr"},
    "Expr": {
        3: "constant:Constant",
        4: "ident:Ident",
        5: "select:Select",
        6: "call:Call",
        7: "list:List",
        8: "struct:Struct",
        9: "loop:Loop",
    },
    "Constant": {
        1: "null:int64",
        2: "truth:bool",
        3: "whole:int64",
        4: "natural:uint64",
        5: "number:double",
        6: "text:string",
        7: "raw:bytes",
    },
    "Ident": {1: "name:string"},
    "Select": {1: "operand:Expr", 2: "field:string"},
    "Call": {1: "target:Expr", 2: "function:string", 3: "args:Expr*"},
    "List": {1: "elements:Expr*"},
    "Struct": {2: "entries:Entry*"},
    "Entry": {3: "map_key:Expr", 4: "value:Expr"},
    "Loop": {
        1: "variable:string",
        2: "range:Expr",
        3: "accumulator:string",
        4: "start:Expr",
        5: "condition:Expr",
        6: "step:Expr",
        7: "result:Expr",
    },
}
_ONE_OF: Final = frozenset({"Expr", "Constant"})
"""Messages of whose fields one is set."""


class Readings:
    """Makes Reads of what the library has compiled."""

    def __init__(self) -> None:
        descriptor = import_module("google.protobuf.descriptor_pb2")
        field = descriptor.FieldDescriptorProto
        file = descriptor.FileDescriptorProto(name="gatehouse_tools.proto", package="gatehouse.tools", syntax="proto3")
        for name, fields in _FIELDS.items():
            message = file.message_type.add(name=name)
            if name in _ONE_OF:
                message.oneof_decl.add(name="kind")
            for number, text in fields.items():
                key, _, kind = text.partition(":")
                label = field.LABEL_REPEATED if kind.endswith("*") else field.LABEL_OPTIONAL
                one = message.field.add(name=key, number=number, label=label)
                if name in _ONE_OF:
                    one.oneof_index = 0
                if (kind := kind.rstrip("*")) in _FIELDS:
                    one.type, one.type_name = field.TYPE_MESSAGE, f".gatehouse.tools.{kind}"
                else:
                    one.type = getattr(field, f"TYPE_{kind.upper()}")
        pool = import_module("google.protobuf.descriptor_pool").DescriptorPool()
        pool.Add(file)
        made = import_module("google.protobuf.message_factory").GetMessageClass
        self._any, self._checked = (made(pool.FindMessageTypeByName(f"gatehouse.tools.{name}")) for name in ("Any", "Checked"))

    def of(self, expression: Any) -> Reads:
        """expression: the library's own, which writes a google.protobuf.Any with a CheckedExpr."""
        return Reads(self._checked.FromString(self._any.FromString(expression.serialize()).value).expr)
