"""The admin API below /caches. Made by scripts/generate_client.py."""

from __future__ import annotations

from gatehouse.client.calls import Call
from gatehouse.client.connection import Connection
from gatehouse.client.types.caches import CachePage, Purged


class CachesApi:
    """Operations below /caches."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(self) -> CachePage:
        """Show the caches of answers. Needs the permission `caches:read`."""
        return self._connection.json(Call("GET", "/caches"))

    def delete(
        self,
        *,
        model: str | None = None,
        tenant: str | None = None,
        key: str | None = None,
        wait: float | None = None,
        dry_run: bool = False,
    ) -> Purged:
        """Forget answers that are kept. Needs the permission `caches:purge`."""
        return self._connection.json(
            Call("DELETE", "/caches", query={"dry_run": dry_run or None, "model": model, "tenant": tenant, "key": key, "wait": wait})
        )
