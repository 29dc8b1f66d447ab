"""The admin API below /jobs. Made by scripts/generate_client.py."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Literal, overload

from gatehouse.client.async_connection import AsyncConnection
from gatehouse.client.calls import Call, segment
from gatehouse.client.events import Event
from gatehouse.client.types.jobs import JobCreation, JobDryRun, JobPage, JobsJobView


class AsyncJobsApi:
    """Operations below /jobs."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def list(
        self,
        *,
        limit: int | None = None,
        cursor: str | None = None,
        state: Literal["cancelled", "dead", "done", "failed", "queued", "running", "waiting"] | None = None,
        kind: Literal["benchmark", "convert", "export", "quantize", "quantize-onnx", "warm"] | None = None,
        tenant: str | None = None,
    ) -> JobPage:
        """List jobs. Needs the permission `jobs:read`."""
        return await self._connection.json(
            Call("GET", "/jobs", query={"limit": limit, "cursor": cursor, "state": state, "kind": kind, "tenant": tenant})
        )

    async def iterate(
        self,
        *,
        limit: int | None = None,
        state: Literal["cancelled", "dead", "done", "failed", "queued", "running", "waiting"] | None = None,
        kind: Literal["benchmark", "convert", "export", "quantize", "quantize-onnx", "warm"] | None = None,
        tenant: str | None = None,
    ) -> AsyncIterator[JobsJobView]:
        """All of `list`, page after page; `limit`: of a page."""
        cursor: str | None = None
        while True:
            page = await self.list(limit=limit, state=state, kind=kind, tenant=tenant, cursor=cursor)
            for item in page["items"]:
                yield item
            cursor = page.get("cursor")
            if cursor is None:
                return

    @overload
    async def create(
        self, body: JobCreation, *, wait: float | None = None, idempotency_key: str | None = None, dry_run: Literal[False] = False
    ) -> JobsJobView: ...
    @overload
    async def create(
        self, body: JobCreation, *, wait: float | None = None, idempotency_key: str | None = None, dry_run: Literal[True]
    ) -> JobDryRun: ...
    async def create(
        self, body: JobCreation, *, wait: float | None = None, idempotency_key: str | None = None, dry_run: bool = False
    ) -> JobsJobView | JobDryRun:
        """Make a job. Needs the permission `jobs:write`."""
        return await self._connection.json(
            Call("POST", "/jobs", query={"dry_run": dry_run or None, "wait": wait}, body=body, headers={"Idempotency-Key": idempotency_key})
        )

    async def get(self, id: str) -> JobsJobView:
        """Get a job. Needs the permission `jobs:read`."""
        return await self._connection.json(Call("GET", f"/jobs/{segment(id)}"))

    @overload
    async def cancel(self, id: str, *, wait: float | None = None, dry_run: Literal[False] = False) -> JobsJobView: ...
    @overload
    async def cancel(self, id: str, *, wait: float | None = None, dry_run: Literal[True]) -> JobDryRun: ...
    async def cancel(self, id: str, *, wait: float | None = None, dry_run: bool = False) -> JobsJobView | JobDryRun:
        """Cancel a job. Needs the permission `jobs:write`."""
        return await self._connection.json(Call("POST", f"/jobs/{segment(id)}/cancel", query={"dry_run": dry_run or None, "wait": wait}))

    @overload
    async def retry(self, id: str, *, wait: float | None = None, dry_run: Literal[False] = False) -> JobsJobView: ...
    @overload
    async def retry(self, id: str, *, wait: float | None = None, dry_run: Literal[True]) -> JobDryRun: ...
    async def retry(self, id: str, *, wait: float | None = None, dry_run: bool = False) -> JobsJobView | JobDryRun:
        """Try a job again. Needs the permission `jobs:write`."""
        return await self._connection.json(Call("POST", f"/jobs/{segment(id)}/retry", query={"dry_run": dry_run or None, "wait": wait}))

    def events(self, id: str) -> AsyncIterator[Event]:
        """Follow a job. Needs the permission `jobs:read`."""
        return self._connection.events(Call("GET", f"/jobs/{segment(id)}/events"))
