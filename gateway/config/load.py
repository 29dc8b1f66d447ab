"""The configuration file: strict YAML, overrides by environment, references to secrets, checked settings.

A wrong configuration raises one ConfigError: `file:line: path: what is wrong; what would be right`, with the others that do not follow
from it. Neither errors nor dumps show secrets.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import msgspec

from gateway.config import environment, faults, validate
from gateway.config.convert import NO_PLUGINS, Converter, PluginSchemas, without
from gateway.config.environment import read_file
from gateway.core.addresses import SECRET_WORDS, without_login
from gateway.core.durations import member_type, shown, shown_setting
from gateway.core.errors import ConfigError
from gateway.core.secret import MASK, Secret
from gateway.core.specs import ConfigSpec, RoleSpec, Spec
from gateway.wire import yamltree

ALIKE: Final = 1024
"""Groups of settings that are remembered while the members of a list are described."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A configuration with the text and the file that it came from. places: where each setting was written, by its path. hidden: texts that
    came from outside the file."""

    spec: ConfigSpec
    text: str
    file: str
    places: Mapping[str, yamltree.Origin] = field(default_factory=dict, repr=False)
    hidden: Collection[str] = field(default=(), repr=False)

    def place(self, error: ConfigError) -> None:
        """Adds to an error of a later check where its setting was written, or where the section is that lacks it. Removes values that came
        from outside the file from its message: they may be secrets, such as a key that was given instead of its path."""
        error.message = without(self.hidden, error.message)
        path = error.path
        if path is None or error.file is not None:
            return
        while path not in self.places:
            if not path or path.endswith("]"):  # a member of a list that is written elsewhere
                return
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        found = self.places[path].error(path, "")
        error.file, error.line = found.file, found.line


def load(path: str | Path, environ: Mapping[str, str], schemas: PluginSchemas = NO_PLUGINS) -> Loaded:
    """Reads and parses a file. Raises ConfigError, also if the file cannot be read."""
    text = read_text(path)
    spec, converter = _parsed(text, str(path), environ, schemas)
    return Loaded(spec, text, str(path), converter.places, converter.hidden)


def read_text(path: str | Path) -> str:
    """The text of a configuration file. Raises ConfigError."""
    file = Path(path)
    try:
        data = read_file(file, yamltree.MAX_BYTES)
        if data is None:
            raise ConfigError("is not a file", file=str(path))
        if len(data) > yamltree.MAX_BYTES:
            raise ConfigError(f"is larger than {yamltree.MAX_BYTES} bytes", file=str(path))
        return data.decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", file=str(path)) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"is not UTF-8 text (byte {error.start})", file=str(path)) from None


def parse(
    text: str, *, file: str | None, environ: Mapping[str, str], schemas: PluginSchemas = NO_PLUGINS, folder: Path | None = None
) -> ConfigSpec:
    """Settings from a text. `file` names it in errors; `${file:...}` is relative to `folder`, by default the file's own.

    Raises ConfigError for the first thing that is wrong; its `others` are more.
    """
    return _parsed(text, file, environ, schemas, folder)[0]


def _parsed(
    text: str, file: str | None, environ: Mapping[str, str], schemas: PluginSchemas, folder: Path | None = None
) -> tuple[ConfigSpec, Converter]:
    root = yamltree.read(text, file=file)
    converter = Converter(environ, folder or (Path(file).parent if file else Path()), schemas)
    try:
        environment.override(root, environ)
        spec = converter.convert(root, ConfigSpec)
    finally:
        yamltree.let_go(root)

    def error(path: str, message: str) -> ConfigError:
        return converter.error(path, message, root.origin)

    access = schemas.access
    faults.each((lambda: validate.check(spec, error, schemas.roles), lambda: None if access is None else access(spec, error)))
    return validate.with_authorities(spec), converter


def describe(spec: msgspec.Struct, schemas: PluginSchemas = NO_PLUGINS) -> dict[str, Any]:
    """The settings as plain values for a dump or the admin API, durations as texts (`1m30s`), every secret masked as ********.

    Masked are secret settings, header values for engines, logins and secrets in URLs, and free-form settings with a name such as `token`.
    """
    return {name: list(value) if isinstance(value, Iterator) else value for name, value in described(spec, schemas)}


def described(spec: msgspec.Struct, schemas: PluginSchemas = NO_PLUGINS) -> Iterator[tuple[str, Any]]:
    """The same by setting; the members of lists by an iterator each, so that those of ten thousand engines need not be there at once, and
    so that a thread that makes them leaves the interpreter to the event loop in between. Take each before the next setting."""
    for name, known in zip(spec.__struct_fields__, spec.__struct_encode_fields__, strict=True):
        value = getattr(spec, name)
        if isinstance(value, tuple):
            yield known, map(_describing(type(spec), known, schemas), value)
        else:
            plain = shown_setting(_masked(msgspec.to_builtins(value, enc_hook=_mask), known), type(spec), known)
            for exporter in plain.get("exporters", ()) if known == "telemetry" else ():
                _own(exporter, exporter["type"], "settings", schemas.exporters)
            yield known, plain


def described_roles(roles: Mapping[str, RoleSpec]) -> Iterator[tuple[str, Any]]:
    """Roles as `described` shows them, one by one, in the order of their names."""
    for name in sorted(roles):
        (plain,) = shown_setting(_masked({name: msgspec.to_builtins(roles[name], enc_hook=_mask)}, "roles"), ConfigSpec, "roles").values()
        yield name, plain


def _describing(struct: type, known: str, schemas: PluginSchemas) -> Callable[[Any], Any]:
    """Describes members of this setting, one by one. Groups of settings that members have in common, those by default above all, are
    described once: most of what ten thousand engines say is the same."""
    alike: dict[tuple[str, int], tuple[Any, Any]] = {}
    kind: Any = member_type(struct, known)

    def setting(name: str, value: Any) -> Any:
        """The value of a member's setting that is neither a text nor nothing."""
        found = alike.get((name, id(value)))
        if found is None:  # the value is kept with what it is shown as, so that no other one can have its identity
            found = value, shown_setting(_masked(msgspec.to_builtins(value, enc_hook=_mask), name), kind, name)
            if len(alike) < ALIKE:
                alike[name, id(value)] = found
        return found[1]

    def one(member: Any) -> Any:
        if type(member) is not kind:
            (made,) = shown_setting([_masked(msgspec.to_builtins(member, enc_hook=_mask), known)], struct, known)
        else:
            made = {}
            for name, encoded in zip(member.__struct_fields__, member.__struct_encode_fields__, strict=True):
                value = getattr(member, name)
                if isinstance(value, str):
                    made[encoded] = _masked(value, encoded)
                elif value is None or value is True or value is False:
                    made[encoded] = value
                else:
                    made[encoded] = setting(encoded, value)
        if known == "guardrails":
            _own(made, made["type"], "settings", schemas.guardrails)
        elif known == "engines":
            _own(made, made["runtime"], "options", schemas.engines)
        return made

    return one


def _own(holder: dict[str, Any], name: str, field: str, schemas: Mapping[str, type[Spec]]) -> None:
    """Durations of the settings of a plug-in."""
    if (schema := schemas.get(name)) is not None:
        holder[field] = shown(holder[field], schema)


def _mask(value: Any) -> str:
    if isinstance(value, Secret):
        return MASK
    raise NotImplementedError(f"cannot describe a {type(value).__name__}")


def _masked(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        if name == "headers":
            return dict.fromkeys(value, MASK)
        return {key: _masked(member, str(key)) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [_masked(member, name) for member in value]
    if isinstance(value, str):
        if _secret(name):
            return MASK
        return without_login(value) if "://" in value else value
    return value


@lru_cache(1024)
def _secret(name: str) -> bool:
    return any(word in name.lower() for word in SECRET_WORDS)
