"""The admin API below /prices. Made by scripts/generate_client.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, overload

from gatehouse.client.calls import Call, segment
from gatehouse.client.connection import Connection
from gatehouse.client.types.prices import ModelPrices, PriceDryRun, PricePage, PricePatch, PriceSettings, PriceView


class PricesApi:
    """Operations below /prices."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(
        self,
        *,
        limit: int | None = None,
        cursor: str | None = None,
        prefix: str | None = None,
        tenant: str | None = None,
        source: Literal["file", "store"] | None = None,
    ) -> PricePage:
        """List prices. Needs the permission `prices:read`."""
        return self._connection.json(
            Call("GET", "/prices", query={"limit": limit, "cursor": cursor, "prefix": prefix, "tenant": tenant, "source": source})
        )

    def iterate(
        self,
        *,
        limit: int | None = None,
        prefix: str | None = None,
        tenant: str | None = None,
        source: Literal["file", "store"] | None = None,
    ) -> Iterator[PriceView]:
        """All of `list`, page after page; `limit`: of a page."""
        cursor: str | None = None
        while True:
            page = self.list(limit=limit, prefix=prefix, tenant=tenant, source=source, cursor=cursor)
            yield from page["items"]
            cursor = page.get("cursor")
            if cursor is None:
                return

    @overload
    def create(
        self, body: PriceSettings, *, wait: float | None = None, idempotency_key: str | None = None, dry_run: Literal[False] = False
    ) -> PriceView: ...
    @overload
    def create(
        self, body: PriceSettings, *, wait: float | None = None, idempotency_key: str | None = None, dry_run: Literal[True]
    ) -> PriceDryRun: ...
    def create(
        self, body: PriceSettings, *, wait: float | None = None, idempotency_key: str | None = None, dry_run: bool = False
    ) -> PriceView | PriceDryRun:
        """Create a price. Needs the permission `prices:create`."""
        return self._connection.json(
            Call(
                "POST", "/prices", query={"dry_run": dry_run or None, "wait": wait}, body=body, headers={"Idempotency-Key": idempotency_key}
            )
        )

    def get(self, name: str) -> PriceView:
        """Show a price. Needs the permission `prices:read`."""
        return self._connection.json(Call("GET", f"/prices/{segment(name)}"))

    @overload
    def replace(
        self,
        name: str,
        body: PriceSettings,
        *,
        wait: float | None = None,
        if_match: int | str | None = None,
        dry_run: Literal[False] = False,
    ) -> PriceView: ...
    @overload
    def replace(
        self, name: str, body: PriceSettings, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[True]
    ) -> PriceDryRun: ...
    def replace(
        self, name: str, body: PriceSettings, *, wait: float | None = None, if_match: int | str | None = None, dry_run: bool = False
    ) -> PriceView | PriceDryRun:
        """Replace a price. Needs the permission `prices:update`."""
        return self._connection.json(
            Call(
                "PUT",
                f"/prices/{segment(name)}",
                query={"dry_run": dry_run or None, "wait": wait},
                body=body,
                headers={"If-Match": if_match},
            )
        )

    @overload
    def update(
        self, name: str, body: PricePatch, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[False] = False
    ) -> PriceView: ...
    @overload
    def update(
        self, name: str, body: PricePatch, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[True]
    ) -> PriceDryRun: ...
    def update(
        self, name: str, body: PricePatch, *, wait: float | None = None, if_match: int | str | None = None, dry_run: bool = False
    ) -> PriceView | PriceDryRun:
        """Change a price. Needs the permission `prices:update`."""
        return self._connection.json(
            Call(
                "PATCH",
                f"/prices/{segment(name)}",
                query={"dry_run": dry_run or None, "wait": wait},
                body=body,
                headers={"If-Match": if_match},
            )
        )

    @overload
    def delete(
        self, name: str, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[False] = False
    ) -> PriceView: ...
    @overload
    def delete(self, name: str, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[True]) -> PriceDryRun: ...
    def delete(
        self, name: str, *, wait: float | None = None, if_match: int | str | None = None, dry_run: bool = False
    ) -> PriceView | PriceDryRun:
        """Delete a price. Needs the permission `prices:delete`."""
        return self._connection.json(
            Call("DELETE", f"/prices/{segment(name)}", query={"dry_run": dry_run or None, "wait": wait}, headers={"If-Match": if_match})
        )

    def models(self) -> ModelPrices:
        """Show what models cost now. Needs the permission `prices:read`."""
        return self._connection.json(Call("GET", "/prices:models"))
