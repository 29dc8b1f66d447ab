"""Shows the durations in plain values as texts, in the form of the configuration. They are found by the types of the settings."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from msgspec import inspect

from gateway.core.specs import DURATIONS
from gateway.core.units import written

_DURATIONS: Final = tuple(map(inspect.type_info, DURATIONS))


def shown(value: Any, kind: Any) -> Any:
    """A copy of the plain values of a type in which every duration is a text: 0.05 is `50ms`."""
    return _shown(value, _info(kind))


def shown_setting(value: Any, struct: type, name: str) -> Any:
    """The same for the value of one setting of a struct, given by its name in the file."""
    return _shown(value, _fields(struct)[name])


@cache
def member_type(struct: type, name: str) -> type | None:
    """The type of a list setting's members, if they are all structs of one type that is encoded without a tag and without omitting
    defaults."""
    kind = _fields(struct)[name]
    if not isinstance(kind, inspect.VarTupleType | inspect.ListType) or not isinstance(kind.item_type, inspect.StructType):
        return None
    made = kind.item_type.cls
    config = made.__struct_config__
    return None if config.tag is not None or config.omit_defaults or config.array_like else made


@cache
def _info(kind: Any) -> inspect.Type:
    return inspect.type_info(kind)


@cache
def _fields(struct: type) -> dict[str, inspect.Type]:
    info = inspect.type_info(struct)
    assert isinstance(info, inspect.StructType)
    return {field.encode_name: field.type for field in info.fields}


def _shown(value: Any, kind: inspect.Type) -> Any:
    kinds = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    if isinstance(value, dict):
        for one in kinds:
            if isinstance(one, inspect.StructType):
                fields = _fields(one.cls)
                return {name: _shown(inner, fields[name]) if name in fields else inner for name, inner in value.items()}
            if isinstance(one, inspect.DictType):
                return {name: _shown(inner, one.value_type) for name, inner in value.items()}
    elif isinstance(value, list | tuple):
        for one in kinds:
            if isinstance(one, inspect.VarTupleType | inspect.ListType):
                return [_shown(inner, one.item_type) for inner in value]
    elif isinstance(value, int | float) and not isinstance(value, bool) and any(one in _DURATIONS for one in kinds):
        return written(value)
    return value
