"""docs/configuration.md: a section for every group of settings, a row for every setting, with its default and its bounds. The settings of
sinks are on docs/audit.md."""

from __future__ import annotations

import re
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, NamedTuple

import msgspec
import pytest
from msgspec import inspect

from gateway.core import specs
from gateway.core.units import duration, integer, size

DOCS = Path(__file__).parents[4] / "docs"
PAGE = (DOCS / "configuration.md").read_text(encoding="utf-8")
SINKS = {"syslog": "SyslogSinkSpec", "http": "HttpSinkSpec", "kafka": "KafkaSinkSpec"}
"""By the heading on docs/audit.md."""
ELSEWHERE = {
    "SidecarSpec": "not configured: what a supervisor tells a sidecar",
    "RollingSpec": "one setting, in the section of its budget",
    "TextRuleSpec": "in the row of `when`",
    "TransitSpec": "in the row of `transit`",
    "CarriedSpec": "docs/audit.md, in a sentence for all sinks",
    "SaslSpec": "docs/audit.md, in the row of `sasl`",
}
IN_WORDS = {
    ("CacheSpec", "operations"): "all of them",
    ("HedgeSpec", "operations"): "all but `chat` and `completions`",
    ("AuditSpec", "sinks"): "`[{type: file}]`",
}
"""Defaults that the page does not write as a value."""
NARROWER = {("RateSpec", "burst"): "gateway.config.limits"}
"""Bounds of the page that a rule checks, and not the type."""
WIDE = 1 << 40
"""From here on a bound is one of the program, which nobody meets."""


class Row(NamedTuple):
    type: str
    default: str


class Bounds(NamedTuple):
    """least, most: None if there is none. above, below: whether the bound itself is excluded."""

    least: float | None
    most: float | None
    above: bool = False
    below: bool = False


@cache
def spec_classes() -> dict[str, type[specs.Spec]]:
    for module in iter_modules(specs.__path__, "gateway.core.specs."):
        import_module(module.name)
    found: dict[str, type[specs.Spec]] = {}
    waiting = list(specs.Spec.__subclasses__())
    while waiting:
        one = waiting.pop()
        waiting += one.__subclasses__()
        if one.__module__.startswith("gateway.core.specs"):
            found[one.__name__] = one
    return found


@cache
def sections() -> dict[str, dict[str, Row]]:
    """The rows of each table, by the class that the section names."""
    found: dict[str, dict[str, Row]] = {}
    for section in re.split(r"^##+ ", PAGE, flags=re.MULTILINE)[1:]:
        named = re.match(r"[^\n]*\n\n`(\w+)`", section)
        if named is None or named[1] not in spec_classes():
            continue
        assert named[1] not in found, f"{named[1]} has two sections"
        found[named[1]] = rows(section)
    for section in re.split(r"^##+ ", (DOCS / "audit.md").read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        if sink := SINKS.get(section.split("\n")[0]):
            found[sink] = rows(section)
    return found


def rows(section: str) -> dict[str, Row]:
    found: dict[str, Row] = {}
    for names, type_, default in re.findall(r"^\| (`[^|]+`) \| ([^|]+) \| ([^|]+) \| .*\|$", section, re.MULTILINE):
        for name in re.findall(r"`(\w+)`", names):
            assert name not in found, f"{name} has two rows"
            found[name] = Row(type_, default)
    return found


def fields(name: str) -> list[msgspec.structs.FieldInfo]:
    """Without those that all sinks have."""
    common = spec_classes()["CarriedSpec"].__struct_fields__ if name in SINKS.values() else ()
    return [field for field in msgspec.structs.fields(spec_classes()[name]) if field.name not in common]


def test_every_group_of_settings_has_a_section() -> None:
    assert sorted(set(spec_classes()) - set(sections()) - set(ELSEWHERE)) == []


@pytest.mark.parametrize("name", sorted(sections()))
def test_every_setting_has_a_row(name: str) -> None:
    assert set(sections()[name]) == {field.encode_name for field in fields(name)}


def means(cell: str, default: Any) -> bool:
    """Whether a cell of the page says this default."""
    value = re.fullmatch(r"`([^`]*)`", cell)
    if value is None:  # "absent", "as `rate`", "its defaults": what applies is not one value
        return default is None or default in ("", (), {}) or isinstance(default, specs.Spec)
    text = value[1]
    if isinstance(default, bool):
        return text == str(default).lower()
    if isinstance(default, int):
        return size(text) == default
    if isinstance(default, float):
        return duration(text) == default
    if isinstance(default, tuple):
        members = [member.strip().strip('"') for member in text.strip("[]").split(",") if member.strip()]
        return text.startswith("[") and members == [str(member) for member in default]
    if isinstance(default, dict | specs.Spec):
        return text == "{}" and default in ({}, type(default)())
    return isinstance(default, str) and text.strip('"') == default


@pytest.mark.parametrize("name", sorted(sections()))
def test_every_default_is_the_one_in_force(name: str) -> None:
    wrong = []
    for field in fields(name):
        cell = sections()[name][field.encode_name].default
        if (name, field.encode_name) in IN_WORDS:
            right = cell == IN_WORDS[name, field.encode_name]
        elif field.required:
            right = cell.strip("*") == "required"
        else:
            right = means(cell, field.default if field.default is not msgspec.NODEFAULT else field.default_factory())
        if not right:
            wrong.append(f"{field.encode_name}: {cell}, in force: {field.default!r}")
    assert wrong == []


def figure(text: str) -> float:
    if power := re.fullmatch(r"(\d+)\^(\d+)", text):
        return float(int(power[1]) ** int(power[2]))
    plain = text.replace(",", "").replace(" ", "")
    for read in (integer, size, duration):
        if (value := read(plain)) is not None:
            return float(value)
    raise AssertionError(f"not a number: {text}")


NUMBER = r"(\d+\^\d+|\d[\d,.]*\d ?(?:[KMG]iB|[a-z]+\b)?|\d ?(?:[KMG]iB|[smhd]\b)?)"


def stated(cell: str) -> Bounds:
    """The bounds that a cell of the column `type` states."""
    text = cell.replace("`", "")
    if both := re.search(rf"(above )?{NUMBER}(?:,? up)? (?:to|and) (below )?{NUMBER}", text):
        return Bounds(figure(both[2]), figure(both[4]), bool(both[1]), bool(both[3]))
    if both := re.search(rf"(above ){NUMBER},? up to {NUMBER}|()\b{NUMBER} up to below {NUMBER}", text):
        return Bounds(figure(both[2] or both[5]), figure(both[3] or both[6]), bool(both[1]), not both[1])
    if least := re.search(rf"{NUMBER}(?: [a-z]+)? or more|at least {NUMBER}|from {NUMBER}", text):
        return Bounds(figure(next(filter(None, least.groups()))), None)
    if most := re.search(rf"(?:at most|up to) {NUMBER}", text):
        return Bounds(None, figure(most[1]))
    return Bounds(None, None)


def enforced(kind: inspect.Type) -> Bounds | None:
    """The bounds of a number's type, without those of the program; None for what is no number, and for durations, which rules bound."""
    if isinstance(kind, inspect.UnionType):
        numbers = [one for one in kind.types if isinstance(one, inspect.IntType | inspect.FloatType)]
        return enforced(numbers[0]) if len(numbers) == 1 else None
    if not isinstance(kind, inspect.IntType | inspect.FloatType):
        return None
    least = kind.ge if kind.ge is not None else kind.gt
    most = kind.le if kind.le is not None else kind.lt
    if isinstance(kind, inspect.FloatType) and most is not None and most >= 86400 * 31 and kind.ge in (0, 0.001, 60) and most % 86400 == 0:
        return None
    return Bounds(least, None if most is not None and most >= WIDE else most, kind.gt is not None, kind.lt is not None)


def agree(said: Bounds, held: Bounds) -> bool:
    if held.most is None and held.least in (None, 0, 1) and said.least in (None, held.least):
        return said.most is None  # 0 or 1 and no end: what the name says
    return said == held


@pytest.mark.parametrize("name", sorted(sections()))
def test_every_bound_is_the_one_in_force(name: str) -> None:
    described = inspect.type_info(spec_classes()[name])
    assert isinstance(described, inspect.StructType)
    wrong, types = [], {field.encode_name: field.type for field in described.fields}
    for field in fields(name):
        held, said = enforced(types[field.encode_name]), sections()[name][field.encode_name].type
        if held is not None and (name, field.encode_name) not in NARROWER and not agree(stated(said), held):
            wrong.append(f"{field.encode_name}: {said}, in force: {held}")
    assert wrong == []
