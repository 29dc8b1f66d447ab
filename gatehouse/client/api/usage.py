"""The admin API below /usage. Made by scripts/generate_client.py."""

from __future__ import annotations

from collections.abc import Iterator

from gatehouse.client.calls import Call
from gatehouse.client.connection import Connection
from gatehouse.client.types.usage import CentreReport, EngineReport, Reconciliation, SessionReport, UsageReport, UsageSum


class UsageApi:
    """Operations below /usage."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(
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
        return self._connection.json(
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

    def iterate(
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
    ) -> Iterator[UsageSum]:
        """All of `list`, page after page; `limit`: of a page."""
        cursor: str | None = None
        while True:
            page = self.list(
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
            yield from page["items"]
            cursor = page.get("cursor")
            if cursor is None:
                return

    def cost_centres(self, *, month: str, tenant: str | None = None) -> CentreReport:
        """Report a month by cost centre. Needs the permission `usage:read`."""
        return self._connection.json(Call("GET", "/usage:cost-centres", query={"month": month, "tenant": tenant}))

    def sessions(
        self,
        *,
        since: str | None = None,
        until: str | None = None,
        tenant: str | None = None,
        session: str | None = None,
        limit: int | None = None,
    ) -> SessionReport:
        """Report usage by session. Needs the permission `usage:read`."""
        return self._connection.json(
            Call("GET", "/usage:sessions", query={"since": since, "until": until, "tenant": tenant, "session": session, "limit": limit})
        )

    def engines(self, *, since: str | None = None, until: str | None = None) -> EngineReport:
        """Report the time of engines. Needs the permission `usage:read`."""
        return self._connection.json(Call("GET", "/usage:engines", query={"since": since, "until": until}))

    def reconcile(self) -> Reconciliation:
        """Compare the usage with the audit log. Needs the permission `audit:read`."""
        return self._connection.json(Call("GET", "/usage:reconcile"))
