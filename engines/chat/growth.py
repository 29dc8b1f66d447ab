"""Jinja's filters and Python's methods that make much of little: what they are asked for is looked at before they do it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from itertools import islice
from types import MappingProxyType
from typing import Any, Final

from jinja2.filters import make_attrgetter

from engines.chat.bounds import MOST_ELEMENTS, exceeded, held, made, tick, weigh

MOST_SLOW: Final = 256 * 1024
"""Bytes for filters that take long for each."""
LONG: Final = 1024 * 1024
"""Characters of a text that is not taken apart unwatched."""
MOST_DIGITS: Final = 4000
_CODINGS: Final = ("utf-8", "ascii", "latin-1")
_PIECE: Final = 16
"""A character of a text takes so much more as an element of a list."""
_SPEC: Final = re.compile(r"%(?:\([^)]*\))?[^a-zA-Z%]*|\{[^{}]*\}?")
"""A place in a format."""
_DIGITS: Final = re.compile(r"\d+")


def _amounts(arguments: Iterable[Any]) -> None:
    for value in arguments:
        if isinstance(value, int) and abs(value) > MOST_ELEMENTS:
            exceeded(f"asks a filter or a method for more than {MOST_ELEMENTS} of something")


def _text(value: Any) -> Any:
    return value if isinstance(value, str | bytes) else str(held(value))


def replaced(text: Any, old: Any = "", new: Any = "", count: Any = None) -> None:
    text, old, new = _text(text), _text(old), _text(new)
    if len(new) > len(old) and isinstance(text, str) == isinstance(old, str):
        made(len(text) + text.count(old) * len(new))


def formatted(text: Any, *arguments: Any, **named: Any) -> None:
    """Widths may be written in the places, never given apart."""
    places = _SPEC.findall(_text(text).replace("{{", "")) if isinstance(text, str) else ["%*"]
    if any("*" in place or (place[0] == "{" and place[-1] != "}") for place in places):
        exceeded("formats with a width that is given apart, or formats bytes")
    widths = sum(int(digits[:9]) for place in places for digits in _DIGITS.findall(place))
    made(len(text) + widths + weigh([arguments, named]) * len(places))


def indented(text: Any, width: Any = 4, first: Any = False, blank: Any = False) -> None:
    _amounts([width])
    text = _text(text)
    made(len(text) + (len(text.splitlines()) + 1) * (width if isinstance(width, int) else len(_text(width))))


def listing(value: Any) -> list[Any]:
    """`list`, step by step. Filters give iterators that would make their elements all at once."""
    if isinstance(value, str | bytes):
        made(_PIECE * len(value))
    if isinstance(value, str | bytes | list | tuple | dict | range):
        return list(value)
    result: list[Any] = []
    elements = iter(value)
    while piece := list(islice(elements, 1000)):
        tick()
        result += piece
    return result


def _joinable(value: Any, between: Any = "") -> Any:
    """What `join` puts together."""
    if isinstance(value, str):
        made(len(value) * (1 + len(_text(between))))
        return value
    items = listing(value)
    made(sum(len(item) if isinstance(item, str) else weigh(item) for item in items) + len(items) * len(_text(between)))
    return items


def _padded(text: Any, *arguments: Any, **named: Any) -> None:
    _amounts((*arguments, *named.values()))
    made(len(text) if isinstance(text, str | bytes) else 0)


def _tabs(text: Any, *arguments: Any, **named: Any) -> None:
    arguments = (*arguments, *named.values())
    _amounts(arguments)
    tabs = text.count("\t" if isinstance(text, str) else b"\t")
    made(len(text) + tabs * max((8, *(value for value in arguments if isinstance(value, int)))))


def _split(text: Any, *arguments: Any, **named: Any) -> None:
    """Only of long texts (BoundedSandbox.wrap_str_format): as much as what lies between the pieces."""
    between = next((value for value in (*arguments, *named.values()) if isinstance(value, str | bytes)), None)
    made(_PIECE * (text.count(between) if between else len(text) // 2))


def _slow(value: Any, *_: Any, **__: Any) -> None:
    if weigh(value) > MOST_SLOW:
        exceeded(f"gives more than {MOST_SLOW} bytes to a filter that is slow")


def _summed(_value: Any, *arguments: Any, **named: Any) -> None:
    if any(isinstance(value, list | tuple) for value in (*arguments, *named.values())):
        exceeded("adds up lists (sum)")


def _escaped(value: Any) -> None:
    made(6 * len(_text(value)))


def _iterated(value: Any, *_: Any, **__: Any) -> None:
    if isinstance(value, str | bytes):
        made(_PIECE * len(value))


def _coded(text: Any, encoding: Any = "utf-8", errors: Any = "strict") -> None:
    if encoding not in _CODINGS:
        exceeded(f"asks for an encoding other than {', '.join(_CODINGS)}")
    made(4 * len(text) if isinstance(text, str) else len(text))


def _short(value: Any, *_: Any, **__: Any) -> None:
    if isinstance(value, str | bytes) and len(value) > MOST_DIGITS:
        exceeded(f"makes a number of more than {MOST_DIGITS} characters")


BEFORE: Final[Mapping[str, Callable[..., Any]]] = MappingProxyType(
    {
        "batch": _padded, "center": _padded, "e": _escaped, "escape": _escaped, "format": formatted, "indent": indented, "int": _short,
        "map": _iterated, "reject": _iterated, "rejectattr": _iterated, "replace": replaced, "round": _padded, "select": _iterated,
        "selectattr": _iterated, "slice": _padded, "sum": _summed, "title": _iterated, "unique": _iterated, "urlencode": _slow,
        "wordcount": _iterated,
    }
)  # fmt: skip
"""Filters, and what is looked at before they work, with the same arguments."""
LISTED: Final = frozenset(("groupby", "list", "reverse", "slice", "sort"))
"""Filters that make a list of what they are given."""
AFTER: Final = frozenset(("dictsort", "groupby", "list", "sort"))
"""Filters whose lists are weighed."""
EACH: Final = frozenset(("batch", "slice"))
"""Filters whose results are lists of lists; each inner list is bounded too."""
GONE: Final = ("forceescape", "pprint", "striptags", "urlize", "wordwrap", "xmlattr")
"""Filters for web pages that take the square of a text's length, or make much of little."""
METHODS: Final[Mapping[str, Callable[..., Any]]] = MappingProxyType(
    {
        "center": _padded, "decode": _coded, "encode": _coded, "expandtabs": _tabs, "ljust": _padded, "replace": replaced, "rjust": _padded,
        "rsplit": _split, "split": _split, "splitlines": _split, "zfill": _padded,
    }
)  # fmt: skip
"""The same for methods of texts."""
UNSAFE: Final = frozenset(("from_bytes", "fromhex", "fromkeys", "hex", "maketrans", "striptags", "to_bytes", "translate"))
"""Methods that are refused: the size of their result cannot be told in advance, or they take very long."""


def watch(filters: dict[str, Callable[..., Any]]) -> None:
    for name in {*BEFORE, *AFTER, *LISTED}:
        filters[name] = _watched(name, filters[name])


def _watched(name: str, filter: Callable[..., Any]) -> Callable[..., Any]:
    """jinja gives some filters its environment or a context before the value; `wraps` keeps the mark that says so."""
    before = BEFORE.get(name)
    given = 1 if getattr(filter, "jinja_pass_arg", None) is not None else 0

    @wraps(filter)
    def call(*arguments: Any, **named: Any) -> Any:
        if before is not None:
            before(*arguments[given:], **named)
        if name in LISTED and not (name == "reverse" and isinstance(arguments[given], str)):
            arguments = (*arguments[:given], listing(arguments[given]), *arguments[given + 1 :])
        result = filter(*arguments, **named)
        if name in EACH:
            return map(held, result)
        return held(result) if name in AFTER else result

    return call


def weighing(call: Callable[..., Any], given: int) -> Callable[..., Any]:
    """A filter or a test in a template that fills lists after it has made them."""

    @wraps(call)
    def weighed(*arguments: Any, **named: Any) -> Any:
        for value in (*arguments[given:], *named.values()):
            held(value)
        return call(*arguments, **named)

    return weighed


def joining(filter: Callable[..., Any]) -> Callable[..., Any]:
    """The filter `join`, which is given a list of what it joins. With an attribute of each, that is taken first."""

    @wraps(filter)
    def call(context: Any, value: Any, d: Any = "", attribute: Any = None) -> Any:
        if attribute is not None:
            value = map(make_attrgetter(context.environment, attribute), value)
        return filter(context, _joinable(value, d), d)

    return call


def method(value: Any, watch: Callable[..., Any]) -> Callable[..., Any]:
    """A method of a text."""
    text = value.__self__

    def call(*arguments: Any, **named: Any) -> Any:
        watch(text, *arguments, **named)
        return value(*arguments, **named)

    return call


def formatting(text: str, format: Callable[..., Any]) -> Callable[..., Any]:
    """`format` and `format_map` of a text, as jinja's sandbox gives them."""

    def call(*arguments: Any, **named: Any) -> Any:
        formatted(text, *arguments, **named)
        return format(*arguments, **named)

    return call


def join_method(value: Any) -> Callable[[Any], str]:
    between = value.__self__

    def call(items: Any) -> str:
        result: str = value(_joinable(items, between))
        return result

    return call
