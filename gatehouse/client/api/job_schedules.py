"""The admin API below /job-schedules. Made by scripts/generate_client.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, overload

from gatehouse.client.calls import Call, segment
from gatehouse.client.connection import Connection
from gatehouse.client.types.job_schedules import ScheduleCreation, ScheduleDryRun, ScheduleList, ScheduleView


class JobSchedulesApi:
    """Operations below /job-schedules."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(self, *, limit: int | None = None, cursor: str | None = None, tenant: str | None = None) -> ScheduleList:
        """List schedules of jobs. Needs the permission `jobs:read`."""
        return self._connection.json(Call("GET", "/job-schedules", query={"limit": limit, "cursor": cursor, "tenant": tenant}))

    def iterate(self, *, limit: int | None = None, tenant: str | None = None) -> Iterator[ScheduleView]:
        """All of `list`, page after page; `limit`: of a page."""
        cursor: str | None = None
        while True:
            page = self.list(limit=limit, tenant=tenant, cursor=cursor)
            yield from page["items"]
            cursor = page.get("cursor")
            if cursor is None:
                return

    @overload
    def create(
        self, body: ScheduleCreation, *, wait: float | None = None, idempotency_key: str | None = None, dry_run: Literal[False] = False
    ) -> ScheduleView: ...
    @overload
    def create(
        self, body: ScheduleCreation, *, wait: float | None = None, idempotency_key: str | None = None, dry_run: Literal[True]
    ) -> ScheduleDryRun: ...
    def create(
        self, body: ScheduleCreation, *, wait: float | None = None, idempotency_key: str | None = None, dry_run: bool = False
    ) -> ScheduleView | ScheduleDryRun:
        """Make a schedule of jobs. Needs the permission `jobs:write`."""
        return self._connection.json(
            Call(
                "POST",
                "/job-schedules",
                query={"dry_run": dry_run or None, "wait": wait},
                body=body,
                headers={"Idempotency-Key": idempotency_key},
            )
        )

    @overload
    def delete(
        self, name: str, *, tenant: str | None = None, wait: float | None = None, dry_run: Literal[False] = False
    ) -> ScheduleView: ...
    @overload
    def delete(self, name: str, *, tenant: str | None = None, wait: float | None = None, dry_run: Literal[True]) -> ScheduleDryRun: ...
    def delete(
        self, name: str, *, tenant: str | None = None, wait: float | None = None, dry_run: bool = False
    ) -> ScheduleView | ScheduleDryRun:
        """Delete a schedule. Needs the permission `jobs:write`."""
        return self._connection.json(
            Call("DELETE", f"/job-schedules/{segment(name)}", query={"dry_run": dry_run or None, "tenant": tenant, "wait": wait})
        )
