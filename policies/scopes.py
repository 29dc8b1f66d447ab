"""Scopes of gateway tokens: permissions (`infer:chat:model/demo-*`, `admin:keys:read`) that bound what the holder's roles give.

A scope never gives anything. A token without one is not narrowed; a token with some allows what one of them allows and the holder may do.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Final

from gateway.core import admin_scopes
from gateway.core.errors import ConfigError, RequestError
from policies.patterns import matches, within
from policies.permissions import INFER, Permission, parse

MAX_SCOPES: Final = 32
MAX_LENGTH: Final = 256


def narrowed(reach: Sequence[str] | None, wanted: str, operations: Collection[str]) -> tuple[str, ...] | None:
    """The scopes of a new token for the holder of one with `reach`, of which `wanted` (RFC 6749, 3.3) asks for a part; "" for all of it.

    Raises RequestError (`invalid_scope`).
    """
    texts = tuple(dict.fromkeys(wanted.split()))
    if not texts:
        return None if reach is None else tuple(reach)
    if len(texts) > MAX_SCOPES:
        raise _refused(f"A token has at most {MAX_SCOPES} scopes.")
    for text in texts:
        _check(text, operations)
        if reach is not None and not any(contains(outer, text) for outer in reach):
            raise _refused(f"{text!r} is beyond the scope of the token that was sent.")
    return texts


def _check(text: str, operations: Collection[str]) -> None:
    if len(text) > MAX_LENGTH or not text.isascii() or not text.isprintable():
        raise _refused("A scope is too long, or holds characters that no scope has.")
    if text.startswith(f"{admin_scopes.ADMIN}:"):
        if not admin_scopes.is_admin_scope(text):
            raise _refused(f"{text[:80]!r} is not a scope; write admin:RESOURCE:ACTION, such as admin:keys:read.")
        return
    try:
        parse(text, operations)
    except ConfigError as error:
        raise _refused(error.message) from None


def _refused(message: str) -> RequestError:
    return RequestError(message, code="invalid_scope", param="scope")


def contains(outer: str, inner: str) -> bool:
    """Whether the outer scope allows everything that the inner one does."""
    if inner.startswith(f"{admin_scopes.ADMIN}:"):
        return outer.startswith(f"{admin_scopes.ADMIN}:") and admin_scopes.covers(outer[6:], _both(inner[6:]))
    big, small = _permission(outer), _permission(inner)
    if big is None or small is None:
        return False
    return matches(big.operation, small.operation) and within(big.model, small.model)


def _both(pattern: str) -> str:
    return "*:*" if pattern == "*" else pattern


@lru_cache(maxsize=4096)
def _permission(text: str) -> Permission | None:
    """None for a scope that is no permission to infer, or that this version does not know: it allows nothing."""
    if not text.startswith(f"{INFER}:"):
        return None
    operation = text.split(":")[1]
    try:
        return parse(text, (operation if operation != "raw" else "completions",))
    except ConfigError:
        return None


def scope_allows(reach: Sequence[str], operation: str, names: tuple[str, ...], version: str) -> bool:
    """Whether a token with these scopes may be used for an operation on a model, known by these names."""
    return any((found := _permission(text)) is not None and found.covers(operation, names, version) for text in reach)


def scope_sees(reach: Sequence[str], names: tuple[str, ...], operation: str = "") -> bool:
    """Whether it may be used for an operation, by default any, on the model."""
    return any((found := _permission(text)) is not None and found.sees(names, operation) for text in reach)
