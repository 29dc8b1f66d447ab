"""Output of commands: tables for people, JSON and YAML for scripts. Control characters in data from elsewhere never reach the terminal."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from admin.cli.yamltext import written

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_WIDE = 400
_LEAST = 10
_GAP = 2
_MOMENT = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\.\d+Z")
_GOOD = frozenset({"ready", "active", "ok", "closed", "allow", "yes"})
_BAD = frozenset({"down", "open", "failed", "revoked", "expired", "unhealthy", "deny", "no", "unavailable"})


class Format(StrEnum):
    table = "table"
    json = "json"
    yaml = "yaml"


class Output:
    """Prints results on standard output in one format, remarks on standard error."""

    def __init__(self, format: Format, wide: bool = False) -> None:
        self.format = format
        out = sys.stdout.isatty() and not wide
        self._fits = out
        self.console = Console(width=None if out else _WIDE, highlight=False, soft_wrap=not out)
        self.remarks = Console(stderr=True, highlight=False, soft_wrap=True)

    @property
    def room(self) -> int | None:
        """The columns of the terminal; None when lines may be of any length."""
        return self.console.width if self._fits else None

    @property
    def for_people(self) -> bool:
        return self.format is Format.table

    def data(self, value: Any) -> None:
        """JSON or YAML as asked for."""
        if self.format is Format.yaml:
            text = written(value).rstrip("\n")
        else:
            text = self.encoded(value)
        sys.stdout.write(text + "\n")

    def encoded(self, value: Any) -> str:
        """As JSON, for a terminal or a file."""
        return json.dumps(value, indent=2, ensure_ascii=not _utf8())

    def rows(self, items: Sequence[Mapping[str, Any]], columns: Sequence[str], title: str | None = None) -> None:
        """A list: all of it for scripts, the columns for people. A column may be `name` or `name.inner`."""
        if not self.for_people:
            self.data(list(items))
            return
        self.console.print(table(items, columns, title, self.room))

    def one(self, item: Mapping[str, Any]) -> None:
        """One resource, field by field for people, without empty fields."""
        if not self.for_people:
            self.data(dict(item))
            return
        shown = Table(box=None, show_header=False, pad_edge=False)
        for field, value in item.items():
            if value not in (None, "", [], {}):
                shown.add_row(Text(field, style="bold"), cell(value))
        self.console.print(shown)

    def remark(self, text: str) -> None:
        """Writes a line for people, on standard error."""
        self.remarks.print(Text(clean(text)))


def table(items: Iterable[Mapping[str, Any]], columns: Sequence[str], title: str | None = None, room: int | None = None) -> Table:
    """One line per item. Where `room` is too small, the last columns are cut short first, then hidden; the first stays whole."""
    rows = [[cell(_value(item, column)) for column in columns] for item in items]
    heads = [Text(column.replace(".", " ").replace("_", " ").upper()) for column in columns]
    natural = [max(cells[index].cell_len for cells in [heads, *rows]) for index in range(len(columns))]
    widths = natural if room is None else fitted(natural, [head.cell_len for head in heads], room)
    hidden = ", ".join(head.plain for head in heads[len(widths) :])
    built = Table(box=None, pad_edge=False, header_style="bold", title=title, title_justify="left", title_style="bold underline")
    if hidden:
        built.caption, built.caption_justify, built.caption_style = f"hidden: {hidden} (--wide shows all)", "left", "dim"
    for head, width, whole in zip(heads, widths, natural, strict=False):
        cut = width < whole
        built.add_column(head, no_wrap=cut, overflow="ellipsis" if cut else "fold", max_width=width if cut else None)
    for cells in rows:
        built.add_row(*cells[: len(widths)])
    return built


def fitted(natural: Sequence[int], heads: Sequence[int], room: int) -> list[int]:
    """The widths of as many columns as there is room for. The first keeps its width; the others keep that of their heads, and _LEAST where
    they need that much."""
    least = [natural[0], *(max(head, min(width, _LEAST)) for width, head in zip(natural[1:], heads[1:], strict=True))]
    count = len(least)
    while count > 1 and sum(least[:count]) + _GAP * (count - 1) > room:
        count -= 1
    widths = list(natural[:count])
    for index in reversed(range(1, count)):
        excess = sum(widths) + _GAP * (count - 1) - room
        if excess > 0:
            widths[index] = max(least[index], widths[index] - excess)
    return widths


def _value(item: Mapping[str, Any], column: str) -> Any:
    value: Any = item
    for part in column.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def cell(value: Any) -> Text:
    """A value as people read it."""
    if value is None or value == [] or value == "":
        return Text("-", style="dim")
    if isinstance(value, bool):
        value = "yes" if value else "no"
    if isinstance(value, float):
        value = number(value)
    if isinstance(value, str) and (second := _MOMENT.fullmatch(value)):
        return Text(f"{second[1]}Z")
    if isinstance(value, list):
        value = ", ".join(short(member) if isinstance(member, dict) else str(_shown(member)) for member in value)
    elif isinstance(value, dict):
        value = short(value)
    text = clean(str(value))
    return Text(text, style="green" if text in _GOOD else "red" if text in _BAD else "")


def short(value: Mapping[str, Any]) -> str:
    """A mapping on one line."""
    given = [(name, v) for name, v in value.items() if v not in (None, "", [], {})]
    return " ".join(f"{name}={short(v) if isinstance(v, dict) else _shown(v)}" for name, v in given)


def _shown(value: Any) -> Any:
    return number(value) if isinstance(value, float) else value


def number(value: float) -> str:
    """As people write it, to a billionth: neither 6.8e-06 nor 5000.0."""
    return f"{value:.9f}".rstrip("0").rstrip(".") if math.isfinite(value) else str(value)


def moment(seconds: float) -> str:
    """The time of an audit record: seconds since the epoch as RFC 3339, UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def clean(text: str) -> str:
    """Removes characters that move the cursor, colour text or reverse its direction; keeps tabs and line feeds."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def _utf8() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
