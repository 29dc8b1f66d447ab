"""What a PromQL expression of ours asks for: metrics, matchers, growth, and the labels that a grouping keeps.

Reads the part of the language that deploy/prometheus and deploy/grafana use.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

METRICS = Path(__file__).resolve().parents[2] / "docs/metrics.md"
TARGET = {"job", "instance"}
"""Labels that Prometheus adds to each series."""
SELECTOR = re.compile(r"(?<![\w:$\"])(gatehouse_\w+|\w+:gatehouse\w*:\w+)(?!\w*[:(])(?:\{([^}]*)\})?(\[[^\]]+\])?")
MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
GROUPING = re.compile(r"\bby \(([^)]*)\)\s*\(")
MADE = re.compile(r'\blabel_replace\(.*?, "(\w+)", "[^"]*", "[^"]*", "[^"]*"\)', re.DOTALL)
OVER_TIME = re.compile(r"\b\w+_over_time\($")
GROWTH = re.compile(r"\b(?:rate|increase|irate)\($")


class Documented(NamedTuple):
    """A row of docs/metrics.md."""

    kind: str
    labels: frozenset[str]
    row: str


class Selector(NamedTuple):
    """One selector of an expression: the metric as written, its matchers, and whether its growth over a time is asked for."""

    name: str
    matchers: list[tuple[str, str]]
    growth: bool


def documented(text: str) -> dict[str, Documented]:
    """The table of metrics by name. In the column of labels a parenthesis lists values."""
    found = {}
    for line in text.splitlines():
        if line.startswith("| `gatehouse_"):
            names, kind, labels = (cell.strip() for cell in line.split("|")[1:4])
            plain = re.sub(r"\([^)]*\)", "", labels).replace("`", "").strip(" -")
            known = frozenset(part.strip() for part in plain.split(",") if part.strip())
            for name in re.findall(r"`(\w+)`", names):
                found[name] = Documented(kind, known, line)
    return found


def selectors(expression: str) -> Iterator[Selector]:
    for match in SELECTOR.finditer(expression):
        pairs = [(label, value) for label, _, value in MATCHER.findall(match[2] or "")]
        before = expression[: match.start()]
        yield Selector(match[1], pairs, bool(GROWTH.search(before)) or (match[3] is not None and not OVER_TIME.search(before)))


def groupings(expression: str) -> Iterator[tuple[set[str], str]]:
    """The labels that each grouping keeps, with what is grouped."""
    for match in GROUPING.finditer(expression):
        depth, end = 1, match.end()
        while depth:
            depth += {"(": 1, ")": -1}.get(expression[end], 0)
            end += 1
        yield {label.strip() for label in match[1].split(",")}, expression[match.end() : end - 1]


def kept(expression: str, known: dict[str, Documented]) -> set[str]:
    """Labels that results of the expression may have: those that it makes, and those that it groups by, or those of its metrics."""
    made = set(MADE.findall(expression))
    if found := list(groupings(expression)):
        return made.union(*(labels for labels, _ in found))
    return TARGET.union(made, *(family(one.name, known).labels for one in selectors(expression)))


def family(name: str, known: dict[str, Documented]) -> Documented:
    """The metric that a series belongs to: a histogram's have suffixes and, its buckets, the label `le`. Raises KeyError for none."""
    stem, _, suffix = name.rpartition("_")
    if suffix in ("bucket", "sum", "count") and stem in known:
        of = known[stem]
        if of.kind != "histogram":
            raise KeyError(f"{name}: {stem} is no histogram")
        return of._replace(labels=of.labels | ({"le"} if suffix == "bucket" else frozenset()))
    if known[name].kind == "histogram":
        raise KeyError(f"{name} is a histogram: its series are {name}_bucket, _sum and _count")
    return known[name]


def mistakes(expression: str, known: dict[str, Documented]) -> list[str]:
    """What the expression asks for that no series of the product has: then it would be empty for ever, and no tool says so."""
    wrong = []
    for name, matchers, growth in selectors(expression):
        if ":" in name:
            continue
        try:
            of = family(name, known)
        except KeyError as error:
            wrong.append(str(error))
            continue
        for label, value in matchers:
            if label not in of.labels | TARGET:
                wrong.append(f"{name} has no label {label}")
            elif label not in TARGET and not value.startswith(("$", ".")) and not value.isdigit():
                wrong += [f"{name}: {label} is never {v!r}" for v in value.split("|") if not re.search(rf"\b{re.escape(v)}\b", of.row)]
        if growth and of.kind == "gauge":
            wrong.append(f"{name} is a gauge: it has no rate")
        if not growth and of.kind == "counter" and not expression.startswith("label_values("):
            wrong.append(f"{name} is a counter: its value alone says little")
    for labels, inner in groupings(expression):
        for one in selectors(inner):
            if ":" not in one.name and (missing := labels - TARGET - (family(one.name, known).labels if not wrong else labels)):
                wrong.append(f"{one.name} has no label {', '.join(sorted(missing))} to group by")
    return wrong
