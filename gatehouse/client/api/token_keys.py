"""The admin API below /token-keys. Made by scripts/generate_client.py."""

from __future__ import annotations

from typing import Literal, overload

from gatehouse.client.calls import Call, segment
from gatehouse.client.connection import Connection
from gatehouse.client.types.token_keys import TokenKeyDryRun, TokenKeyPage


class TokenKeysApi:
    """Operations below /token-keys."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(self) -> TokenKeyPage:
        """List the keys of gateway tokens. Needs the permission `token-keys:read`."""
        return self._connection.json(Call("GET", "/token-keys"))

    @overload
    def create(self, *, after: float | None = None, wait: float | None = None, dry_run: Literal[False] = False) -> TokenKeyPage: ...
    @overload
    def create(self, *, after: float | None = None, wait: float | None = None, dry_run: Literal[True]) -> TokenKeyDryRun: ...
    def create(self, *, after: float | None = None, wait: float | None = None, dry_run: bool = False) -> TokenKeyPage | TokenKeyDryRun:
        """Make the next key of gateway tokens. Needs the permission `token-keys:rotate`."""
        return self._connection.json(Call("POST", "/token-keys", query={"dry_run": dry_run or None, "after": after, "wait": wait}))

    @overload
    def delete(self, id: str, *, wait: float | None = None, dry_run: Literal[False] = False) -> TokenKeyPage: ...
    @overload
    def delete(self, id: str, *, wait: float | None = None, dry_run: Literal[True]) -> TokenKeyDryRun: ...
    def delete(self, id: str, *, wait: float | None = None, dry_run: bool = False) -> TokenKeyPage | TokenKeyDryRun:
        """Refuse all tokens of a key. Needs the permission `token-keys:withdraw`."""
        return self._connection.json(Call("DELETE", f"/token-keys/{segment(id)}", query={"dry_run": dry_run or None, "wait": wait}))
