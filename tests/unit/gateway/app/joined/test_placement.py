"""Which gateway places an engine: the holder of its lease, as its own clock since it was asked for says, whatever paused it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from gateway.app.joined.placement import HOLD, LEAST_HOLD, OLD_SECONDS, OVERTAKEN, TOLD_AFTER, Placement, _Model, _Sent
from gateway.app.joined.placing import Decision, Host, Wish
from gateway.core.errors import GatehouseError, LeaseLost, StoreUnavailable
from gateway.core.joining import PlacedEngine, Room
from gateway.core.placing import SentFile
from gateway.core.specs.fleet import PlaceSpec
from gateway.core.storage import Lease


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now


class Store:
    """Leases of one store. late: seconds for which it lets wait. away: it does not answer."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.late, self.away, self.fence = clock, 0.0, False, 0
        self.lost = False

    async def take_lease(self, name: str, holder: str, seconds: float, *, period: float = 0.0) -> Lease | None:
        self._wait()
        self.fence += 1
        return Lease(name, holder, self.fence, self.clock.now + seconds, 0.0)

    async def renew_lease(self, lease: Lease, seconds: float) -> Lease:
        self._wait()
        if self.lost:
            raise LeaseLost("taken over")
        return lease

    async def finish_lease(self, lease: Lease, *, done: bool) -> None:
        assert not done

    def _wait(self) -> None:
        self.clock.now += self.late
        if self.away:
            raise StoreUnavailable("away")


class Machines:
    serves_on: Any = None
    fences: Any = None


def placement() -> tuple[Placement, Machines, Store, Clock]:
    clock, machines = Clock(), Machines()
    store = Store(clock)
    made = Placement(machines, None, None, store, "a/1", clock, lambda: None, lambda *told: None)  # type: ignore[arg-type]
    return made, machines, store, clock


async def leased(made: Placement) -> None:
    made._keep_lease("chat", wanted=True)
    while made._held["chat"].busy:
        await made._owner.wait(_nothing(), name="turn")


async def _nothing() -> None:
    """One turn of the loop."""


async def test_a_gateway_that_was_paused_for_longer_than_its_lease_has_no_fence_when_it_goes_on() -> None:
    made, machines, store, clock = placement()
    await leased(made)
    assert machines.fences() == {"chat": 1}
    clock.now += HOLD
    assert machines.fences() == {}, "it was paused, and knows it before it has asked the store"
    with pytest.raises(GatehouseError) as caught:
        made._still("chat", 1)
    assert caught.value.code == OVERTAKEN
    store.lost = True
    await leased(made)
    assert machines.fences() == {}
    clock.now += HOLD
    await leased(made)
    assert machines.fences() == {"chat": 2}, "it may place again, under a new number"
    with pytest.raises(GatehouseError):
        made._still("chat", 1)
    await made.aclose()


async def test_a_lease_counts_from_when_it_was_asked_for() -> None:
    made, machines, store, clock = placement()
    store.late = HOLD - 1.0
    await leased(made)
    assert machines.fences() == {"chat": 1}
    clock.now += 1.0
    assert machines.fences() == {}
    await made.aclose()


async def test_a_store_that_is_away_for_a_moment_ends_no_lease_before_its_time() -> None:
    made, machines, store, clock = placement()
    await leased(made)
    store.away = True
    clock.now += HOLD / 2
    await leased(made)
    assert machines.fences() == {"chat": 1}
    clock.now += HOLD / 2
    await leased(made)
    assert machines.fences() == {}
    await made.aclose()


async def test_an_older_version_that_nobody_replaces_gets_no_requests_after_a_while() -> None:
    made, _, _, clock = placement()
    found = {("chat", "gpu-1")}
    made._move(Decision(), [], found)
    clock.now += OLD_SECONDS - 1.0
    made._move(Decision(), [], found)
    assert made._serves_on("chat", "gpu-1", False)
    clock.now += 1.0
    made._move(Decision(), [], found)
    assert not made._serves_on("chat", "gpu-1", False) and made._serves_on("chat", "gpu-2", False)
    made._move(Decision(), [], set())
    assert made._serves_on("chat", "gpu-1", False), "it has been replaced"
    await made.aclose()


async def test_the_lease_is_as_long_as_machines_may_be_silent_within_its_bounds() -> None:
    made, machines, _, clock = placement()
    made._hold = LEAST_HOLD
    await leased(made)
    clock.now += LEAST_HOLD - 0.1
    assert machines.fences() == {"chat": 1}
    clock.now += 0.1
    assert machines.fences() == {}
    await made.aclose()


async def test_an_order_that_fails_at_once_is_not_given_again_before_its_failure_counts() -> None:
    made, _, _, clock = placement()
    wish = Wish("chat", "r1", "llama.cpp", ("gpu-*",), 1, "cpu", False, (1, 0), 1, 1)
    told: list[str] = []
    made._record = lambda event, engine, detail: told.append(event)  # type: ignore[method-assign]
    failed = Room(placed=(PlacedEngine(name="chat", revision="r1", failed="r1", reason="no", code="engine_failed"),))
    host = Host("gpu-1", ("chat",), False, None, 0.0, failed, frozenset())
    made._sent["chat", "gpu-1"] = _Sent("cpu", ordered=clock.now)
    made._learn([host], [wish])
    assert ("chat", "gpu-1") in made._sent and made._barred() == {}, "it may be the failure of an earlier order"
    clock.now += TOLD_AFTER + 0.1
    made._learn([host], [wish])
    assert made._sent == {} and ("chat", "gpu-1") in made._barred() and told == ["engine_not_placed"]
    await made.aclose()


async def test_a_model_whose_file_was_replaced_is_read_again_and_its_failure_still_counts(tmp_path: Path) -> None:
    made, _, _, clock = placement()
    place = PlaceSpec(runtime="llama.cpp", model="chat.gguf")
    file, pair = tmp_path / "chat.gguf", ("chat", "gpu-1")

    async def read(engine: str, place: PlaceSpec) -> _Model:
        data = file.read_bytes()
        sent = SentFile(path=file.name, size=len(data), sha256=hashlib.sha256(data).hexdigest())
        return _Model(place, ((file, sent),), file.name, sent.sha256[:32], looked=clock.now)

    made._model = read  # type: ignore[method-assign]
    for content, code in ((b"one", ""), (b"two", "checksum_mismatch"), (b"2", "model_invalid"), (b"3", "machine_away")):
        file.write_bytes(content)
        before = made._models.get("chat")
        sent = made._sent[pair] = _Sent("cpu")
        if before is None:
            made._look_into("chat", place)
        else:
            made._undone(pair, sent, before.revision, "it changed", code)
            assert made._models["chat"] is before and made._bars.pop(pair).code == code, "until it has been read"
        while made._reading:
            await made._owner.wait(_nothing(), name="turn")
        read_again = made._models["chat"].revision == hashlib.sha256(content).hexdigest()[:32]
        assert read_again == (code != "machine_away"), code
    await made.aclose()
