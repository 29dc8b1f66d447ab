"""The admin API below /join-tokens. Made by scripts/generate_client.py."""

from __future__ import annotations

from typing import Literal, overload

from gatehouse.client.calls import Call, segment
from gatehouse.client.connection import Connection
from gatehouse.client.types.join_tokens import JoinTokenDryRun, JoinTokenPage, JoinTokenSettings, JoinTokenView


class JoinTokensApi:
    """Operations below /join-tokens."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(self) -> JoinTokenPage:
        """List join tokens. Needs the permission `join-tokens:read`."""
        return self._connection.json(Call("GET", "/join-tokens"))

    @overload
    def create(
        self, body: JoinTokenSettings, *, wait: float | None = None, idempotency_key: str | None = None, dry_run: Literal[False] = False
    ) -> JoinTokenView: ...
    @overload
    def create(
        self, body: JoinTokenSettings, *, wait: float | None = None, idempotency_key: str | None = None, dry_run: Literal[True]
    ) -> JoinTokenDryRun: ...
    def create(
        self, body: JoinTokenSettings, *, wait: float | None = None, idempotency_key: str | None = None, dry_run: bool = False
    ) -> JoinTokenView | JoinTokenDryRun:
        """Make a join token. Needs the permission `join-tokens:create`."""
        return self._connection.json(
            Call(
                "POST",
                "/join-tokens",
                query={"dry_run": dry_run or None, "wait": wait},
                body=body,
                headers={"Idempotency-Key": idempotency_key},
            )
        )

    @overload
    def delete(self, id: str, *, wait: float | None = None, dry_run: Literal[False] = False) -> JoinTokenView: ...
    @overload
    def delete(self, id: str, *, wait: float | None = None, dry_run: Literal[True]) -> JoinTokenDryRun: ...
    def delete(self, id: str, *, wait: float | None = None, dry_run: bool = False) -> JoinTokenView | JoinTokenDryRun:
        """Revoke a join token. Needs the permission `join-tokens:delete`."""
        return self._connection.json(Call("DELETE", f"/join-tokens/{segment(id)}", query={"dry_run": dry_run or None, "wait": wait}))
