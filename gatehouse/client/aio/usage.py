"""The admin API below /usage. Made by scripts/generate_client.py."""

from __future__ import annotations

from collections.abc import AsyncIterator

from gatehouse.client.async_connection import AsyncConnection
from gatehouse.client.calls import Call
from gatehouse.client.types.usage import CentreReport, EngineReport, Reconciliation, SessionReport, UsageReport, UsageSum


class AsyncUsageApi:
    """Operations below /usage."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def list(
        self,
        *,
        group_by: str | None = None,
        since: str | None = None,
        until: str | None = None,
        tenant: str | None = None,
        key: str | None = None,
        user: str | None = None,
        agent: str | None = None,
        model: str | None = None,
        operation: str | None = None,
        currency: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> UsageReport:
        """Report usage. Needs the permission `usage:read`."""
        return await self._connection.json(
            Call(
                "GET",
                "/usage",
                query={
                    "group_by": group_by,
                    "since": since,
                    "until": until,
                    "tenant": tenant,
                    "key": key,
                    "user": user,
                    "agent": agent,
                    "model": model,
                    "operation": operation,
                    "currency": currency,
                    "limit": limit,
                    "cursor": cursor,
                },
            )
        )

    async def iterate(
        self,
        *,
        group_by: str | None = None,
        since: str | None = None,
        until: str | None = None,
        tenant: str | None = None,
        key: str | None = None,
        user: str | None = None,
        agent: str | None = None,
        model: str | None = None,
        operation: str | None = None,
        currency: str | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[UsageSum]:
        """All of `list`, page after page; `limit`: of a page."""
        cursor: str | None = None
        while True:
            page = await self.list(
                group_by=group_by,
                since=since,
                until=until,
                tenant=tenant,
                key=key,
                user=user,
                agent=agent,
                model=model,
                operation=operation,
                currency=currency,
                limit=limit,
                cursor=cursor,
            )
            for item in page["items"]:
                yield item
            cursor = page.get("cursor")
            if cursor is None:
                return

    async def cost_centres(self, *, month: str, tenant: str | None = None) -> CentreReport:
        """Report a month by cost centre. Needs the permission `usage:read`."""
        return await self._connection.json(Call("GET", "/usage:cost-centres", query={"month": month, "tenant": tenant}))

    async def sessions(
        self,
        *,
        since: str | None = None,
        until: str | None = None,
        tenant: str | None = None,
        session: str | None = None,
        limit: int | None = None,
    ) -> SessionReport:
        """Report usage by session. Needs the permission `usage:read`."""
        return await self._connection.json(
            Call("GET", "/usage:sessions", query={"since": since, "until": until, "tenant": tenant, "session": session, "limit": limit})
        )

    async def engines(self, *, since: str | None = None, until: str | None = None) -> EngineReport:
        """Report the time of engines. Needs the permission `usage:read`."""
        return await self._connection.json(Call("GET", "/usage:engines", query={"since": since, "until": until}))

    async def reconcile(self) -> Reconciliation:
        """Compare the usage with the audit log. Needs the permission `audit:read`."""
        return await self._connection.json(Call("GET", "/usage:reconcile"))
