"""A string that must not leak: masked in `repr` and `str`, compared in constant time, opened only by `reveal()`."""

from __future__ import annotations

import hmac
from typing import Any

MASK = "********"


class Secret:
    """Holds a secret so that logs, dumps and tracebacks show a mask instead of it."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The secret itself; call it only where it is used."""
        return self._value

    def __repr__(self) -> str:
        return f"Secret({MASK})"

    def __str__(self) -> str:
        return MASK

    def __format__(self, spec: str) -> str:
        return MASK

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and hmac.compare_digest(self._value.encode(), other._value.encode())

    def __hash__(self) -> int:
        return hash(("Secret", self._value))

    def __len__(self) -> int:
        return len(self._value)

    def __reduce__(self) -> tuple[type[Secret], tuple[str]]:
        raise TypeError("a Secret is never serialised")


def secret_hook(target: type, value: Any) -> Any:
    """msgspec's `dec_hook`: texts become secrets where the settings say so."""
    if target is Secret:
        if isinstance(value, Secret):
            return value
        if isinstance(value, str):
            return Secret(value)
    raise NotImplementedError(f"no conversion to {target.__name__}")
