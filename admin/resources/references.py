"""Secrets in settings that are written to a file: masked, unless they are references; and the mask read back as what is stored."""

from __future__ import annotations

import re
from typing import Any, Final

from admin import values
from gateway.core import addresses
from gateway.core.errors import RequestError
from gateway.core.secret import MASK

_REFERENCE: Final = re.compile(r"(?:(?:Bearer|Basic) )?(?:\$\{env:[A-Za-z0-9_]+\})+")
"""Names a variable of the gateway's environment, and tells no secret."""


def masked(value: Any, name: str = "") -> Any:
    """Like values.mask, with references as they are."""
    return _referring(values.mask(value, name), value)


def _referring(hidden: Any, value: Any) -> Any:
    if isinstance(hidden, dict):
        return {key: _referring(member, value[key]) for key, member in hidden.items()}
    if isinstance(hidden, list):
        return [_referring(one, other) for one, other in zip(hidden, value, strict=True)]
    return value if hidden == MASK and isinstance(value, str) and _REFERENCE.fullmatch(value) else hidden


def restored(sent: Any, stored: Any, path: str = "", name: str = "") -> Any:
    """A copy with the stored secret for each mask. Raises RequestError where there is none. A member of a list that holds a mask must be as
    it is stored: its place alone does not tell which secret is meant."""
    if isinstance(sent, dict):
        there = stored if isinstance(stored, dict) else {}
        return {key: restored(member, there.get(key), f"{path}.{key}" if path else key, key) for key, member in sent.items()}
    if isinstance(sent, list):
        return [_member(member, stored, f"{path}[{index}]", name) for index, member in enumerate(sent)]
    if not isinstance(sent, str) or not addresses.holds_mask(sent):
        return sent
    if not isinstance(stored, str) or not stored or (sent != MASK and sent != masked(stored, name)):
        raise RequestError(
            "The store has no secret here that the mask could stand for: write it, or a reference such as ${env:GATEHOUSE_SECRET_NAME}.",
            param=path,
        )
    return stored


def _member(sent: Any, stored: Any, path: str, name: str) -> Any:
    if not holds_mask(sent):
        return sent
    for one in stored if isinstance(stored, list) else ():
        if masked(one, name) == sent:
            return one
    raise RequestError("This has a masked secret and differs from what is stored: write the secret.", param=path)


def holds_mask(value: Any) -> bool:
    """Whether a text anywhere in it is the mask."""
    if isinstance(value, dict):
        return any(holds_mask(member) for member in value.values())
    if isinstance(value, list | tuple):
        return any(holds_mask(member) for member in value)
    return isinstance(value, str) and addresses.holds_mask(value)
