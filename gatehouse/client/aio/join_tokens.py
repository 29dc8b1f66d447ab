"""The admin API below /join-tokens. Made by scripts/generate_client.py."""

from __future__ import annotations

from typing import Literal, overload

from gatehouse.client.async_connection import AsyncConnection
from gatehouse.client.calls import Call, segment
from gatehouse.client.types.join_tokens import JoinTokenDryRun, JoinTokenPage, JoinTokenSettings, JoinTokenView


class AsyncJoinTokensApi:
    """Operations below /join-tokens."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def list(self) -> JoinTokenPage:
        """List join tokens. Needs the permission `join-tokens:read`."""
        return await self._connection.json(Call("GET", "/join-tokens"))

    @overload
    async def create(
        self, body: JoinTokenSettings, *, wait: float | None = None, idempotency_key: str | None = None, dry_run: Literal[False] = False
    ) -> JoinTokenView: ...
    @overload
    async def create(
        self, body: JoinTokenSettings, *, wait: float | None = None, idempotency_key: str | None = None, dry_run: Literal[True]
    ) -> JoinTokenDryRun: ...
    async def create(
        self, body: JoinTokenSettings, *, wait: float | None = None, idempotency_key: str | None = None, dry_run: bool = False
    ) -> JoinTokenView | JoinTokenDryRun:
        """Make a join token. Needs the permission `join-tokens:create`."""
        return await self._connection.json(
            Call(
                "POST",
                "/join-tokens",
                query={"dry_run": dry_run or None, "wait": wait},
                body=body,
                headers={"Idempotency-Key": idempotency_key},
            )
        )

    @overload
    async def delete(self, id: str, *, wait: float | None = None, dry_run: Literal[False] = False) -> JoinTokenView: ...
    @overload
    async def delete(self, id: str, *, wait: float | None = None, dry_run: Literal[True]) -> JoinTokenDryRun: ...
    async def delete(self, id: str, *, wait: float | None = None, dry_run: bool = False) -> JoinTokenView | JoinTokenDryRun:
        """Revoke a join token. Needs the permission `join-tokens:delete`."""
        return await self._connection.json(Call("DELETE", f"/join-tokens/{segment(id)}", query={"dry_run": dry_run or None, "wait": wait}))
