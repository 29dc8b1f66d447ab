"""Conditions of bindings: boolean expressions in CEL, the Common Expression Language (github.com/google/cel-spec).

An expression is checked against the types of what it may read when the configuration is loaded, so that a misspelt name or a comparison of
a number with a text is an error with its place, and is evaluated once for each request that it decides. CEL has no loops but those over
lists, each evaluation is bounded in steps, and regular expressions (`matches`) are RE2's. What a condition reads:

    request.operation, .model (the public name), .adapter, .version, .stream, .max_tokens, .bytes (of the body), .tools (names), .label
    principal.id, .key, .tenant, .kind, .user, .groups, .roles, .scopes, .agent, .session, .strength, .issuer, .acr, .amr, .auth_time
    source.address, .country, .certificate (SHA-256 of the connection's client certificate in hex, "" without one)
    now (UTC; `now.getHours("Europe/Berlin")`, `now.getDayOfWeek()` with Sunday 0)
    cidr("10.0.0.0/8").containsIP(source.address)

The library is Google's own implementation, loaded when the first condition is compiled.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from importlib import import_module
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any, Final
from zoneinfo import ZoneInfo

import re2

from gateway.core.errors import ConfigError

MAX_LENGTH: Final = 4096
MAX_ITEMS: Final = 128
"""Items of a list that a caller chooses (tools). A condition that reads a longer one is not evaluated and counts as failed: some of CEL's
macros take time in the square of a list's length."""
_TEXT, _INTEGER, _BOOLEAN, _TEXTS, _TIME = "text", "integer", "boolean", "texts", "time"
_TIMESTAMP: Final = "google.protobuf.Timestamp"
_FIELDS: Final[dict[str, dict[str, str]]] = {
    "Request": {
        "operation": _TEXT,
        "model": _TEXT,
        "version": _TEXT,
        "stream": _BOOLEAN,
        "max_tokens": _INTEGER,
        "bytes": _INTEGER,
        "tools": _TEXTS,
        "adapter": _TEXT,
        "label": _TEXT,
    },
    "Principal": {
        "id": _TEXT,
        "tenant": _TEXT,
        "kind": _TEXT,
        "user": _TEXT,
        "groups": _TEXTS,
        "roles": _TEXTS,
        "scopes": _TEXTS,
        "agent": _TEXT,
        "session": _TEXT,
        "key": _TEXT,
        "strength": _TEXT,
        "issuer": _TEXT,
        "acr": _TEXT,
        "amr": _TEXTS,
        "auth_time": _TIME,
    },
    "Source": {"address": _TEXT, "country": _TEXT, "certificate": _TEXT},
}
NOW: Final = "now"
NAMES: Final = frozenset((NOW, *(f"{root.lower()}.{field}" for root, fields in _FIELDS.items() for field in fields)))
"""The names of all facts."""
UNTIMED: Final = datetime.fromtimestamp(0, UTC)
"""Stands for a time that is not known; absent for `has()`."""
EARLIEST: Final = 0.0
LATEST: Final = 253402300799.0
"""Seconds since the epoch between which a timestamp can be told: until the end of the year 9999."""
_PLACE: Final = re.compile(r"<input>:(\d+):(\d+): (.*)")
_EXPECTED: Final = re.compile(r" expecting .*")
"""The many that could come next."""
_CIDR: Final = re.compile(r"""\bcidr\(\s*(['"])(.*?)\1\s*\)""")
_ZONE: Final = re.compile(r"""\.get[A-Z][A-Za-z]*\(\s*(['"])(.*?)\1\s*\)""")
_OFFSET: Final = re.compile(r"[+-][0-9]{2}:[0-9]{2}")
_HAS: Final = re.compile(r"\bhas\b")
_ROOT: Final = re.compile(r"\b(request|principal|source)\b(?:\s*\.\s*([A-Za-z_][A-Za-z0-9_]*))?")
_NOW: Final = re.compile(r"\bnow\b")
_PATTERN: Final = re.compile(r"""\.matches\(\s*(['"])(.*?)\1\s*\)""")


Read = Callable[[str], Any]
"""Tells a fact by its name, such as `request.max_tokens`. Raises ValueError for one that conditions must not be evaluated on."""


class Condition:
    """One compiled expression. Immutable. reads: the names of the facts that it reads, `principal.groups` for one; it is told no others.

    parts: by `request`, `principal` or `source`: the class of its message and the names of what is read of it, for an expression that
    takes messages; None for one that takes each fact by itself.
    """

    __slots__ = ("_evaluate", "_parts", "reads", "text")

    def __init__(self, text: str, expression: Any, reads: tuple[str, ...], parts: Mapping[str, Part] | None) -> None:
        self.text, self.reads, self._evaluate, self._parts = text, reads, expression.eval, parts

    def holds(self, read: Read, otherwise: bool) -> bool:
        """Whether it is true; `otherwise` where it cannot be evaluated (a division by zero, too many steps, too long a list)."""
        try:
            data = {name: read(name) for name in self.reads} if self._parts is None else self._messages(read, self._parts)
            found = self._evaluate(data=data).value()
        except (RuntimeError, ValueError, TypeError, OverflowError):
            return otherwise
        return found if isinstance(found, bool) else otherwise

    def _messages(self, read: Read, parts: Mapping[str, Part]) -> dict[str, Any]:
        data: dict[str, Any] = {root: kind(**_told(root, fields, read)) for root, (kind, fields) in parts.items()}
        if NOW in self.reads:
            data[NOW] = read(NOW)
        return data


Part = tuple[Any, tuple[str, ...]]


def _told(root: str, fields: Iterable[str], read: Read) -> dict[str, Any]:
    """The fields of a message. A time that is not known is left out, so that it is absent for `has()`."""
    told = {field: read(f"{root}.{field}") for field in fields}
    return {field: value for field, value in told.items() if value is not UNTIMED}


class Language:
    """The environment in which conditions are compiled and facts are made. Loads the library: about 12 MiB."""

    def __init__(self) -> None:
        self._cel: Any = import_module("cel_expr_python.cel")
        pool, self._messages = _messages()
        self._environment = self._cel.NewEnv(pool, variables=self._variables(), extensions=[self._network()])
        self._plain = self._cel.NewEnv(variables=self._facts(), extensions=[self._network()])

    def compile(self, text: str) -> Condition:
        """Raises ConfigError with the place in the text for an expression that is wrong, or that is not a yes or no."""
        if len(text) > MAX_LENGTH:
            raise ConfigError(f"has {len(text)} characters; a condition has at most {MAX_LENGTH}")
        self._literals(text)
        try:
            expression = self._environment.compile(text)
        except (RuntimeError, ValueError) as error:
            raise ConfigError(_readable(str(error))) from None
        if expression.return_type() != self._cel.Type.BOOL:
            raise ConfigError("is not a condition: it must be true or false, such as request.max_tokens <= 1000")
        return self._told_apart(text, expression)

    def _told_apart(self, text: str, expression: Any) -> Condition:
        """The condition with the facts that it reads. Facts are given one by one where that means the same, as it takes half the time:
        where `request`, `principal` and `source` appear only with one of their fields behind them, and outside of `has()`."""
        reads, bare = _named(text)
        if not bare and not _HAS.search(text):
            try:
                plain = self._plain.compile(text)
            except (RuntimeError, ValueError):
                plain = None
            if plain is not None and plain.return_type() == self._cel.Type.BOOL:
                return Condition(text, plain, reads, None)
        roots = dict.fromkeys(name.partition(".")[0] for name in reads if name != NOW)
        parts = {
            root: (self._messages[root.capitalize()], tuple(name.partition(".")[2] for name in reads if name.startswith(f"{root}.")))
            for root in roots
        }
        return Condition(text, expression, reads, parts)

    def _literals(self, text: str) -> None:
        """Checks texts in an expression that CEL itself reads only when it evaluates them. Raises ConfigError."""
        for found in _CIDR.finditer(text):
            try:
                _network_of(found[2])
            except ValueError:
                raise ConfigError(f"cidr({found[2][:60]!r}) is not a network; write such as 10.0.0.0/8") from None
        for found in _ZONE.finditer(text):
            try:
                ZoneInfo(found[2])
            except (ValueError, KeyError, OSError):
                if not _OFFSET.fullmatch(found[2]):
                    raise ConfigError(f"{found[2][:60]!r} is not a time zone; write such as Europe/Berlin or +02:00") from None
        for found in _PATTERN.finditer(text):
            try:
                re2.compile(found[2].encode().decode("unicode_escape", "replace"))
            except re2.error as error:
                raise ConfigError(f"matches({found[2][:60]!r}) is not a regular expression of RE2: {error}") from None

    def _variables(self) -> dict[str, Any]:
        kind = self._cel.Type
        return {
            "request": kind("gatehouse.Request"),
            "principal": kind("gatehouse.Principal"),
            "source": kind("gatehouse.Source"),
            NOW: kind.TIMESTAMP,
        }

    def _facts(self) -> dict[str, Any]:
        """The same, each fact a variable of its own whose name has a dot."""
        kind = self._cel.Type
        types = {_TEXT: kind.STRING, _INTEGER: kind.INT, _BOOLEAN: kind.BOOL, _TEXTS: kind.List(kind.STRING), _TIME: kind.TIMESTAMP}
        fields = {f"{root.lower()}.{field}": types[sort] for root, fields in _FIELDS.items() for field, sort in fields.items()}
        return {**fields, NOW: kind.TIMESTAMP}

    def _network(self) -> Any:
        """`cidr` and `containsIP`, named as in Kubernetes' library. A network is a text to the evaluator."""
        cel = self._cel
        text, truth = cel.Type.STRING, cel.Type.BOOL
        return cel.CelExtension(
            "gatehouse.network",
            [
                cel.FunctionDecl("cidr", [cel.Overload("cidr_string", return_type=text, parameters=[text], impl=_checked)]),
                cel.FunctionDecl(
                    "containsIP",
                    [cel.Overload("cidr_contains_ip_string", return_type=truth, parameters=[text, text], is_member=True, impl=_contains)],
                ),
            ],
        )


def _named(text: str) -> tuple[tuple[str, ...], bool]:
    """The facts that a text may read, at least, and whether it uses one of the three names without a field that it has, or as a field
    itself: then all facts are meant. What is in quotes counts like all else, which costs time and changes nothing."""
    found = dict.fromkeys((NOW,) if _NOW.search(text) else ())
    bare = False
    for match in _ROOT.finditer(text):
        name = f"{match[1]}.{match[2]}"
        bare = bare or name not in NAMES or text[: match.start()].rstrip().endswith((".", "`"))
        found[name] = None
    return (tuple(sorted(NAMES)), True) if bare else (tuple(found), False)


def instant(seconds: float) -> datetime:
    """A time as conditions read it. Raises ValueError for seconds since the epoch that no timestamp can tell."""
    if not EARLIEST <= seconds <= LATEST:
        raise ValueError("no time")
    return datetime.fromtimestamp(seconds, UTC)


def _messages() -> tuple[Any, dict[str, Any]]:
    """A pool with the three messages, and their classes by name."""
    descriptor = import_module("google.protobuf.descriptor_pb2")
    pools = import_module("google.protobuf.descriptor_pool")
    factory = import_module("google.protobuf.message_factory")
    field = descriptor.FieldDescriptorProto
    types = {
        _TEXT: field.TYPE_STRING,
        _TEXTS: field.TYPE_STRING,
        _INTEGER: field.TYPE_INT64,
        _BOOLEAN: field.TYPE_BOOL,
        _TIME: field.TYPE_MESSAGE,
    }
    timestamp = descriptor.FileDescriptorProto()
    import_module("google.protobuf.timestamp_pb2").DESCRIPTOR.CopyToProto(timestamp)
    file = descriptor.FileDescriptorProto(name="gatehouse.proto", package="gatehouse", syntax="proto3", dependency=[timestamp.name])
    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        for number, (key, kind) in enumerate(fields.items(), 1):
            label = field.LABEL_REPEATED if kind == _TEXTS else field.LABEL_OPTIONAL
            named = {"type_name": f".{_TIMESTAMP}"} if kind == _TIME else {}
            message.field.add(name=key, number=number, type=types[kind], label=label, **named)
    pool = pools.DescriptorPool()
    pool.Add(timestamp)
    pool.Add(file)
    return pool, {name: factory.GetMessageClass(pool.FindMessageTypeByName(f"gatehouse.{name}")) for name in _FIELDS}


def _readable(message: str) -> str:
    """The first error of the compiler in one line."""
    found = _PLACE.search(message)
    if found is None:
        return f"cannot be compiled: {message[:200]}"
    what = found[3].partition(" [")[0].replace("gatehouse.", "").replace(" (in container '')", "")
    what = what.replace("undefined field '", "'").replace("not found in struct", "is not a field of")
    what = "ends too early" if "mismatched input '<EOF>'" in what else _EXPECTED.sub("", what)
    if what.startswith("undeclared reference to"):
        what += "; there are request, principal, source, now, cidr"
    where = f"column {found[2]}" if found[1] == "1" else f"line {found[1]}, column {found[2]}"
    return f"{where}: {what[:200]}"


@lru_cache(maxsize=4096)
def _network_of(text: str) -> IPv4Network | IPv6Network:
    return ip_network(text, strict=False)


@lru_cache(maxsize=4096)
def _contains(network: str, address: str) -> bool:
    """Raises ValueError for texts that are neither; the condition then counts as failed."""
    found = ip_address(address.partition("%")[0])
    mapped = getattr(found, "ipv4_mapped", None)
    return (found if mapped is None else mapped) in _network_of(network)


def _checked(text: str) -> str:
    _network_of(text)
    return text
