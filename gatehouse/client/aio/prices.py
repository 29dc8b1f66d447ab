"""The admin API below /prices. Made by scripts/generate_client.py."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Literal, overload

from gatehouse.client.async_connection import AsyncConnection
from gatehouse.client.calls import Call, segment
from gatehouse.client.types.prices import ModelPrices, PriceDryRun, PricePage, PricePatch, PriceSettings, PriceView


class AsyncPricesApi:
    """Operations below /prices."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def list(
        self,
        *,
        limit: int | None = None,
        cursor: str | None = None,
        prefix: str | None = None,
        tenant: str | None = None,
        source: Literal["file", "store"] | None = None,
    ) -> PricePage:
        """List prices. Needs the permission `prices:read`."""
        return await self._connection.json(
            Call("GET", "/prices", query={"limit": limit, "cursor": cursor, "prefix": prefix, "tenant": tenant, "source": source})
        )

    async def iterate(
        self,
        *,
        limit: int | None = None,
        prefix: str | None = None,
        tenant: str | None = None,
        source: Literal["file", "store"] | None = None,
    ) -> AsyncIterator[PriceView]:
        """All of `list`, page after page; `limit`: of a page."""
        cursor: str | None = None
        while True:
            page = await self.list(limit=limit, prefix=prefix, tenant=tenant, source=source, cursor=cursor)
            for item in page["items"]:
                yield item
            cursor = page.get("cursor")
            if cursor is None:
                return

    @overload
    async def create(
        self, body: PriceSettings, *, wait: float | None = None, idempotency_key: str | None = None, dry_run: Literal[False] = False
    ) -> PriceView: ...
    @overload
    async def create(
        self, body: PriceSettings, *, wait: float | None = None, idempotency_key: str | None = None, dry_run: Literal[True]
    ) -> PriceDryRun: ...
    async def create(
        self, body: PriceSettings, *, wait: float | None = None, idempotency_key: str | None = None, dry_run: bool = False
    ) -> PriceView | PriceDryRun:
        """Create a price. Needs the permission `prices:create`."""
        return await self._connection.json(
            Call(
                "POST", "/prices", query={"dry_run": dry_run or None, "wait": wait}, body=body, headers={"Idempotency-Key": idempotency_key}
            )
        )

    async def get(self, name: str) -> PriceView:
        """Show a price. Needs the permission `prices:read`."""
        return await self._connection.json(Call("GET", f"/prices/{segment(name)}"))

    @overload
    async def replace(
        self,
        name: str,
        body: PriceSettings,
        *,
        wait: float | None = None,
        if_match: int | str | None = None,
        dry_run: Literal[False] = False,
    ) -> PriceView: ...
    @overload
    async def replace(
        self, name: str, body: PriceSettings, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[True]
    ) -> PriceDryRun: ...
    async def replace(
        self, name: str, body: PriceSettings, *, wait: float | None = None, if_match: int | str | None = None, dry_run: bool = False
    ) -> PriceView | PriceDryRun:
        """Replace a price. Needs the permission `prices:update`."""
        return await self._connection.json(
            Call(
                "PUT",
                f"/prices/{segment(name)}",
                query={"dry_run": dry_run or None, "wait": wait},
                body=body,
                headers={"If-Match": if_match},
            )
        )

    @overload
    async def update(
        self, name: str, body: PricePatch, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[False] = False
    ) -> PriceView: ...
    @overload
    async def update(
        self, name: str, body: PricePatch, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[True]
    ) -> PriceDryRun: ...
    async def update(
        self, name: str, body: PricePatch, *, wait: float | None = None, if_match: int | str | None = None, dry_run: bool = False
    ) -> PriceView | PriceDryRun:
        """Change a price. Needs the permission `prices:update`."""
        return await self._connection.json(
            Call(
                "PATCH",
                f"/prices/{segment(name)}",
                query={"dry_run": dry_run or None, "wait": wait},
                body=body,
                headers={"If-Match": if_match},
            )
        )

    @overload
    async def delete(
        self, name: str, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[False] = False
    ) -> PriceView: ...
    @overload
    async def delete(
        self, name: str, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[True]
    ) -> PriceDryRun: ...
    async def delete(
        self, name: str, *, wait: float | None = None, if_match: int | str | None = None, dry_run: bool = False
    ) -> PriceView | PriceDryRun:
        """Delete a price. Needs the permission `prices:delete`."""
        return await self._connection.json(
            Call("DELETE", f"/prices/{segment(name)}", query={"dry_run": dry_run or None, "wait": wait}, headers={"If-Match": if_match})
        )

    async def models(self) -> ModelPrices:
        """Show what models cost now. Needs the permission `prices:read`."""
        return await self._connection.json(Call("GET", "/prices:models"))
