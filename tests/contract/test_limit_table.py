"""Every quantity on every scope, in one process and in Redis: what a caller has used up is refused there, and nobody else notices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from gateway.config.limit_rules import check_limit
from gateway.core.clock import FakeClock
from gateway.core.errors import ConfigError, GatehouseError, LimitExceeded
from gateway.core.prices import Price
from gateway.core.specs.limits import LimitSpec, Per
from gateway.core.types import InferenceRequest, Principal
from gateway.core.wire import WireApi
from gateway.limits.local import LocalLimiter
from gateway.limits.redis.limiter import RedisLimiter
from gateway.limits.registry import BucketRegistry
from policies.limits import LimitRules, estimate
from tests.cluster.servers import RedisServer
from tests.fakes.redis_network import Member, Server

DOLLAR = Price("usd", "1", 1_000_000_000)
"""A dollar a request."""
RATE = {"rate": 1, "per": 3600.0}
QUANTITIES: dict[str, tuple[dict[str, Any], str]] = {
    "requests": ({"requests": {**RATE, "burst": 1}}, "rate_limit_exceeded"),
    "tokens": ({"tokens": {**RATE, "burst": 15}}, "tokens_exceeded"),
    "prompt tokens": ({"tokens": {**RATE, "burst": 5}, "weights": {"prompt": 1, "completion": 0}}, "tokens_exceeded"),
    "completion tokens": ({"tokens": {**RATE, "burst": 10}, "weights": {"prompt": 0, "completion": 1}}, "tokens_exceeded"),
    "concurrent": ({"concurrent": 1}, "concurrency_exceeded"),
    "queued": ({"queued": 1}, "concurrency_exceeded"),
    "bytes": ({"bytes": {**RATE, "burst": 100}}, "rate_limit_exceeded"),
    "elements": ({"elements": {**RATE, "burst": 5}}, "rate_limit_exceeded"),
    "budget of requests": ({"budget": {"amount": 1, "unit": "requests"}}, "insufficient_quota"),
    "budget of tokens": ({"budget": {"amount": 15}}, "insufficient_quota"),
    "money": ({"budget": {"amount": 1, "unit": "usd", "window": "day"}}, "insufficient_quota"),
    "rolling money": ({"budget": {"amount": 1, "unit": "usd", "window": {"rolling": 3600}}}, "insufficient_quota"),
    "calls of a session": ({"session": {"calls": 1}}, "session_exceeded"),
    "tokens of a session": ({"session": {"tokens": 15}}, "session_exceeded"),
}
"""What one request uses up of each, and the code of the next."""
OTHER: dict[str, dict[str, str]] = {
    "key": {"id": "other"},
    "user": {"user": "other"},
    "group": {"groups": "other"},
    "tenant": {"tenant": "other"},
    "agent": {"agent": "other"},
    "session": {"session": "other"},
    "model": {"model": "other"},
    "key_model": {"model": "other"},
    "tenant_model": {"model": "other"},
    "user_model": {"model": "other"},
    "operation": {"operation": "other"},
    "global": {},
}
"""How a request differs that has a bucket of its own."""
SAME: dict[str, dict[str, str]] = {
    "user": {"id": "other"},
    "group": {"id": "other"},
    "tenant": {"id": "other", "user": "other"},
    "agent": {"id": "other"},
    "model": {"id": "other", "tenant": "other"},
    "tenant_model": {"id": "other", "user": "other"},
    "user_model": {"id": "other"},
    "operation": {"model": "other", "tenant": "other"},
    "global": {"id": "other", "tenant": "other", "model": "other", "operation": "other"},
}
"""How a request differs that shares the bucket."""


def asked(quantity: str, **differs: str) -> tuple[Principal, InferenceRequest]:
    who = {"id": "ci", "tenant": "acme", "user": "alice", "groups": "staff", "agent": "bot", "session": "s1", **differs}
    caller = Principal(
        who["id"], who["tenant"], "api_key", ("*",), user=who["user"], groups=(who["groups"],), agent=who["agent"], session=who["session"]
    )
    operation = differs.get("operation", "infer" if quantity == "elements" else "chat")
    if quantity == "elements" and "operation" in differs:
        operation = "infer"  # nothing else has tensors
    request = InferenceRequest(WireApi(operation), b"/", differs.get("model", "m"), {}, None, prompt_tokens=5, max_tokens=10)
    request.size, request.price = 100, DOLLAR
    return caller, request


Ask = Callable[[Principal, InferenceRequest], object]


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(Path(tmp_path_factory.mktemp("r"))).start()
    yield server
    server.stop()


@pytest.fixture
def server(redis: RedisServer) -> Iterator[Server]:
    made = Server(redis.socket)
    made.said("FLUSHALL")
    yield made
    made.close()


def local(limit: LimitSpec, places: bool, server: Server) -> list[Ask]:
    limiter = LocalLimiter(LimitRules([limit], places), BucketRegistry(), estimate=estimate, clock=FakeClock())

    def ask(caller: Principal, request: InferenceRequest) -> object:
        try:
            return limiter.reserve(caller, request)
        except GatehouseError as error:
            return error

    return [ask]


def shared(limit: LimitSpec, places: bool, server: Server) -> list[Ask]:
    """Two replicas."""
    found: list[Ask] = []
    for number in range(2):
        member = Member(server, [], number).up()
        member.limiter = RedisLimiter(LimitRules([limit], places), member.shared, member.pots, estimate=estimate)
        found.append(member.asked)
    return found


CELLS = [(quantity, per) for quantity in QUANTITIES for per in get_args(Per)]


def accepted(limit: LimitSpec) -> str:
    try:
        check_limit(limit, "limits[0]", lambda path, message: ConfigError(message, path=path))
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("backend", [local, shared])
@pytest.mark.parametrize(("quantity", "per"), CELLS, ids=[f"{quantity} per {per}" for quantity, per in CELLS])
def test_a_cell_is_enforced_or_refused_at_load(quantity: str, per: str, backend: Callable[..., list[Ask]], server: Server) -> None:
    settings, code = QUANTITIES[quantity]
    limit = msgspec.convert({"name": "cell", "per": per, **settings}, LimitSpec)
    if "session" in settings and per != "session":
        assert accepted(limit) == f"limits[0].session: bounds single sessions, but 'per' is {per}; say 'per: session'"
        return
    assert accepted(limit) == ""
    replicas = backend(limit, quantity == "queued", server)
    first = replicas[0](*asked(quantity))
    assert not isinstance(first, GatehouseError), first
    refused = replicas[-1](*asked(quantity, **SAME.get(per, {})))
    assert isinstance(refused, LimitExceeded) and refused.status == 429 and refused.code == code
    if OTHER[per] and not (quantity == "elements" and per == "operation"):
        passed = replicas[-1](*asked(quantity, **OTHER[per]))
        assert not isinstance(passed, GatehouseError), passed


@pytest.mark.parametrize("quantity", QUANTITIES)
def test_leased_is_for_rates_and_refused_at_load_for_all_else(quantity: str) -> None:
    settings, _ = QUANTITIES[quantity]
    limit = msgspec.convert({"name": "cell", "precision": "leased", "per": "session", **settings}, LimitSpec)
    what = next((name for name in ("concurrent", "queued", "budget", "session") if name in settings), "")
    assert accepted(limit) == (
        f"limits[0].precision: leased is for rates, and this limit has {what!r}, which is always exact; give {what!r} a limit of its own"
        if what
        else ""
    )


def test_the_table_has_every_scope_and_everything_that_a_limit_can_count() -> None:
    assert set(OTHER) == set(get_args(Per))
    counted = {name for settings, _ in QUANTITIES.values() for name in settings} - {"weights"}
    assert counted == {"requests", "tokens", "bytes", "elements", "concurrent", "queued", "budget", "session"}
