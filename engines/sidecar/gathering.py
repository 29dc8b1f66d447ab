"""A sidecar's HTTP/1.1: an answer's head and body leave in one system call (gateway.core.gathering)."""

from __future__ import annotations

import asyncio
from typing import cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.core.gathering import GatheringTransport


class GatheringProtocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 over such a transport."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(cast(asyncio.Transport, GatheringTransport(transport, self.loop)))
