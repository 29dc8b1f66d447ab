"""Isolation domains: the callers among whose prompts an engine may share a cached prefix.

How long a first token takes, and `cached_tokens`, tell a caller whether someone asked the same before (CVE-2025-46570). Engines therefore
get a salt with each request and reuse a prefix under the same salt only. It is derived with a secret, so that no caller can name another's.
"""

from __future__ import annotations

import hmac
from typing import Final

from gateway.core.types import Principal

TENANT: Final = "tenant"
KEY: Final = "key"
GLOBAL: Final = "global"
SALT_BYTES: Final = 16


def domain(principal: Principal, sharing: str) -> str:
    """The isolation domain of a caller under `models[].prefix_sharing`; "" is shared by all."""
    if sharing == TENANT:
        return f"tenant\0{principal.tenant}"
    if sharing == KEY:
        name = f"key\0{principal.tenant}\0{principal.kind}\0{principal.id}"
        return f"{name}\0{principal.made!r}" if principal.made else name  # another key that has the id later shares nothing
    return ""


class Salts:
    """Derives salts with HMAC-SHA256. secret: the same in all processes that share engines. A principal keeps its salts."""

    __slots__ = ("_secret",)

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def salt(self, principal: Principal, sharing: str) -> bytes:
        """32 hexadecimal digits; b"" if all callers share prefixes."""
        if sharing == TENANT:
            if not principal.tenant_salt:
                principal.tenant_salt = self._derived(domain(principal, sharing))
            return principal.tenant_salt
        if sharing == KEY:
            if not principal.key_salt:
                principal.key_salt = self._derived(domain(principal, sharing))
            return principal.key_salt
        return b""

    def secret(self, name: str) -> bytes:
        """A secret of its own for another purpose, the same in all processes that share engines."""
        return hmac.digest(self._secret, b"secret\0" + name.encode(), "sha256")

    def _derived(self, name: str) -> bytes:
        return hmac.digest(self._secret, name.encode(), "sha256")[:SALT_BYTES].hex().encode()
