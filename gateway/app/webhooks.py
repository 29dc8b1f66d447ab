"""Webhooks: events are posted to addresses of the configuration, signed, at least once, from a queue in the store that is bounded.

An event that a webhook asks for becomes a delivery in the store, and whichever replica looks first takes it. Until it is answered with 2xx,
it is tried again after longer and longer pauses, also after a restart and by another replica; then it is given up. All replicas go by the
store's clock. A share of a budget is told once in a window: its delivery has the same id wherever it is noticed. At the start and each
minute the counters of budgets are looked at too, so that nothing is lost when a process is killed between counting and telling.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Any, Final
from urllib.parse import urlsplit

from prometheus_client.core import CounterMetricFamily, Metric

from gateway.core.clock import Entropy, SystemEntropy
from gateway.core.deliveries import Delivery, DeliveryStorage
from gateway.core.errors import GatehouseError, NotFound
from gateway.core.ports import Change
from gateway.core.signatures import signature
from gateway.core.specs import ConfigSpec, LimitSpec, WebhookSpec
from gateway.core.specs.redis import RedisSpec
from gateway.core.storage import ControlStore
from gateway.core.tasks import TaskOwner
from gateway.limits.bucket import Shape
from gateway.limits.counter import ALERTS, used
from gateway.limits.meter import Meter, meters_of
from gateway.limits.redis.book import BucketBook
from gateway.limits.redis.names import HASHED
from gateway.limits.windows import span
from gateway.transport.ask import ask
from gateway.transport.pool import EndpointClient
from policies.patterns import matches

log = logging.getLogger("gatehouse.alerts")

LOOK_SECONDS: Final = 2.0
BUDGET_SECONDS: Final = 60.0
"""Between two looks at the counters of budgets, and at what can be forgotten."""
MOST_PENDING: Final = 10_000
MOST_KEPT: Final = 100_000
"""Deliveries that are settled."""
KEPT_SECONDS: Final = 7 * 86400.0
MOST_ATTEMPTS: Final = 12
"""About two and a half hours, with the pauses between them."""
FIRST_PAUSE: Final = 5.0
LONGEST_PAUSE: Final = 3600.0
MOST_JITTER: Final = 1.25
"""The largest factor by which chance lengthens a pause."""
HOLD_SECONDS: Final = 30.0
"""How long an attempt belongs to one replica, beyond the webhook's own deadline."""
MOST_HEARD: Final = 1_000
"""Events that wait to be queued, while the store is away."""
CLAIM_SECONDS: Final = 300.0
"""How long a replica may take to queue an event on behalf of all that share a Redis."""
COUNTERS: Final = 1_000
"""Of one budget that are looked at."""
MOST_COUNTERS: Final = 20_000
"""Of all budgets together."""
BUDGET: Final = "budget_used"
TEST: Final = "webhook_test"
GONE: Final = 410


class Webhooks:
    """spec: the configuration in force. replica: this process's. ahead: seconds by which its clock is ahead of the store's. redis: where
    budgets are counted, if not in the store. Life: `start`, with `heard` subscribed to the feed; its tasks are the owner's; `flush` at the
    end."""

    def __init__(
        self,
        store: ControlStore,
        spec: Callable[[], ConfigSpec],
        replica: str,
        tasks: TaskOwner,
        *,
        now: Callable[[], float] = time.time,
        ahead: Callable[[], float] = lambda: 0.0,
        entropy: Entropy | None = None,
        redis: RedisSpec | None = None,
    ) -> None:
        self._redis = None if redis is None else BucketBook(redis)
        self._store: ControlStore = store
        self._spec, self._replica, self._tasks, self._clock = spec, replica, tasks, now
        self._ahead = ahead
        self._entropy: Entropy = entropy or SystemEntropy()
        self._heard: deque[Delivery] = deque()
        self._looking = asyncio.Lock()
        self.sent: dict[str, int] = {"delivered": 0, "retried": 0, "failed": 0, "dropped": 0}

    def _now(self) -> float:
        return self._clock() - self._ahead()

    def start(self) -> None:
        self._tasks.every(LOOK_SECONDS, self._look, name="webhooks")
        self._tasks.every(BUDGET_SECONDS, self._look_at_budgets, name="alerts of budgets")
        self._tasks.spawn(self._look_at_budgets(), name="alerts of budgets at the start")

    async def flush(self) -> None:
        """Puts what was heard into the queue, for the next start or another replica. Raises StoreUnavailable."""
        async with self._looking:
            if waiting := list(self._heard):
                await self._queue(waiting)
                self._heard.clear()

    def collect(self) -> Iterable[Metric]:
        """For a scrape."""
        found = CounterMetricFamily("gatehouse_webhook_attempts", "Attempts to deliver events to webhooks", labels=["outcome"])
        for outcome, count in self.sent.items():
            found.add_metric([outcome], float(count))
        yield found

    def heard(self, change: Change) -> None:
        """An event of this replica."""
        _, kind, payload = change
        if kind == "event" and self._spec().alerts.webhooks:
            self._note(dict(payload))

    # --- what becomes a delivery

    def _note(self, payload: dict[str, Any]) -> None:
        event, now = str(payload.pop("event", "")), self._now()
        known, keep = "", 0.0
        if event == BUDGET and (limit := self._limit(str(payload.get("target")))) is not None:
            percent, scope = int(payload.get("percent", 0)), str(payload.get("scope", ""))
            payload, known, keep = _told(limit, scope, percent, now), _budget_id(limit, scope, percent, now), _window(limit, now)[1]
        for hook in self._spec().alerts.webhooks:
            if any(matches(pattern, event) for pattern in hook.events):
                if len(self._heard) >= MOST_HEARD:
                    self.sent["dropped"] += 1
                    continue
                self._heard.append(self._delivery(hook, event, payload, now, known, keep))

    def _delivery(self, hook: WebhookSpec, event: str, data: dict[str, Any], now: float, known: str = "", keep: float = 0.0) -> Delivery:
        """A delivery to one webhook. known: the name of an event that must be delivered once only; its delivery's id follows from it."""
        id = sha256(f"{hook.name}\n{known}".encode()).hexdigest()[:32] if known else self._entropy.bytes(16).hex()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
        body = json.dumps({"type": event, "timestamp": stamp, "replica": self._replica, "data": data}, separators=(",", ":"))
        return Delivery(id=f"msg_{id}", webhook=hook.name, event=event, body=body, created=now, due=now, keep=keep)

    def _limit(self, name: str) -> LimitSpec | None:
        return next((limit for limit in self._spec().limits if limit.name == name and limit.budget is not None), None)

    async def _look_at_budgets(self) -> None:
        now = self._now()
        wanted: list[Delivery] = []
        hooks = [hook for hook in self._spec().alerts.webhooks if any(matches(pattern, BUDGET) for pattern in hook.events)]
        limits = [limit for limit in self._spec().limits if limit.budget is not None] if hooks else []
        try:
            for limit, scope, percent in await self._passed(limits, now) if limits else ():
                told = (_told(limit, scope, percent, now), now, _budget_id(limit, scope, percent, now), _window(limit, now)[1])
                wanted += [self._delivery(hook, BUDGET, *told) for hook in hooks]
            if wanted:
                await self._queue(wanted)
            await self._store.forget_deliveries(KEPT_SECONDS, MOST_KEPT)
        except GatehouseError as error:
            log.debug("alerts of budgets are looked for later: %s", error.message)

    async def _passed(self, limits: Sequence[LimitSpec], now: float) -> list[tuple[LimitSpec, str, int]]:
        """(limit, scope, percent) of the counters of budgets that have passed a share in this window: of each the highest. Asked for all
        budgets at once."""
        found = []
        meters = {limit.name: next(meter for meter in meters_of(limit) if meter.budget is not None) for limit in limits}
        if self._redis is not None:
            shapes = [Shape(limit) for limit in limits]
            for limit, shape, buckets in zip(limits, shapes, await self._redis.all_of_each(shapes, COUNTERS, MOST_COUNTERS), strict=True):
                meter = meters[limit.name]
                index = [one.name for one in shape.meters].index(meter.name)
                for scope, bucket in buckets:
                    share = _share(bucket.amounts[index].used, meter)
                    if share and not scope.startswith(HASHED):
                        found.append((limit, scope, share))
            return found
        by_name = {limit.name: limit for limit in limits}
        for row in await self._store.counters_of_each(list(by_name), COUNTERS, MOST_COUNTERS):
            name, amount, key = row.name
            meter = meters[name]
            if amount == meter.name and (share := _share(used(json.loads(row.body), meter, now), meter)):
                found.append((by_name[name], "/".join(key), share))
        return found

    # --- delivering

    async def _look(self) -> None:
        try:
            await self.deliver()
        except GatehouseError as error:
            log.debug("webhooks wait: %s", error.message)

    async def deliver(self) -> None:
        """Queues new events, and sends the deliveries that are due. Raises StoreUnavailable."""
        async with self._looking:
            if self._heard:
                waiting = list(self._heard)
                await self._queue(waiting)
                for _ in waiting:
                    self._heard.popleft()
            if not self._spec().alerts.webhooks:
                return
            hold = HOLD_SECONDS + max(hook.timeout for hook in self._spec().alerts.webhooks)
            due = await self._store.take_deliveries(hold, hold + MOST_JITTER * LONGEST_PAUSE)
            if due:
                await asyncio.gather(*(self._attempt(one) for one in due))

    async def _queue(self, wanted: Sequence[Delivery]) -> None:
        """Replicas that share a Redis and not a store tell of a budget once. While Redis is away budgets are left to the next look at them.
        Raises StoreUnavailable."""
        once = {one.id: one.keep - self._now() for one in wanted if one.keep}
        if self._redis is None or not once:
            return await self._put(wanted)
        try:
            mine = await self._redis.claim(list(once), self._replica, CLAIM_SECONDS)
        except GatehouseError as error:
            log.debug("alerts of budgets wait for Redis: %s", error.message)
            mine = set()
        await self._put([one for one in wanted if not one.keep or one.id in mine])
        with suppress(GatehouseError):  # then it is claimed again at the next look
            await self._redis.keep({id: seconds for id, seconds in once.items() if id in mine}, self._replica)

    async def _put(self, wanted: Sequence[Delivery]) -> None:
        if not wanted:
            return
        taken = await self._store.add_deliveries(wanted, MOST_PENDING)
        if taken < len(wanted):
            self.sent["dropped"] += len(wanted) - taken
            log.warning("%d events for webhooks were dropped: %d wait already", len(wanted) - taken, MOST_PENDING)

    async def _attempt(self, delivery: Delivery) -> None:
        hook = next((one for one in self._spec().alerts.webhooks if one.name == delivery.webhook), None)
        code, error = (0, "there is no such webhook here") if hook is None else await self._post(hook, delivery)
        pause = 0.0
        if hook is not None and 200 <= code < 300:
            status, outcome = "delivered", "delivered"
        elif code == GONE or delivery.attempts >= MOST_ATTEMPTS:
            status, outcome = "failed", "failed"
            log.warning("webhook %s: event %s is given up after %d attempts: %s", delivery.webhook, delivery.id, delivery.attempts, error)
        else:
            pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** (delivery.attempts - 1))
            pause *= MOST_JITTER - self._entropy.uniform() / 2
            status, outcome = "pending", "retried"
        self.sent[outcome] += 1
        with suppress(GatehouseError):  # then it is tried again
            await self._store.settle_delivery(delivery.id, status=status, pause=pause, code=code, error=error)

    async def _post(self, hook: WebhookSpec, delivery: Delivery) -> tuple[int, str]:
        """(status, what went wrong) of one attempt, within the webhook's deadline. Redirects are not followed."""
        body, parts, stamp = delivery.body.encode(), urlsplit(hook.url), int(self._now())
        headers = {
            "content-type": "application/json",
            "webhook-id": delivery.id,
            "webhook-timestamp": str(stamp),
            "webhook-signature": signature(hook.secret.reveal(), delivery.id, stamp, body),
        }
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        try:
            async with asyncio.timeout(hook.timeout):
                await _check(parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80))
                client = EndpointClient(f"{parts.scheme}://{parts.netloc}", tls=hook.tls, connect_timeout=hook.timeout, max_idle=0)
                try:
                    reply = await ask(client, "POST", path, headers, body)
                finally:
                    await client.aclose()
        except TimeoutError:
            return 0, f"no answer within {hook.timeout:g} s"
        except (GatehouseError, OSError, ValueError) as error:
            told = str(error)[:300] or type(error).__name__
            return 0, told.replace("The engine", "The receiver")  # what carries requests speaks of engines
        status = reply.head.status
        return status, "" if 200 <= status < 300 else f"answered with status {status}"

    # --- operators

    def views(self) -> list[dict[str, Any]]:
        """The webhooks in force, without what is secret."""
        return [
            {"name": hook.name, "url": _shown(hook.url), "events": list(hook.events), "timeout": hook.timeout}
            for hook in self._spec().alerts.webhooks
        ]

    async def test(self, name: str, actor: str, *, dry_run: bool = False) -> Delivery:
        """Sends an event of its own now, once; dry_run: only says which. Raises NotFound, StoreUnavailable."""
        hook = next((one for one in self._spec().alerts.webhooks if one.name == name), None)
        if hook is None:
            raise NotFound(f"There is no webhook {name[:128]!r} in the configuration.")
        now = self._now()
        made = self._delivery(hook, TEST, {"asked_by": actor}, now)
        if dry_run:
            return made
        await self._store.add_deliveries([made], MOST_PENDING + 1)
        code, error = await self._post(hook, made)
        status = "delivered" if 200 <= code < 300 else "failed"
        self.sent[status] += 1
        await self._store.settle_delivery(made.id, status=status, pause=0.0, code=code, error=error)
        return Delivery(**{**_fields(made), "status": status, "code": code, "error": error, "attempts": 1})

    async def deliveries(self, name: str | None, limit: int) -> Sequence[Delivery]:
        """The newest ones. Raises StoreUnavailable."""
        queue: DeliveryStorage = self._store
        return await queue.deliveries(name, limit=limit)


def _share(spent: float, meter: Meter) -> int:
    """The highest of ALERTS that was passed; 0: none."""
    return max((one for one in ALERTS if spent * 100 >= one * meter.burst), default=0)


def _fields(delivery: Delivery) -> dict[str, Any]:
    return {name: getattr(delivery, name) for name in delivery.__struct_fields__}


def _window(limit: LimitSpec, now: float) -> tuple[float, float]:
    """When the window of a budget began and ends; of a rolling one, the last time by which it may have passed a share once more."""
    assert limit.budget is not None
    window = limit.budget.window
    if isinstance(window, str):
        return span(window, limit.budget.timezone, now)
    begin = now // window.rolling * window.rolling
    return begin, begin + window.rolling


def _budget_id(limit: LimitSpec, scope: str, percent: int, now: float) -> str:
    return json.dumps([limit.name, scope, percent, int(_window(limit, now)[0])])


def _told(limit: LimitSpec, scope: str, percent: int, now: float) -> dict[str, Any]:
    """The data of an event about a budget."""
    assert limit.budget is not None
    begin, end = (time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(one)) for one in _window(limit, now))
    more = {"begins": begin, "ends": end} if isinstance(limit.budget.window, str) else {"rolling_seconds": limit.budget.window.rolling}
    return {
        "limit": limit.name,
        "per": limit.per,
        "scope": scope,
        "percent": percent,
        "amount": limit.budget.amount,
        "unit": limit.budget.unit,
        "enforced": limit.enforce,
        **more,
    }


def _shown(url: str) -> str:
    """An address without the query, which may hold a token."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}{parts.path}"


async def _check(host: str, port: int) -> None:
    """Raises ValueError for a name that leads to an address of this machine or link only. A URL may name loopback itself."""
    if host == "localhost":
        return
    for entry in await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM):
        address = ipaddress.ip_address(str(entry[4][0]).partition("%")[0])
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        named = str(entry[4][0]) == host and address.is_loopback
        if (address.is_loopback and not named) or address.is_link_local or address.is_unspecified or address.is_multicast:
            raise ValueError(f"{host} leads to {address}, an address of this machine or link")
