"""Checks the names in a tensor request: no duplicates, none that differs only in case from the protocol's; finds the unknown ones.

Tensor requests are forwarded unchanged, so an engine's parser must read the same as this one.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final

import msgspec
from msgspec import Raw

from gateway.core.errors import EngineError, RequestError
from gateway.wire import unique
from gateway.wire.openai.fields import wrong_case

TOP: Final = frozenset({"id", "parameters", "inputs", "outputs"})
ANSWER: Final = frozenset({"id", "parameters", "outputs", "model_name", "model_version"})
TENSOR: Final = frozenset({"name", "shape", "datatype", "parameters", "data"})
OUTPUT: Final = frozenset({"name", "parameters"})
_FIELDS: Final = msgspec.json.Decoder(dict[str, Raw])
_LIST: Final = msgspec.json.Decoder(list[dict[str, Raw]])
_ENCODER: Final = msgspec.json.Encoder()
_NOTHING: Final = Raw(b"null")


def steps(head: bytes) -> Generator[None, None, tuple[str, ...]]:
    """The places of unknown names in the JSON part of a request that could be parsed. Raises RequestError."""
    try:
        top = _FIELDS.decode(head)
        yield
        unknown = list(_names(top, TOP, ""))
        written: dict[str, Any] = dict(top)
        for name, known in (("inputs", TENSOR), ("outputs", OUTPUT)):
            if name in top and bytes(top[name]) != b"null":
                tensors: list[dict[str, Any]] = list(_LIST.decode(top[name]))
                for number, tensor in enumerate(tensors):
                    unknown += _names(tensor, known, f"{name}[{number}].")
                written[name] = [_decoded(tensor, "data") for tensor in tensors]
                yield
        written.update(_decoded({name: value for name, value in top.items() if name not in ("inputs", "outputs")}))
        yield
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(f"The body is not valid JSON: {error}.", code="invalid_json") from None
    canonical = _ENCODER.encode(written)
    yield
    if unique.colons(head) != unique.colons(canonical):
        raise unique.duplicate(head, "")
    return tuple(unknown)


def asked_texts(head: bytes) -> list[str]:
    """The names that the JSON part of a request that could be parsed has and the protocol has not, with all texts in them."""
    found: list[str] = []
    top = _FIELDS.decode(head)
    _beside(top, TOP, found)
    for name, known in (("inputs", TENSOR), ("outputs", OUTPUT)):
        if name in top and bytes(top[name]) != b"null":
            for tensor in _LIST.decode(top[name]):
                _beside(tensor, known, found)
    return found


def _beside(holder: dict[str, Raw], known: frozenset[str], found: list[str]) -> None:
    for name, raw in holder.items():
        if name not in known:
            found.append(name)
            if bytes(raw).find(b'"') >= 0:
                _gather(msgspec.json.decode(raw), found)


def unknown_texts(head: bytes) -> list[str]:
    """The names that an answer's JSON part has and the protocol has not, with all texts in them, and texts in data of another type. Raises
    EngineError, also for a key that is there twice: of these one was read, and the client may read the other."""
    found: list[str] = []
    try:
        top = _FIELDS.decode(head)
        outputs = _LIST.decode(top["outputs"])
        for holder, known in ((top, ANSWER), *[(tensor, TENSOR) for tensor in outputs]):
            _beside(holder, known, found)
        colons = 0
        for tensor in outputs:
            data = bytes(tensor.get("data", b""))
            if data:
                tensor["data"] = _NOTHING
            if data.find(b'"') < 0:
                continue  # a million numbers have no colon
            if bytes(tensor.get("datatype", b"")) == b'"BYTES"':
                colons += unique.colons(data)
            else:
                value = msgspec.json.decode(data)
                colons += unique.written(value)
                _gather(value, found)
        colons += unique.written({**_decoded(top, "outputs"), "outputs": [_decoded(tensor) for tensor in outputs]})
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise EngineError("its JSON cannot be read") from None
    if unique.colons(head) != colons:
        raise EngineError("a key appears twice in one object")
    return found


def _decoded(holder: dict[str, Raw], kept: str = "") -> dict[str, Any]:
    """An object with its values decoded. kept: the one that is left as it is."""
    return {name: raw if name == kept else msgspec.json.decode(raw) for name, raw in holder.items()}


def _gather(value: Any, found: list[str]) -> None:
    """The texts inside of a value, names included."""
    waiting: list[Any] = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            found.append(one)
        elif isinstance(one, dict):
            waiting.extend(one)
            waiting.extend(one.values())
        elif isinstance(one, list):
            waiting.extend(one)


def _names(found: dict[str, Any], known: frozenset[str], place: str) -> list[str]:
    unknown = []
    for name in found:
        if name not in known:
            wrong_case(name, known, place)
            unknown.append(f"{place}{name}")
    return unknown
