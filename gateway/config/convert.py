"""Converts nodes to settings by the types of gateway.core.specs. Every error names file, line, path, what is wrong and what would be right.

The types are read from the specs (msgspec's inspection), so a new setting needs nothing here. msgspec makes the final objects and checks
them once more.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import msgspec
from msgspec import inspect

from gateway.config import values
from gateway.config.environment import resolve
from gateway.config.faults import Faults
from gateway.core.addresses import quotable, without_logins
from gateway.core.errors import ConfigError
from gateway.core.patterns import words
from gateway.core.secret import Secret, secret_hook
from gateway.core.specs import (
    DURATIONS,
    BindingSpec,
    ConfigSpec,
    EngineSpec,
    ExporterSpec,
    GuardrailSpec,
    HookSpec,
    IdentitySpec,
    ModelSpec,
    RoleSpec,
    RoutingSpec,
    SinkSpec,
    Spec,
)
from gateway.core.units import DURATION, SIZE, written, written_size
from gateway.wire.yamltree import MAX_SHOWN, Node, Origin, join, node_of

T = TypeVar("T")
_DURATIONS = tuple(map(inspect.type_info, DURATIONS))
_type_info = functools.cache(inspect.type_info)
"""Cached: inspecting all settings takes ten times as long as reading a file, and would hold the interpreter at each reload."""
COMPARED: Final = 1000
"""Names at most among which the nearest is looked for: it takes a microsecond or more for each."""
LONG_LINE: Final = 15
"""A longer line of a hidden text is hidden by itself: a message may have the text's line breaks escaped."""
MANY: Final = 64
"""Longer lists and mappings of settings are made member by member."""


@dataclass(frozen=True, slots=True)
class PluginSchemas:
    """The schema of each plug-in's settings by the plug-in's name, handed in by the composition root. An absent plug-in is unknown.

    authenticators: those without a section of their own are configured under `identity.plugins`. engines: `options` by runtime, without
    `external`; if empty, options are not checked. selectors: `settings` by routing policy; if empty, they are not checked. roles: the names
    of the built-in roles, which a key's `roles` may have beside those of the configuration, or None to accept any. access: checks roles and
    bindings; gets the settings, and what makes an error of a path and a message. rule: the same for one role or binding, as far as it
    can be said of it alone; raises ConfigError with a path within it.
    """

    authenticators: Mapping[str, type[Spec]] = field(default_factory=dict)
    guardrails: Mapping[str, type[Spec]] = field(default_factory=dict)
    sinks: Mapping[str, type[Spec]] = field(default_factory=lambda: {"file": Spec})
    engines: Mapping[str, type[Spec]] = field(default_factory=dict)
    selectors: Mapping[str, type[Spec]] = field(default_factory=dict)
    hooks: Mapping[str, type[Spec]] = field(default_factory=dict)
    exporters: Mapping[str, type[Spec]] = field(default_factory=dict)
    roles: Collection[str] | None = None
    access: Callable[[ConfigSpec, Callable[[str, str], ConfigError]], None] | None = None
    rule: Callable[[RoleSpec | BindingSpec], None] | None = None


NO_PLUGINS: Final = PluginSchemas()


@dataclass(frozen=True, slots=True)
class _Plugin:
    """Which field of a spec names its plug-in (`kind`), which one holds that plug-in's settings, and their schemas. free: names that need
    no schema, or None if none does."""

    what: str
    kind: str
    settings: str
    schemas: Mapping[str, type[Spec]]
    free: Collection[str] | None = ()


class Converter:
    """Converts one tree. Afterwards, for the errors of later checks, `places` says where each path was written, and `hidden` holds texts
    that came from outside the file and must not be shown."""

    def __init__(self, environ: Mapping[str, str], directory: Path, schemas: PluginSchemas) -> None:
        self._environ, self._directory = environ, directory
        self._plugins: dict[type, _Plugin] = {
            GuardrailSpec: _Plugin("guardrail", "type", "settings", schemas.guardrails),
            SinkSpec: _Plugin("audit sink", "type", "settings", schemas.sinks),
            HookSpec: _Plugin("hook", "type", "settings", schemas.hooks),
            ExporterSpec: _Plugin("metric exporter", "type", "settings", schemas.exporters),
            EngineSpec: _Plugin("runtime", "runtime", "options", schemas.engines, free=("external",) if schemas.engines else None),
            RoutingSpec: _Plugin("routing policy", "policy", "settings", schemas.selectors, free=() if schemas.selectors else None),
        }
        own = IdentitySpec.__struct_fields__
        self._authenticators = {name: schema for name, schema in schemas.authenticators.items() if name not in own}
        self.places: dict[str, Origin] = {}
        self.hidden: set[str] = set()
        self._faults = Faults()

    def convert(self, root: Node, target: type[T]) -> T:
        """Returns the settings. Raises ConfigError for what is wrong, with all that does not follow from it."""
        info = _type_info(cast(Any, target))
        data = self._faults.gathered(lambda: self._value(root, info, ""))
        self._members(data, info, "", root.origin)
        return self._construct(data, target, "", root.origin)

    def _members(self, data: Any, target: inspect.Type, path: str, origin: Origin) -> None:
        """Makes the members of long lists and mappings one by one, in place: made by one call with all the rest, ten thousand engines would
        keep the interpreter from the event loop for 30 ms."""
        target = _without_none(target)
        if not isinstance(target, inspect.StructType) or not isinstance(data, dict):
            return
        types = {known.encode_name: _without_none(known.type) for known in target.fields}
        for name, value in data.items():
            known, where = types.get(name), join(path, name)
            if isinstance(known, inspect.StructType):
                self._members(value, known, where, origin)
            elif isinstance(known, inspect.VarTupleType) and isinstance(known.item_type, inspect.StructType) and isinstance(value, list):
                for index in range(len(value) if len(value) > MANY else 0):
                    value[index] = self._construct(value[index], known.item_type.cls, f"{where}[{index}]", origin)
            elif isinstance(known, inspect.DictType) and isinstance(known.value_type, inspect.StructType) and isinstance(value, dict):
                for key in value if len(value) > MANY else ():
                    value[key] = self._construct(value[key], known.value_type.cls, join(where, key), origin)

    def _construct(self, data: Any, target: type[T], path: str, origin: Origin) -> T:
        try:
            return msgspec.convert(data, target, dec_hook=secret_hook)
        except msgspec.ValidationError as error:
            message, _, where = str(error).partition(" - at `$")
            where = path + where.rstrip("`")
            raise self.place(where.lstrip("."), origin).error(where.lstrip("."), message) from None

    def place(self, path: str, default: Origin) -> Origin:
        """Where a path was written, or the nearest place around it."""
        while path and path not in self.places:
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return self.places.get(path, default)

    def error(self, path: str, message: str, root: Origin) -> ConfigError:
        """An error of a later check, with its place and without hidden texts."""
        return self.place(path, root).error(path, without(self.hidden, message))

    def _resolved(self, node: Node, path: str) -> Node:
        resolved = resolve(node, path, self._environ, self._directory)
        if resolved.hidden and len(resolved.text) > 3:
            self.hidden.add(resolved.text)
            self.hidden.update(line for line in resolved.text.splitlines() if len(line) > LONG_LINE)
        return resolved

    def _value(self, node: Node, target: inspect.Type, path: str) -> Any:
        self.places[path] = node.origin
        return self._read(self._resolved(node, path) if node.kind == "scalar" else node, target, path)

    def _read(self, node: Node, target: inspect.Type, path: str) -> Any:
        """Converts a node whose own text is resolved. Resolving it again would follow references in text from outside."""
        if isinstance(target, inspect.UnionType):
            return self._union(node, target, path)
        if isinstance(target, inspect.StructType):
            return self._struct(node, target, path)
        if isinstance(target, inspect.VarTupleType | inspect.ListType):
            if node.kind != "sequence":
                raise node.origin.error(path, f"must be a list, [a, b]{_instead(node)}")
            _counted(node, len(node.items), target, path)
            kind = target.item_type
            return [self._faults.tried(item, partial(self._value, item, kind, f"{path}[{at}]")) for at, item in enumerate(node.items)]
        if isinstance(target, inspect.DictType):
            if node.kind != "mapping":
                raise node.origin.error(path, f"must be a mapping, {{key: value}}{_instead(node)}")
            _counted(node, len(node.entries), target, path)
            kind, tried = target.value_type, self._faults.tried
            return {key: tried(value, partial(self._value, value, kind, join(path, key))) for key, value in node.entries.items()}
        if isinstance(target, inspect.AnyType):
            return self._free(node, target, path)
        if node.kind != "scalar" or (node.is_null and not isinstance(target, inspect.NoneType)):
            what = "is empty" if node.is_null else f"is a {node.kind}"
            raise node.origin.error(path, f"{what}; it must be {_expected(target)}")
        return _scalar(node, target, path)

    def _union(self, node: Node, target: inspect.UnionType, path: str) -> Any:
        members = [member for member in target.types if not isinstance(member, inspect.NoneType)]
        if node.is_null and len(members) < len(target.types):
            return None
        structs = [member for member in members if isinstance(member, inspect.StructType | inspect.DictType)]
        lists = [member for member in members if isinstance(member, inspect.VarTupleType | inspect.ListType)]
        plain = [member for member in members if member not in structs and member not in lists]
        if node.kind == "mapping" and structs:
            return self._read(node, structs[0], path)
        if node.kind == "sequence" and lists:
            return self._read(node, lists[0], path)
        choices = [member for member in plain if isinstance(member, inspect.LiteralType)]
        if len(choices) > 1:
            plain = [inspect.LiteralType(tuple(word for member in choices for word in member.values))]
        if node.kind == "scalar" and len(plain) > 1:
            return _untyped(node, path)
        return self._read(node, (plain or lists or structs)[0], path)

    def _struct(self, node: Node, target: inspect.StructType, path: str) -> dict[str, Any]:
        if node.kind != "mapping":
            raise node.origin.error(path, f"must be a mapping, {{key: value}}{_instead(node)}")
        fields = {known.encode_name: known for known in target.fields}
        unknown = [key for key in node.entries if key not in fields]
        for key in unknown:
            self._faults.add(node.key_origins[key].error(join(path, key), f"unknown key {quoted(key)}; {nearest(key, fields)}"))
        for name, known in fields.items():
            if known.required and name not in node.entries and not unknown:  # or it is one of these, misspelt
                self._faults.add(node.origin.error(path, f"'{name}' is missing; it must be {_expected(known.type)}"))
        plugin = self._plugins.get(target.cls)
        data: dict[str, Any] = {}
        for name, value in node.entries.items():
            where = join(path, name)
            if target.cls is IdentitySpec and name == "plugins":
                data[name] = self._faults.tried(value, partial(self._by_name, value, self._authenticators, "authenticator", where))
            elif name in fields and (plugin is None or name != plugin.settings):
                data[name] = self._faults.tried(value, partial(self._member, value, target.cls, name, fields[name].type, where))
        if plugin is not None and not isinstance(data.get(plugin.kind, _default(target, plugin.kind)), str):
            return data  # which plug-in is meant is wrong or missing, which is told
        kind: Any = data.get(plugin.kind, _default(target, plugin.kind)) if plugin is not None else None
        if plugin is not None and (kind in plugin.schemas or (plugin.free is not None and kind not in plugin.free)):
            data[plugin.settings] = self._settings(node, kind, plugin, path)
        elif plugin is not None and (given := node.entries.get(plugin.settings)) is not None:
            data[plugin.settings] = self._value(given, fields[plugin.settings].type, join(path, plugin.settings))
        return data

    def _member(self, node: Node, owner: type, name: str, target: inspect.Type, path: str) -> Any:
        """One field. Its declared type decides whether a text is a duration or a size."""
        bare = _without_none(target)
        reader: Callable[[str], float | None] | None = None
        if bare in _DURATIONS:
            reader, right = values.duration, DURATION
        elif name.endswith("_bytes") and isinstance(bare, inspect.IntType):
            reader, right = values.size, SIZE
        if reader is None or node.kind != "scalar" or node.is_null:
            return self._value(node, target, path)
        self.places[path] = node.origin
        node = self._resolved(node, path)
        value = reader(node.text)
        if value is None:
            raise node.origin.error(path, f"{_shown(node)} is not {right}")
        return _bounded(value, bare, node, path, "a size" if reader is values.size else "a duration")

    def _settings(self, node: Node, kind: str, plugin: _Plugin, path: str) -> dict[str, Any]:
        """Checks a plug-in's settings by its own schema; returns them in plain values as they were written."""
        schema = plugin.schemas.get(kind)
        if schema is None:
            named = join(path, plugin.kind)
            known = nearest(kind, (*plugin.schemas, *(plugin.free or ())))
            raise self.place(named, node.origin).error(named, f"there is no {plugin.what} {quoted(kind)}; {known}")
        where = join(path, plugin.settings)
        settings = node.entries.get(plugin.settings) or Node("mapping", node.origin)
        return self.checked(settings, schema, where)

    def _by_name(self, node: Node, schemas: Mapping[str, type[Spec]], what: str, path: str) -> dict[str, Any]:
        """A mapping whose keys name plug-ins and whose values are their settings."""
        if node.kind != "mapping":
            raise node.origin.error(path, f"must be a mapping, {{name: settings}}{_instead(node)}")
        for key in node.entries:
            if key not in schemas:
                self._faults.add(node.key_origins[key].error(join(path, key), f"there is no {what} {quoted(key)}; {nearest(key, schemas)}"))
        self.places[path] = node.origin
        named = {key: _or_empty(value) for key, value in node.entries.items() if key in schemas}
        tried = self._faults.tried
        return {key: tried(value, partial(self.checked, value, schemas[key], join(path, key))) for key, value in named.items()}

    def checked(self, node: Node, schema: type[Spec], path: str) -> dict[str, Any]:
        """What was written, in plain values, after checking it against a schema. Raises ConfigError."""
        before = len(self._faults)
        data: dict[str, Any] = self._value(node, _type_info(schema), path)
        if len(self._faults) == before:
            self._construct(data, schema, path, node.origin)
        return data

    def _free(self, node: Node, target: inspect.AnyType, path: str) -> Any:
        """A value that no schema describes."""
        if node.kind == "sequence":
            return [self._value(item, target, f"{path}[{index}]") for index, item in enumerate(node.items)]
        if node.kind == "mapping":
            return {key: self._value(value, target, join(path, key)) for key, value in node.entries.items()}
        return _untyped(node, path)


def with_plain_settings(spec: Spec, schemas: PluginSchemas) -> Spec:
    """A guardrail, engine or model of the store, with its plug-in's settings read as those of a file are.

    Raises ConfigError with a path within it. A guardrail of an unknown type is returned unchanged: building it raises the error.
    """
    if isinstance(spec, EngineSpec) and schemas.engines:
        if (schema := schemas.engines.get(spec.runtime)) is not None:
            return msgspec.structs.replace(spec, options=plain_settings(spec.options, schema, "options"))
        if spec.runtime != "external":
            hint = nearest(spec.runtime, (*schemas.engines, "external"))
            raise ConfigError(f"there is no runtime {quoted(spec.runtime)}; {hint}", path="runtime")
    if isinstance(spec, GuardrailSpec) and (schema := schemas.guardrails.get(spec.type)) is not None:
        return msgspec.structs.replace(spec, settings=plain_settings(spec.settings, schema, "settings"))
    if isinstance(spec, ModelSpec) and schemas.selectors:
        routing = spec.routing
        if (schema := schemas.selectors.get(routing.policy)) is None:
            hint = nearest(routing.policy, schemas.selectors)
            raise ConfigError(f"there is no routing policy {quoted(routing.policy)}; {hint}", path="routing.policy")
        routing = msgspec.structs.replace(routing, settings=plain_settings(routing.settings, schema, "routing.settings"))
        return msgspec.structs.replace(spec, routing=routing)
    return spec


def _counted(node: Node, count: int, target: inspect.VarTupleType | inspect.ListType | inspect.DictType, path: str) -> None:
    """Raises ConfigError for too few members, or too many."""
    least, most = target.min_length or 0, target.max_length
    if count < least:
        raise node.origin.error(path, f"has {count or 'no'} members; it must have {least} or more")
    if most is not None and count > most:
        raise node.origin.error(path, f"has {count} members; it must have at most {most}")


def _default(target: inspect.StructType, name: str) -> Any:
    return next(known.default for known in target.fields if known.name == name)


def _or_empty(node: Node) -> Node:
    """An empty value (`name:`) means the defaults."""
    return Node("mapping", node.origin) if node.is_null else node


def plain_settings(values: Mapping[str, Any], schema: type[Spec], path: str) -> dict[str, Any]:
    """Reads settings given as JSON like those of a file, durations and sizes included, except that `${...}` refers to nothing.

    Raises ConfigError with a path below the given one."""
    return Converter({}, Path(), PluginSchemas()).checked(node_of(values, path), schema, path)


def nearest(word: str, known: Collection[str]) -> str:
    """A hint for an unknown word: the nearest known one, or all of them; of very many only their number."""
    if len(known) > COMPARED:
        return f"there are {len(known)} others"
    names = sorted(known)
    close = difflib.get_close_matches(word, names, 1, 0.6)
    if close:
        return f"did you mean '{close[0]}'?"
    return f"known: {', '.join(names)}" if names else "none is known here"


_NO_REFERENCE: Final = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*|file:/[^/].*")


def _untyped(node: Node, path: str) -> Any:
    """A scalar whose type follows from how it is written."""
    return _text(node, path) if not node.plain else values.untyped(node.text, plain=True)


def _scalar(node: Node, target: inspect.Type, path: str) -> Any:
    text = node.text
    if isinstance(target, inspect.CustomType):
        secret = _text(node, path)
        if _NO_REFERENCE.fullmatch(secret):
            raise node.origin.error(path, f"is not a reference; write ${{{secret}}}")
        return Secret(secret)
    if isinstance(target, inspect.StrType):
        return _bounded_text(node, target, path)
    unquoted = node.plain or node.hidden
    value: Any = None
    if isinstance(target, inspect.BoolType):
        value = values.truth(text) if unquoted else None
    elif isinstance(target, inspect.IntType):
        value = values.integer(text) if unquoted else None
    elif isinstance(target, inspect.FloatType):
        value = values.number(text) if unquoted else None
    elif isinstance(target, inspect.LiteralType):
        value = next((known for known in target.values if str(known) == text and (unquoted or isinstance(known, str))), None)
    if value is None:
        quotes = " (without quotes)" if not unquoted and not isinstance(target, inspect.LiteralType) else ""
        raise node.origin.error(path, f"{_shown(node)} is not allowed; it must be {_expected(target)}{quotes}{_close(text, target)}")
    return _bounded(value, target, node, path)


def _bounded(value: Any, target: inspect.Type, node: Node, path: str, measure: str = "") -> Any:
    """The value, if it lies within the type's bounds. measure: the quantity, if it is written with a unit."""
    if isinstance(target, inspect.IntType | inspect.FloatType):
        below = (target.ge is not None and value < target.ge) or (target.gt is not None and value <= target.gt)
        above = (target.le is not None and value > target.le) or (target.lt is not None and value >= target.lt)
        if below or above:
            expected = measure + _range(target, _SPELLED[measure]) if measure else _expected(target)
            raise node.origin.error(path, f"{_shown(node)} is not allowed; it must be {expected}")
    return value


def _bounded_text(node: Node, target: inspect.StrType, path: str) -> str:
    text = _text(node, path)
    length = len(text)
    fits = (target.min_length or 0) <= length and (target.max_length is None or length <= target.max_length)
    if not fits or (target.pattern is not None and re.search(target.pattern, text) is None):
        raise node.origin.error(path, f"{_shown(node)} is not allowed; it must be {_expected(target)}")
    return text


def _text(node: Node, path: str) -> str:
    """The text, if it can be written as UTF-8 and has no NUL."""
    if any("\ud800" <= character <= "\udfff" for character in node.text) or "\x00" in node.text:
        raise node.origin.error(path, "holds characters that are not valid text")
    return node.text


def _without_none(target: inspect.Type) -> inspect.Type:
    if isinstance(target, inspect.UnionType):
        members = [member for member in target.types if not isinstance(member, inspect.NoneType)]
        if len(members) == 1:
            return members[0]
    return target


def without(hidden: Collection[str], message: str) -> str:
    """The message of an error without texts that must not be shown."""
    for text in sorted(hidden, key=len, reverse=True):  # one may be a part of another
        message = message.replace(text, "(not shown)").replace(without_logins(text), "(not shown)")  # as an error quotes it
    return message


def quoted(text: str) -> str:
    """A value for an error. Texts as long as a key are not shown, nor passwords in addresses."""
    return f"'{quotable(text)}'" if len(text) <= MAX_SHOWN else f"a text of {len(text)} characters"


def _shown(node: Node) -> str:
    """A value for an error. Texts from outside the file are not shown."""
    return "the value (not shown)" if node.hidden else quoted(node.text)


def _instead(node: Node) -> str:
    return " (it is empty)" if node.is_null else f" (it is a {'plain value' if node.kind == 'scalar' else node.kind})"


def _close(text: str, target: inspect.Type) -> str:
    if not isinstance(target, inspect.LiteralType):
        return ""
    close = difflib.get_close_matches(text, [str(value) for value in target.values], 1, 0.6)
    return f" (did you mean {close[0]}?)" if close else ""


def _expected(target: inspect.Type) -> str:
    """Says in words what would be right."""
    bare = _without_none(target)
    if isinstance(bare, inspect.LiteralType):
        return " or ".join(str(value) for value in bare.values) if len(bare.values) < 3 else "one of " + ", ".join(map(str, bare.values))
    if isinstance(bare, inspect.IntType):
        return "a whole number" + _range(bare)
    if isinstance(bare, inspect.FloatType):
        return "a number" + _range(bare)
    if isinstance(bare, inspect.BoolType):
        return "true or false"
    if isinstance(bare, inspect.StrType):
        return words(bare.pattern) if bare.pattern else "a text" + _lengths(bare)
    if isinstance(bare, inspect.CustomType):
        return "a secret, best as ${env:NAME} or ${file:PATH}"
    if isinstance(bare, inspect.VarTupleType | inspect.ListType):
        return "a list"
    return "a mapping" if isinstance(bare, inspect.StructType | inspect.DictType) else "a value"


def _number(value: float) -> str:
    return f"{value:.15g}"


_SPELLED: Final[dict[str, Callable[[Any], str]]] = {"a duration": written, "a size": written_size}
"""How the bounds of quantities with a unit are told."""
ENDLESS: Final = 2.0**53 - 1
"""A bound this high only says that the number is exact: it is not told."""


def _range(target: inspect.IntType | inspect.FloatType, spelled: Callable[[Any], str] = _number) -> str:
    def bound(word: str, number: float | None) -> str:
        return "" if number is None or number >= ENDLESS else f" {word} {spelled(number)}"

    low = bound("of at least", target.ge) or bound("above", target.gt)
    high = bound("at most", target.le) or bound("below", target.lt)
    return low + (" and" if low and high else "") + high


def _lengths(target: inspect.StrType) -> str:
    low = f" of {target.min_length} characters or more" if target.min_length else ""
    return low + (f", {target.max_length} at most" if target.max_length is not None else "")
