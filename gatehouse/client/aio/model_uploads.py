"""The admin API below /model-uploads. Made by scripts/generate_client.py."""

from __future__ import annotations

from typing import Literal, overload

from gatehouse.client.async_connection import AsyncConnection
from gatehouse.client.calls import Call, segment
from gatehouse.client.types.model_files import FileView
from gatehouse.client.types.model_uploads import UploadDryRun, UploadList, UploadSettings, UploadView


class AsyncModelUploadsApi:
    """Operations below /model-uploads."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def list(self) -> UploadList:
        """List uploads. Needs the permission `files:read`."""
        return await self._connection.json(Call("GET", "/model-uploads"))

    @overload
    async def create(
        self, body: UploadSettings, *, wait: float | None = None, idempotency_key: str | None = None, dry_run: Literal[False] = False
    ) -> UploadView: ...
    @overload
    async def create(
        self, body: UploadSettings, *, wait: float | None = None, idempotency_key: str | None = None, dry_run: Literal[True]
    ) -> UploadDryRun: ...
    async def create(
        self, body: UploadSettings, *, wait: float | None = None, idempotency_key: str | None = None, dry_run: bool = False
    ) -> UploadView | UploadDryRun:
        """Begin an upload. Needs the permission `files:write`."""
        return await self._connection.json(
            Call(
                "POST",
                "/model-uploads",
                query={"dry_run": dry_run or None, "wait": wait},
                body=body,
                headers={"Idempotency-Key": idempotency_key},
            )
        )

    async def get(self, id: str) -> UploadView:
        """Show an upload. Needs the permission `files:read`."""
        return await self._connection.json(Call("GET", f"/model-uploads/{segment(id)}"))

    async def head(self, id: str, *, tus_resumable: str | None = None) -> dict[str, str]:
        """Ask for an upload's offset. Needs the permission `files:read`."""
        return dict(
            (await self._connection.send(Call("HEAD", f"/model-uploads/{segment(id)}", headers={"Tus-Resumable": tus_resumable}))).headers
        )

    async def update(self, id: str, content: bytes, *, upload_offset: int, tus_resumable: str | None = None) -> dict[str, str]:
        """Append to an upload. Needs the permission `files:write`."""
        return dict(
            (
                await self._connection.send(
                    Call(
                        "PATCH",
                        f"/model-uploads/{segment(id)}",
                        content=content,
                        media="application/offset+octet-stream",
                        headers={"Upload-Offset": upload_offset, "Tus-Resumable": tus_resumable},
                    )
                )
            ).headers
        )

    @overload
    async def delete(self, id: str, *, wait: float | None = None, dry_run: Literal[False] = False) -> UploadView: ...
    @overload
    async def delete(self, id: str, *, wait: float | None = None, dry_run: Literal[True]) -> UploadDryRun: ...
    async def delete(self, id: str, *, wait: float | None = None, dry_run: bool = False) -> UploadView | UploadDryRun:
        """Give up an upload. Needs the permission `files:write`."""
        return await self._connection.json(
            Call("DELETE", f"/model-uploads/{segment(id)}", query={"dry_run": dry_run or None, "wait": wait})
        )

    @overload
    async def complete(self, id: str, *, wait: float | None = None, dry_run: Literal[False] = False) -> FileView: ...
    @overload
    async def complete(self, id: str, *, wait: float | None = None, dry_run: Literal[True]) -> UploadDryRun: ...
    async def complete(self, id: str, *, wait: float | None = None, dry_run: bool = False) -> FileView | UploadDryRun:
        """Verify an upload and add the model. Needs the permission `files:write`."""
        return await self._connection.json(
            Call("POST", f"/model-uploads/{segment(id)}/complete", query={"dry_run": dry_run or None, "wait": wait})
        )
