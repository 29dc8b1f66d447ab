"""Bodies and queries to typed values with errors that help; differences between two states; secrets masked by name."""

from __future__ import annotations

import difflib
import json
import re
from collections import Counter
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import msgspec

from admin import explain
from gateway.core import utf8
from gateway.core.addresses import SECRET_WORDS, holds_mask, without_login
from gateway.core.errors import RequestError
from gateway.core.secret import MASK

T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)
_UNKNOWN = re.compile(r"Object contains unknown field `([^`]*)`(?: - at `\$\.?([^`]*)`)?")
_PLACE = re.compile(r"(.*?) - at `\$\.?([^`]*)`$", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `([^`]*)`")
_COUNTED = ("tokens", "max_tokens", "prompt_tokens", "completion_tokens", "cached_tokens", "tokens_per_second")
_MAX_SHOWN = 400


def decode(data: bytes, wanted: type[T]) -> T:
    """JSON to a struct. Raises RequestError: invalid_json; invalid_value with the field and, for an unknown one, the nearest name.

    A whole number may be written as 3.0 (JSON Schema, 6.1.1), durations and sizes as in the configuration, moments as RFC 3339.
    Duplicate fields are refused.
    """
    try:
        json.loads(data, object_pairs_hook=_once)
    except ValueError:
        pass  # reported below
    except RecursionError:
        raise RequestError("The body is nested too deeply.", code="invalid_json") from None
    try:
        try:
            return msgspec.json.decode(data, type=wanted)
        except msgspec.ValidationError:
            return msgspec.convert(explain.amended(_whole(msgspec.json.decode(data)), wanted), wanted)
    except msgspec.ValidationError as error:
        raise _explained(str(error), wanted) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"The body is not JSON: {utf8.fault(data) or error}", code="invalid_json") from None
    except RecursionError:
        raise RequestError("The body is nested too deeply.", code="invalid_json") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        name = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise RequestError(f"The field {_short(name)!r} appears twice.", code="invalid_json", param=_short(name))
    return members


def _whole(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_whole(member) for member in value]
    if isinstance(value, dict):
        return {key: _whole(member) for key, member in value.items()}
    return value


def convert(values: dict[str, str], wanted: type[S]) -> S:
    """Query parameters, all texts, to a struct; durations, sizes and moments as in bodies. Raises RequestError."""
    types = {field.encode_name: _bases(field.type) for field in msgspec.structs.fields(wanted)}
    typed = {name: _typed(value, types.get(name, frozenset())) for name, value in values.items()}
    try:
        try:
            return msgspec.convert(typed, wanted)
        except msgspec.ValidationError:
            return msgspec.convert(explain.amended(typed, wanted), wanted)
    except msgspec.ValidationError as error:
        raise _explained(str(error), wanted) from None


def _bases(kind: Any) -> frozenset[type]:
    """The plain types a parameter may have."""
    if get_origin(kind) is Literal:
        return frozenset(type(value) for value in get_args(kind))
    inner = get_args(kind)[:1] if get_origin(kind) is Annotated else get_args(kind)
    return frozenset(base for part in inner for base in _bases(part)) if inner else frozenset({kind})


def _typed(text: str, bases: frozenset[type]) -> Any:
    """A number or boolean as JSON writes it, where the type wants one; else the text itself."""
    if str in bases or not bases & {int, float, bool}:
        return text
    try:
        value = msgspec.json.decode(text.encode())
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return text
    return text if value is None else value


def _explained(message: str, wanted: Any) -> RequestError:
    unknown = _UNKNOWN.search(message)
    if unknown:
        field, path = unknown[1], unknown[2] or ""
        known = explain.fields(path, wanted)
        near = difflib.get_close_matches(field, known, n=1, cutoff=0.5)
        hint = f"; the nearest is {near[0]!r}" if near else f"; known here: {', '.join(known) or 'none'}"
        return RequestError(f"There is no field {_short(field)!r}{hint}.", param=_join(path, _short(field)))
    missing = _MISSING.search(message)
    place = _PLACE.match(message)
    path = place[2] if place else ""
    if missing:
        return RequestError(f"The field {missing[1]!r} is missing.", code="missing_required_parameter", param=_join(path, missing[1]))
    text = place[1] if place else message
    if words := explain.right(text, path, wanted):
        text = f"{text}; it must be {words}" if text.startswith("Invalid") else f"It must be {words}"
    return RequestError(f"{text}."[:_MAX_SHOWN], param=path or None)


def _join(path: str, field: str) -> str:
    return f"{path}.{field}" if path else field


def _short(text: str) -> str:
    return text if len(text) <= 64 else f"{text[:60]}..."


# --- secrets


def mask(value: Any, name: str = "") -> Any:
    """A copy with ******** for every text below a name that marks it as secret, header values included, and for logins and
    secrets in addresses."""
    if isinstance(value, dict):
        if name == "headers":
            return dict.fromkeys(value, MASK)
        return {key: mask(member, str(key)) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [mask(member, name) for member in value]
    lower = name.lower()
    if isinstance(value, str) and value and lower not in _COUNTED and any(word in lower for word in SECRET_WORDS):
        return MASK
    return without_login(value) if isinstance(value, str) and "://" in value else value


def refuse_masks(value: Any, path: str = "") -> None:
    """Refuses a mask that is sent back, which would replace the secret. Raises RequestError."""
    if isinstance(value, dict):
        for key, member in value.items():
            refuse_masks(member, _join(path, str(key)))
    elif isinstance(value, list | tuple):
        for member in value:
            refuse_masks(member, path)
    elif isinstance(value, str) and holds_mask(value):
        raise RequestError("This is the mask of a secret, not a secret; send the secret itself.", param=path)


# --- patches and differences


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7396: mappings are merged, null removes, everything else replaces."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


def diff(before: dict[str, Any] | None, after: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The differences, by path: `{"path", "from", "to"}`, secrets masked (even where two differ). None: no difference."""
    found: list[dict[str, Any]] = []
    _compare(before or {}, after or {}, mask(before or {}), mask(after or {}), "", found)
    return found


def named(value: Any) -> Any:
    """A copy with each list of members that all have names of their own as a mapping, so that a difference is within a member."""
    if isinstance(value, dict):
        return {key: named(member) for key, member in value.items()}
    if isinstance(value, list | tuple) and value:
        names = [member.get("name") for member in value if isinstance(member, dict)]
        if len(names) == len(value) == len(set(names)) and all(isinstance(name, str) and name for name in names):
            return {
                name: named({key: one for key, one in member.items() if key != "name"}) for name, member in zip(names, value, strict=True)
            }
        return [named(member) for member in value]
    return value


def _compare(old: Any, new: Any, shown_old: Any, shown_new: Any, path: str, found: list[dict[str, Any]]) -> None:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            _compare(old.get(key), new.get(key), (shown_old or {}).get(key), (shown_new or {}).get(key), _join(path, str(key)), found)
    elif _plain(old) != _plain(new):
        found.append({"path": path, "from": shown_old, "to": shown_new})


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
