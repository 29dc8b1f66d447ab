"""How large an ONNX graph is once its functions are written out: ONNX Runtime does that while it loads, whatever it takes.

Forty functions of which each calls the next one twice are a thousand bytes and 2^40 nodes; a chain of thousands ends the process. Field
numbers are those of onnx.proto3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from engines.onnx.protobuf import Broken, fields, message, text

MOST_NODES: Final = 100_000
"""Nodes that functions may make of a graph."""
MOST_DEPTH: Final = 64
"""Functions that may call one another in a row."""
FUNCTION_NAME, FUNCTION_NODE, FUNCTION_DOMAIN = 1, 7, 10
NODE_OPERATOR, NODE_ATTRIBUTE, NODE_DOMAIN = 4, 5, 7
ATTRIBUTE_GRAPH, ATTRIBUTE_GRAPHS, GRAPH_NODE = 6, 11, 1
Name = tuple[str, str]
"""Domain and operator."""


def check(functions: Sequence[memoryview], graph: memoryview) -> None:
    """Refuse functions that call themselves, too deep or too often. Raises Broken."""
    if not functions:
        return
    bodies: dict[Name, list[Name]] = {}
    for view in functions:
        name, domain = "", ""
        calls: list[Name] = []
        for field, value in fields(view, "function"):
            if field == FUNCTION_NAME:
                name = text(value, "function name")
            elif field == FUNCTION_DOMAIN:
                domain = text(value, "function domain")
            elif field == FUNCTION_NODE:
                calls += _calls(message(value, "node"))
        bodies.setdefault((domain, name), []).extend(calls)
    sizes: dict[Name, tuple[int, int]] = {}
    called = [name for field, value in fields(graph, "graph") if field == GRAPH_NODE for name in _calls(message(value, "node"))]
    total = sum(_size(name, bodies, sizes, ())[0] for name in called if name in bodies)
    if total > MOST_NODES:
        raise Broken(f"its functions make {total if total < 10**12 else 'more than 10^12'} nodes of it, at most {MOST_NODES} are taken")


def _size(name: Name, bodies: Mapping[Name, Sequence[Name]], sizes: dict[Name, tuple[int, int]], path: tuple[Name, ...]) -> tuple[int, int]:
    """Nodes of a function, those of the functions that it calls included, and how many functions call one another in a row from it on."""
    if name in path:
        raise Broken(f"function {name[1][:64]!r} calls itself")
    if name not in sizes and len(path) < MOST_DEPTH:
        inner = (*path, name)
        called = [_size(one, bodies, sizes, inner) for one in bodies[name] if one in bodies]
        nodes = len(bodies[name]) + sum(size for size, _ in called)
        sizes[name] = nodes, 1 + max((depth for _, depth in called), default=0)
    if name not in sizes or len(path) + sizes[name][1] > MOST_DEPTH:
        raise Broken(f"function {name[1][:64]!r} is in a row of more than {MOST_DEPTH} that call one another")
    return sizes[name]


def _calls(node: memoryview) -> Iterator[Name]:
    """What a node names, and the nodes of its graphs."""
    operator, domain = "", ""
    for field, value in fields(node, "node"):
        if field == NODE_OPERATOR:
            operator = text(value, "op_type")
        elif field == NODE_DOMAIN:
            domain = text(value, "domain")
        elif field == NODE_ATTRIBUTE:
            for part, inner in fields(message(value, "attribute"), "attribute"):
                if part in (ATTRIBUTE_GRAPH, ATTRIBUTE_GRAPHS):
                    for at, item in fields(message(inner, "graph"), "graph"):
                        if at == GRAPH_NODE:
                            yield from _calls(message(item, "node"))
    yield domain, operator
