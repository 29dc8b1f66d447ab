"""The public keys of an issuer: fetched ahead of need, kept while the issuer cannot be reached, bounded.

A request waits for a fetch only if its token names a key that is not known, or that did not sign it, and then shares one fetch with all
others. For COOLDOWN seconds after such a fetch, however it ended, tokens with unknown keys are refused without another, and for DOUBT
seconds those with wrong signatures: neither kind costs the issuer more than that, or holds up the fetch of the other. A refresh of our own
is no such fetch: it may have begun before the key was there. While fetches fail, the keys fetched last count for MAX_STALE seconds.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from gateway.core.clock import Clock
from gateway.core.deadlines import within
from gateway.core.tasks import TaskOwner
from gateway.identity.jose import Malformed, public_key

log = logging.getLogger("gatehouse.identity")

REFRESH: Final = 600.0
COOLDOWN: Final = 10.0
DOUBT: Final = 60.0
RETRY: Final = 15.0
MAX_STALE: Final = 24 * 3600.0
FETCH_SECONDS: Final = 5.0
"""The deadline of one whole fetch, discovery included."""
MAX_KEYS: Final = 100
Fetch = Callable[[], Awaitable[bytes]]
"""Returns the body of a JWK Set (RFC 7517). Raises any error; bounded in size by its implementation."""


class KeyRing:
    """The keys of one issuer. name: for the log. on_change: called when keys went away or were replaced, so that what was verified with
    them is verified again. Life: `start`, `aclose`."""

    def __init__(self, name: str, fetch: Fetch, clock: Clock, on_change: Callable[[], None]) -> None:
        self._name, self._fetch, self._clock, self._on_change = name, fetch, clock, on_change
        self._jwks: dict[str | None, list[dict[str, Any]]] = {}
        self._keys: dict[tuple[str | None, str], Any] = {}
        self._tasks = TaskOwner(f"keys of {name}")
        self._flight: asyncio.Future[None] | None = None
        self._fetched_at = self._asked_at = self._doubted_at = float("-inf")
        self._failed = False
        self.fetches = 0
        """How many fetches were made, for metrics and tests."""

    async def start(self) -> None:
        """Begins to fetch. If the issuer does not answer, it is asked again later; until then its tokens are refused."""
        self._tasks.spawn(self._follow(), name="refresh")

    async def aclose(self) -> None:
        await self._tasks.aclose()

    def known(self, kid: str | None, algorithm: str) -> Any | None:
        """The key, if it is there. Without a name in the token, the issuer's only key of that kind. Raises Malformed for a key that is
        there but not for this algorithm."""
        if self._clock.monotonic() - self._fetched_at > MAX_STALE:
            return None
        found = self._keys.get((kid, algorithm))
        if found is None:
            found = self._made(kid, algorithm)
            if found is not None:
                self._keys[(kid, algorithm)] = found
        return found

    @property
    def unreachable(self) -> bool:
        """Whether an unknown key may still be the issuer's, because its keys could not be fetched the last time."""
        return self._failed or self._clock.monotonic() - self._fetched_at > MAX_STALE

    def fetched(self, *, doubted: bool = False) -> Awaitable[None] | None:
        """Completes when a fetch that is under way, or made for this call, has ended; None while none may be made. doubted: for a key that
        is known and may have been replaced by another one of its name."""
        now = self._clock.monotonic()
        if self._flight is None and (now - self._doubted_at >= DOUBT if doubted else now - self._asked_at >= COOLDOWN):
            if doubted:
                self._doubted_at = now
            else:
                self._asked_at = now
            self._begin()
            self._tasks.spawn(self._refresh(), name="fetch")
        return None if self._flight is None else asyncio.shield(self._flight)

    # --- inside

    def _made(self, kid: str | None, algorithm: str) -> Any | None:
        if kid is not None:
            candidates = self._jwks.get(kid, [])
            if not candidates:
                return None
            fitting = _fitting(candidates, algorithm)
            if len(fitting) != 1:
                raise Malformed("the key does not fit the algorithm")
            return fitting[0]
        fitting = _fitting([jwk for group in self._jwks.values() for jwk in group], algorithm)
        return fitting[0] if len(fitting) == 1 else None

    async def _follow(self) -> None:
        while True:
            if self._flight is None:
                self._begin()
                await self._refresh()
            await asyncio.sleep(RETRY if self._failed else REFRESH)

    def _begin(self) -> None:
        self._flight = asyncio.get_running_loop().create_future()

    async def _refresh(self) -> None:
        """One fetch. Wakes those that wait for it when it has ended, even if it failed."""
        self.fetches += 1
        try:
            async with within(FETCH_SECONDS):
                self._take(keys_of(await self._fetch()))
            if self._failed:
                log.info("the keys of the issuer %s were fetched again", self._name)
            self._failed = False
        except Exception as error:  # noqa: BLE001 - boundary: whatever an issuer answers, the keys known so far count
            if not self._failed:
                log.warning("the keys of the issuer %s could not be fetched (%s); those known so far count", self._name, _shown(error))
            self._failed = True
        finally:
            flight, self._flight = self._flight, None
            if flight is not None and not flight.done():
                flight.set_result(None)

    def _take(self, found: dict[str | None, list[dict[str, Any]]]) -> None:
        self._fetched_at = self._clock.monotonic()
        if found == self._jwks:
            return
        gone = any(found.get(kid) != group for kid, group in self._jwks.items())
        self._jwks, self._keys = found, {}
        if gone:
            self._on_change()


def keys_of(body: bytes) -> dict[str | None, list[dict[str, Any]]]:
    """The signature keys of a JWK Set by their names. Raises ValueError."""
    found = json.loads(body)
    keys = found.get("keys") if isinstance(found, dict) else None
    if not isinstance(keys, list):
        raise ValueError("not a JWK Set")
    if len(keys) > MAX_KEYS:
        raise ValueError(f"{len(keys)} keys, more than {MAX_KEYS}")
    by_name: dict[str | None, list[dict[str, Any]]] = {}
    for jwk in keys:
        if not isinstance(jwk, dict) or jwk.get("use", "sig") != "sig" or jwk.get("kty") not in ("RSA", "EC", "OKP"):
            continue
        operations = jwk.get("key_ops")
        if operations is not None and (not isinstance(operations, list) or "verify" not in operations):
            continue
        kid = jwk.get("kid")
        if (kid is None or isinstance(kid, str)) and jwk not in (group := by_name.setdefault(kid, [])):
            group.append(jwk)
    if not by_name:
        raise ValueError("no key for signatures")
    return by_name


def _fitting(candidates: list[dict[str, Any]], algorithm: str) -> list[Any]:
    found = []
    for jwk in candidates:
        try:
            found.append(public_key(jwk, algorithm))
        except Malformed:
            continue
    return found


def _shown(error: Exception) -> str:
    """Without what an issuer may have sent."""
    return f"no answer within {FETCH_SECONDS:g} s" if isinstance(error, TimeoutError) else f"{type(error).__name__}: {str(error)[:120]}"
