"""The connections of one process to engines, and their deadlines."""

from __future__ import annotations

import time

from gateway.core.ports import EngineClient
from gateway.core.specs import EngineSpec
from gateway.transport.pool import EndpointClient


class Connections:
    """Makes the clients of endpoints, and looks at their deadlines. Who gets a client closes it."""

    def __init__(self) -> None:
        self._clients: list[EndpointClient] = []

    def client(self, engine: EngineSpec, address: str) -> EngineClient:
        """The connections to one address of an engine."""
        if engine.runtime == "external":
            address = address.rstrip("/").removesuffix("/v1")
        client = EndpointClient(address, tls=engine.tls, connect_timeout=engine.timeouts.connect, max_idle=engine.max_idle_connections)
        self._clients = [kept for kept in self._clients if not kept.closed]
        self._clients.append(client)
        return client

    def tick(self) -> None:
        """Looks at every deadline."""
        now = time.monotonic()
        for client in self._clients:
            client.tick(now)
