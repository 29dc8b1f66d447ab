"""What stands behind the memory of a process's caches of answers: the disk and Redis, as the configuration says."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from gateway.audit.keyring import DataKey, KeyRing
from gateway.caches.behind import Behind
from gateway.caches.disk import DiskAnswers
from gateway.caches.embedding import Embedder
from gateway.caches.redis import RedisAnswers
from gateway.caches.sealing import Sealers, TenantKey
from gateway.core.clock import SystemClock, SystemEntropy
from gateway.core.errors import GatehouseError
from gateway.core.isolation import Salts
from gateway.core.specs import ConfigSpec
from gateway.core.specs.caches import DiskCacheSpec, RedisCacheSpec
from gateway.core.specs.redis import RedisSpec
from gateway.pipeline.asking import ModelAsker
from gateway.pipeline.plane import DataPlane
from gateway.transport.redis.address import target
from gateway.transport.redis.keeper import Keeper

FOLDER: Final = "caches"
THREADS: Final = 2
"""That encrypt, and open what is large."""
LARGEST: Final = 8 * 1024 * 1024
"""Bytes of an answer that may lie on disk or in Redis."""
FIRST: Final = 1.0
"""Seconds that a start waits for Redis at most."""


class CacheTiers:
    """ring: the data keys of tenants; None where nothing is encrypted with them. salts: the secret that all processes share. Life:
    `start`, `aclose`. Needs a running loop. Raises ConfigError for settings that name no Redis."""

    def __init__(self, spec: ConfigSpec, ring: KeyRing | None, salts: Callable[[], bytes]) -> None:
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="gatehouse-answers")
        self._keys = _of_ring(ring) if ring is not None else _Common(salts)
        self.behind: dict[str, Behind] = {}
        self.disk: DiskAnswers | None = None
        self._keeper: Keeper | None = None
        self._connected = asyncio.Event()
        self._closing = False
        if (disk := spec.caches.disk) is not None:
            self._add_disk(disk, Path(spec.state_dir))
        if (redis := spec.caches.redis) is not None:
            server = redis.server or spec.redis
            assert server is not None  # gateway.config.cache_rules
            self._add_redis(redis, server)

    def _sealers(self) -> Sealers:
        return Sealers(self._keys, SystemEntropy(), time.time)

    def _add_disk(self, wanted: DiskCacheSpec, state_dir: Path) -> None:
        folder = state_dir / FOLDER if wanted.directory is None else Path(wanted.directory)
        self.disk = DiskAnswers(folder, wanted.policy, wanted.max_entries, wanted.max_bytes, SystemEntropy())
        self.behind["disk"] = Behind("disk", self.disk, self._sealers(), self._threads, time.time, patience=wanted.timeout, largest=LARGEST)

    def _add_redis(self, wanted: RedisCacheSpec, server: RedisSpec) -> None:
        def lost() -> None:
            behind.lost()
            if answers.ready():
                self._connected.set()
                behind.works()

        def down(error: Exception) -> None:
            answers.disconnected(error)
            if not self._closing:
                behind.fails(str(error), pause=False)

        answers = RedisAnswers(server.prefix, wanted.policy, wanted.max_entries, wanted.max_bytes, SystemEntropy(), lost)
        behind = self.behind["redis"] = Behind(
            "redis", answers, self._sealers(), self._threads, time.time, patience=wanted.timeout, largest=LARGEST
        )
        self._keeper = answers.keeper = Keeper(target(server), answers.connected, down, SystemEntropy(), "gatehouse-answers")

    async def start(self, *, first: bool) -> None:
        """Waits for Redis for a moment. first: whether no other process of this gateway has the disk open."""
        if self.disk is not None:
            await self.disk.open(mend=first)
        if self._keeper is not None:
            self._keeper.start()
            try:
                async with asyncio.timeout(FIRST):
                    await self._connected.wait()
            except TimeoutError:
                self.behind["redis"].fails("there is no connection yet", pause=False)

    async def aclose(self) -> None:
        self._closing = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._keeper is not None:
            await self._keeper.aclose()
        if self.disk is not None:
            await self.disk.aclose()


def embedder(plane: DataPlane) -> Embedder:
    """What asks this process's embedding models for the caches of answers."""
    return Embedder(ModelAsker(plane), plane.tasks, SystemClock().monotonic)


class _Common:
    """Keys of tenants where nothing is encrypted with data keys: derived from what all processes share."""

    def __init__(self, salts: Callable[[], bytes]) -> None:
        self._salts = salts
        self._secret: bytes | None = None

    def __call__(self, tenant: str) -> tuple[str, bytes]:
        secret = self._secret
        if secret is None:
            secret = self._secret = Salts(self._salts()).secret("answers at rest")
        return "", hmac.digest(secret, tenant.encode("utf-8", "surrogatepass"), "sha256")


def _of_ring(ring: KeyRing) -> TenantKey:
    def key(tenant: str) -> tuple[str, bytes] | None:
        try:
            found = ring.current(tenant)
            return (found.id, bytes.fromhex(found.revealed())) if isinstance(found, DataKey) else None  # else it is being fetched
        except GatehouseError:
            return None

    return key
