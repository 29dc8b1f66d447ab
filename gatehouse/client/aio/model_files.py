"""The admin API below /model-files. Made by scripts/generate_client.py."""

from __future__ import annotations

from typing import Literal, overload

from gatehouse.client.async_connection import AsyncConnection
from gatehouse.client.calls import Call, segment
from gatehouse.client.types.model_files import FileDryRun, FileList, FileView


class AsyncModelFilesApi:
    """Operations below /model-files."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def list(
        self, *, prefix: str | None = None, runtime: str | None = None, source: Literal["bundled", "directory", "registry"] | None = None
    ) -> FileList:
        """List model files. Needs the permission `files:read`."""
        return await self._connection.json(Call("GET", "/model-files", query={"prefix": prefix, "runtime": runtime, "source": source}))

    async def get(self, name: str, *, if_match: int | str | None = None) -> FileView:
        """Show a model file. Needs the permission `files:read`."""
        return await self._connection.json(Call("GET", f"/model-files/{segment(name)}", headers={"If-Match": if_match}))

    @overload
    async def delete(
        self, name: str, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[False] = False
    ) -> FileView: ...
    @overload
    async def delete(
        self, name: str, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[True]
    ) -> FileDryRun: ...
    async def delete(
        self, name: str, *, wait: float | None = None, if_match: int | str | None = None, dry_run: bool = False
    ) -> FileView | FileDryRun:
        """Delete a model file. Needs the permission `files:write`."""
        return await self._connection.json(
            Call(
                "DELETE", f"/model-files/{segment(name)}", query={"dry_run": dry_run or None, "wait": wait}, headers={"If-Match": if_match}
            )
        )

    async def checksum(self, name: str) -> FileView:
        """Compute a model file's checksums. Needs the permission `files:write`."""
        return await self._connection.json(Call("POST", f"/model-files/{segment(name)}/checksum"))
