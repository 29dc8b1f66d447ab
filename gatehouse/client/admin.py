"""The clients of the admin API: a connection, and a resource's operations under its name (`admin.tenants.list()`)."""

from __future__ import annotations

import copy
import ssl
from typing import Self

import httpx

from gatehouse.client.aio import AsyncResources
from gatehouse.client.api import Resources
from gatehouse.client.async_connection import AsyncConnection
from gatehouse.client.connection import Connection


class Admin(Resources):
    """The admin API of the gateway at `url`, with an API key or a gateway token that has a role there. Use it as a context manager.

    timeout: seconds for each answer. retries: how often a read, or a creation with an idempotency key, is sent again after a refusal that
    passes (429, 503) or a connection that failed. verify: False trusts any certificate; a context has its own authorities, or a client
    certificate. transport: another one than httpx's own. Raises ValueError for a URL or a key that cannot be used.
    """

    def __init__(
        self,
        url: str,
        key: str,
        *,
        timeout: float = 30.0,
        retries: int = 2,
        verify: ssl.SSLContext | bool = True,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._connection = Connection(url, key, timeout, retries, verify, transport)
        super().__init__(self._connection)

    def with_timeout(self, seconds: float) -> Resources:
        """The same operations over the same connections with more or less patience: to load a model, to verify a large log."""
        connection = copy.copy(self._connection)
        connection.timeout = seconds
        return Resources(connection)

    def close(self) -> None:
        """Closes the connections."""
        self._connection.http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class AsyncAdmin(AsyncResources):
    """`Admin` for asyncio: every operation is awaited, every iterator is asynchronous."""

    def __init__(
        self,
        url: str,
        key: str,
        *,
        timeout: float = 30.0,
        retries: int = 2,
        verify: ssl.SSLContext | bool = True,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._connection = AsyncConnection(url, key, timeout, retries, verify, transport)
        super().__init__(self._connection)

    def with_timeout(self, seconds: float) -> AsyncResources:
        """The same operations over the same connections with more or less patience: to load a model, to verify a large log."""
        connection = copy.copy(self._connection)
        connection.timeout = seconds
        return AsyncResources(connection)

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._connection.http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()
