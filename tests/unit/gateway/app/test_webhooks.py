"""Webhooks over a real store and a real server: signed, tried again, given up, once for each share of a budget."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.app.webhooks import LONGEST_PAUSE, MOST_ATTEMPTS, MOST_HEARD, Webhooks, _check
from gateway.core.clock import FakeClock
from gateway.core.errors import NotFound
from gateway.core.secret import Secret
from gateway.core.signatures import key_fault, signature
from gateway.core.specs import AlertsSpec, BudgetSpec, ConfigSpec, LimitSpec, WebhookSpec
from gateway.core.specs.redis import RedisSpec
from gateway.core.tasks import TaskOwner
from gateway.identity import keys
from gateway.store.store import Store
from tests.cluster.servers import RedisServer
from tests.stores import migrated

SECRET = "a-secret-of-thirty-two-characters"


class Server:
    """Answers each request with the next status."""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        self.seen: list[tuple[dict[str, str], bytes]] = []
        self.port = 0

    async def start(self) -> asyncio.Server:
        server = await asyncio.start_server(self.take, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
        original = {line.split(": ", 1)[0].lower(): line.split(": ", 1)[1] for line in lines[1:] if line}
        body = await reader.readexactly(int(headers["content-length"]))
        self.seen.append((original, body))
        status = self.statuses.pop(0) if self.statuses else 200
        writer.write(b"HTTP/1.1 %d X\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n" % status)
        await writer.drain()
        writer.close()


class World:
    def __init__(self, store: Store, server: Server) -> None:
        self.store, self.server, self.clock = store, server, FakeClock()
        store._now = lambda connection: self.clock.wall()  # the database's clock
        self.hooks = (WebhookSpec(name="ops", url=f"http://127.0.0.1:{server.port}/in?a=b", secret=Secret(SECRET)),)
        self.limit = LimitSpec(name="month", per="tenant", budget=BudgetSpec(amount=100, unit="tokens"), enforce=False)
        self.limits: tuple[LimitSpec, ...] = (self.limit,)
        self.webhooks = self.replica()

    def spec(self) -> ConfigSpec:
        return ConfigSpec(version=1, limits=self.limits, alerts=AlertsSpec(webhooks=self.hooks))

    def replica(self, name: str = "r1") -> Webhooks:
        return Webhooks(self.store, self.spec, name, TaskOwner("test"), now=self.clock.wall)

    def happens(self, webhooks: Webhooks | None = None, event: str = "budget_used", **detail: Any) -> None:
        payload = {"event": event, "target": "month", "actor": "gatehouse", "outcome": "ok", **detail}
        (webhooks or self.webhooks).heard((1, "event", payload))

    async def status(self) -> list[tuple[str, int]]:
        return [(one.status, one.attempts) for one in await self.store.deliveries()]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    store = Store("sqlite", migrated(tmp_path), keys, given_pepper="p" * 32, deadline=60.0)
    await store.start()
    server = Server()
    listening = await server.start()
    yield World(store, server)
    listening.close()
    await listening.wait_closed()
    await store.aclose()


async def test_a_share_is_told_once_whoever_notices_it(world: World) -> None:
    world.happens(scope="acme", percent=50)
    other = world.replica("r2")
    world.happens(other, scope="acme", percent=50)
    world.happens(other, scope="acme", percent=80)
    world.happens(event="config", target="x")
    await asyncio.gather(world.webhooks.deliver(), other.deliver())
    await world.webhooks.deliver()
    told = sorted(json.loads(body)["data"]["percent"] for _, body in world.server.seen)
    assert told == [50, 80] and await world.status() == [("delivered", 1)] * 2
    headers, body = world.server.seen[0]
    assert headers["webhook-signature"] == signature(SECRET, headers["webhook-id"], int(headers["webhook-timestamp"]), body)
    said = json.loads(body)
    assert said["type"] == "budget_used" and said["data"]["enforced"] is False and said["data"]["unit"] == "tokens"
    world.clock.advance(32 * 86400.0)  # the next window
    world.happens(scope="acme", percent=50)
    await world.webhooks.deliver()
    assert len(world.server.seen) == 3


async def test_replicas_with_stores_of_their_own_and_one_redis_tell_once(world: World, tmp_path: Path, short_path: Path) -> None:
    redis = RedisServer(short_path)
    await asyncio.to_thread(redis.start)
    there = RedisSpec(url=Secret(f"unix://{redis.socket}"), prefix="test")
    for name in "ab":
        (tmp_path / name).mkdir()
    stores = [Store("sqlite", migrated(tmp_path / name), keys, given_pepper="p" * 32, deadline=60.0) for name in "ab"]
    try:
        for store in stores:
            await store.start()
        both = [
            Webhooks(store, world.spec, f"r{at}", TaskOwner("test"), now=world.clock.wall, redis=there) for at, store in enumerate(stores)
        ]
        for _ in range(2):
            for one in both:
                world.happens(one, scope="acme", percent=50)
            await asyncio.gather(*(one.deliver() for one in both))
        assert len(world.server.seen) == 1 == sum([len(await store.deliveries()) for store in stores])
        await asyncio.to_thread(redis.stop)
        world.happens(both[1], scope="acme", percent=80)
        await both[1].deliver()
        assert len(world.server.seen) == 1, "while Redis is away nobody knows who tells; the next look at the budgets finds it again"
    finally:
        await asyncio.to_thread(redis.stop)
        for store in stores:
            await store.aclose()


async def test_it_is_tried_again_after_longer_and_longer_pauses_and_given_up(world: World) -> None:
    world.server.statuses = [503, 302, *[500] * 20]
    world.happens(scope="acme", percent=50)
    for attempt in range(1, MOST_ATTEMPTS + 1):
        await world.webhooks.deliver()
        assert len(world.server.seen) == attempt
        await world.webhooks.deliver()
        assert len(world.server.seen) == attempt, "not before the pause is over"
        world.clock.advance(1.3 * min(LONGEST_PAUSE, 5.0 * 2 ** (attempt - 1)))
    await world.webhooks.deliver()
    assert await world.status() == [("failed", MOST_ATTEMPTS)] and world.webhooks.sent["failed"] == 1
    assert len({headers["webhook-id"] for headers, _ in world.server.seen}) == 1


@pytest.mark.parametrize("step", [-86400.0, 86400.0])
async def test_a_replica_whose_clock_was_set_holds_up_no_event(world: World, step: float) -> None:
    wrong, own = world.replica("r2"), FakeClock()
    own.step(step)
    wrong._clock = own.wall
    world.server.statuses = [503, 503]
    world.happens(wrong, scope="acme", percent=50)
    await wrong.deliver()
    await world.webhooks.deliver()
    assert len(world.server.seen) == 1, "not before the pause is over, whoever looks"
    for attempt in (2, 3):
        world.clock.advance(1.3 * 5.0 * 2 ** (attempt - 2))
        own.advance(1.3 * 5.0 * 2 ** (attempt - 2))
        await (world.webhooks if attempt == 2 else wrong).deliver()
        assert len(world.server.seen) == attempt
    assert await world.status() == [("delivered", 3)]


async def test_replicas_name_a_window_by_the_stores_clock(world: World) -> None:
    """Otherwise the one whose clock is ahead would have told already what happens in the next window."""
    wrong = world.replica("r2")
    wrong._clock, wrong._ahead = lambda: world.clock.wall() + 32 * 86400.0, lambda: 32 * 86400.0
    world.happens(wrong, scope="acme", percent=50)
    await wrong.deliver()
    world.happens(scope="acme", percent=50)
    await world.webhooks.deliver()
    assert len(world.server.seen) == 1
    ((headers, _),) = world.server.seen
    assert int(headers["webhook-timestamp"]) == int(world.clock.wall()), "receivers refuse one that is off by minutes"
    world.clock.advance(32 * 86400.0)
    world.happens(scope="acme", percent=50)
    await world.webhooks.deliver()
    assert len(world.server.seen) == 2


async def test_a_receiver_that_is_gone_is_not_asked_again(world: World) -> None:
    world.server.statuses = [410]
    world.happens(scope="acme", percent=50)
    await world.webhooks.deliver()
    assert await world.status() == [("failed", 1)]


async def test_what_a_killed_process_did_not_tell_is_found_in_the_counters(world: World) -> None:
    state = json.dumps({"window": int(_begin(world)), "used": 85, "told": 80})
    await world.store.change_counters([("month", "budget_tokens", ("acme",))], lambda now, bodies: [(state, 4e9)])
    for _ in range(2):
        await world.webhooks._look_at_budgets()
    await world.webhooks.deliver()
    assert [json.loads(body)["data"]["percent"] for _, body in world.server.seen] == [80]


async def test_one_question_is_asked_for_all_budgets(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    state = json.dumps({"window": int(_begin(world)), "used": 85, "told": 80})
    names = [f"budget-{number}" for number in range(40)]
    world.limits = tuple(msgspec.structs.replace(world.limit, name=name) for name in names)
    await world.store.change_counters(
        [(name, "budget_tokens", ("acme",)) for name in names], lambda now, bodies: [(state, 4e9)] * len(names)
    )
    asked = []
    run = world.store._database.run

    async def counted(work: Any, **options: Any) -> Any:
        asked.append(work)
        return await run(work, **options)

    monkeypatch.setattr(world.store._database, "run", counted)
    await world.webhooks._look_at_budgets()
    assert len(asked) < 10, "the counters, the queue, what is forgotten"
    monkeypatch.undo()
    assert len(await world.store.deliveries()) == len(names)


def _begin(world: World) -> float:
    now = datetime.fromtimestamp(world.clock.wall(), UTC)
    return now.replace(day=1, hour=0, minute=0, second=0, microsecond=0).timestamp()


async def test_a_test_says_how_it_went(world: World) -> None:
    world.server.statuses = [500]
    assert (await world.webhooks.test("ops", "ann")).status == "failed"
    done = await world.webhooks.test("ops", "ann")
    assert (done.status, done.code, done.event) == ("delivered", 200, "webhook_test")
    assert json.loads(world.server.seen[1][1])["data"] == {"asked_by": "ann"}
    with pytest.raises(NotFound, match="no webhook"):
        await world.webhooks.test("other", "ann")
    assert world.webhooks.views()[0]["url"].endswith("/in")
    assert [one.event for one in await world.webhooks.deliveries("ops", 10)] == ["webhook_test"] * 2


async def test_a_webhook_that_does_not_answer_has_a_deadline(world: World) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    world.hooks = (WebhookSpec(name="ops", url=url, secret=Secret(SECRET), timeout=0.05),)
    assert "no answer within 0.05 s" in (await world.webhooks.test("ops", "ann")).error
    server.close()
    await server.wait_closed()
    world.hooks = (WebhookSpec(name="ops", url=url, secret=Secret(SECRET)),)
    assert (await world.webhooks.test("ops", "ann")).error.startswith("The receiver does not accept connections.")


def test_while_the_store_is_away_what_waits_is_bounded(tmp_path: Path) -> None:
    store = Store("sqlite", migrated(tmp_path), keys, given_pepper="p" * 32, deadline=60.0)
    world = World(store, Server())
    for number in range(MOST_HEARD + 3):
        world.happens(scope=str(number), percent=50)
    assert world.webhooks.sent["dropped"] == 3


@pytest.mark.parametrize("host", ["169.254.169.254", "0.0.0.0", "::ffff:169.254.169.254", "224.0.0.1"])
async def test_addresses_of_this_link_are_not_called(host: str) -> None:
    with pytest.raises(ValueError, match="this machine or link"):
        await _check(host, 443)
    await _check("127.0.0.1", 443)


@pytest.mark.parametrize(("secret", "fault"), [("short", "too short"), ("whsec_*", "not base64"), ("x" * 24, None)])
def test_secrets_are_checked(secret: str, fault: str | None) -> None:
    found = key_fault(secret)
    assert found is None if fault is None else fault in str(found)


def test_the_signature_is_that_of_standard_webhooks() -> None:
    """With the example that libraries for it are tested with."""
    found = signature("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert found == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_the_function_of_the_page_takes_what_is_genuine_and_nothing_else() -> None:
    page = (Path(__file__).resolve().parents[4] / "docs" / "cost.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(example, "cost.md", "exec"), names)
    secret, now = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", int(time.time())
    headers = {"webhook-id": "d", "webhook-timestamp": str(now), "webhook-signature": signature(secret, "d", now, b"{}")}
    assert names["genuine"](secret, headers, b"{}") and not names["genuine"](secret, headers, b"{ }")
    old = {**headers, "webhook-timestamp": str(now - 301), "webhook-signature": signature(secret, "d", now - 301, b"{}")}
    assert not names["genuine"](secret, old, b"{}") and not names["genuine"]("another-secret-0123456789", headers, b"{}")
