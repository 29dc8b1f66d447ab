"""The admin API below /token-keys. Made by scripts/generate_client.py."""

from __future__ import annotations

from typing import Literal, overload

from gatehouse.client.async_connection import AsyncConnection
from gatehouse.client.calls import Call, segment
from gatehouse.client.types.token_keys import TokenKeyDryRun, TokenKeyPage


class AsyncTokenKeysApi:
    """Operations below /token-keys."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def list(self) -> TokenKeyPage:
        """List the keys of gateway tokens. Needs the permission `token-keys:read`."""
        return await self._connection.json(Call("GET", "/token-keys"))

    @overload
    async def create(self, *, after: float | None = None, wait: float | None = None, dry_run: Literal[False] = False) -> TokenKeyPage: ...
    @overload
    async def create(self, *, after: float | None = None, wait: float | None = None, dry_run: Literal[True]) -> TokenKeyDryRun: ...
    async def create(
        self, *, after: float | None = None, wait: float | None = None, dry_run: bool = False
    ) -> TokenKeyPage | TokenKeyDryRun:
        """Make the next key of gateway tokens. Needs the permission `token-keys:rotate`."""
        return await self._connection.json(Call("POST", "/token-keys", query={"dry_run": dry_run or None, "after": after, "wait": wait}))

    @overload
    async def delete(self, id: str, *, wait: float | None = None, dry_run: Literal[False] = False) -> TokenKeyPage: ...
    @overload
    async def delete(self, id: str, *, wait: float | None = None, dry_run: Literal[True]) -> TokenKeyDryRun: ...
    async def delete(self, id: str, *, wait: float | None = None, dry_run: bool = False) -> TokenKeyPage | TokenKeyDryRun:
        """Refuse all tokens of a key. Needs the permission `token-keys:withdraw`."""
        return await self._connection.json(Call("DELETE", f"/token-keys/{segment(id)}", query={"dry_run": dry_run or None, "wait": wait}))
