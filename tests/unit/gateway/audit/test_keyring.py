"""Data keys in a process: nonces, what a text is bound to, how long a key is used, and that a dropped one is gone."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from gateway.audit.keyring import DataKey, KeyRing, envelope_of
from gateway.audit.record import Envelope
from gateway.core.clock import FakeClock
from gateway.core.errors import GatehouseError, MasterUnavailable, Shredded, StoreUnavailable
from gateway.core.secret import Secret
from gateway.core.tasks import TaskOwner
from gateway.core.vault import DataKeyGiven
from gateway.core.waiting import Signal, as_future

KEY = bytes(range(32))


def sealed(key: DataKey, text: bytes = b"text", bound: bytes = b"here") -> Envelope:
    found = envelope_of(msgspec.json.decode(key.seal(text, bound)))
    assert found is not None
    return found


def test_a_text_opens_for_its_own_record_alone() -> None:
    key = DataKey("dk-1", "acme", 1, KEY)
    found = sealed(key)
    assert DataKey("dk-1", "acme", 1, KEY).open(found, b"here") == b"text"
    for broken, bound in (
        (found, b"elsewhere"),
        (msgspec.structs.replace(found, n=found.n + 1), b"here"),
        (msgspec.structs.replace(found, salt="00" * 16), b"here"),
        (msgspec.structs.replace(found, data=b"AAAA" + found.data[4:]), b"here"),
        (msgspec.structs.replace(found, data=b""), b"here"),
        (msgspec.structs.replace(found, salt="no hex"), b"here"),
        (msgspec.structs.replace(found, n=1 << 100), b"here"),
    ):
        with pytest.raises(ValueError, match="not encrypted with this key"):
            key.open(broken, bound)
    with pytest.raises(ValueError, match="not encrypted with this key"):
        DataKey("dk-1", "acme", 1, bytes(32)).open(found, b"here")


def test_no_nonce_is_used_twice_under_one_derived_key() -> None:
    mine, other = DataKey("dk-1", "acme", 1, KEY, uses=3), DataKey("dk-1", "acme", 1, KEY, uses=3)
    found = [sealed(key) for _ in range(10) for key in (mine, other)]
    used = [(one.salt, one.n) for one in found]
    assert len(set(used)) == len(used)
    assert {one.n for one in found} == {1, 2, 3}, "a process counts, and derives another key once it has counted to the bound"
    assert len({one.salt for one in found}) == 8


def test_a_dropped_key_seals_and_opens_nothing() -> None:
    key = DataKey("dk-1", "acme", 1, KEY)
    found = sealed(key)
    key.drop()
    assert key.gone
    for call in (lambda: key.seal(b"x", b""), lambda: key.open(found, b"here"), key.revealed):
        with pytest.raises(Shredded):
            call()


@pytest.mark.parametrize("value", [None, "x", {}, {"v": 2, "key": "k", "salt": "", "n": 1, "data": ""}, {"lost": "the key was destroyed"}])
def test_what_is_no_envelope_is_none(value: object) -> None:
    assert envelope_of(value) is None


class Source:
    """Gives keys, or fails."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.error: GatehouseError | None = None
        self.gate: asyncio.Event | None = None
        self.version = 1

    async def __call__(self, tenant: str) -> DataKeyGiven:
        self.asked.append(tenant)
        version = self.version
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        return DataKeyGiven(id=f"dk-{tenant}-{version}", tenant=tenant, version=version, key=Secret(KEY.hex()), seconds=100.0)


class Bench:
    def __init__(self, capacity: int = 10) -> None:
        self.clock, self.source, self.owner = FakeClock(), Source(), TaskOwner("test")
        self.ring = KeyRing(self.source, self.owner, self.clock, capacity)

    async def key(self, tenant: str = "acme") -> DataKey:
        found = self.ring.current(tenant)
        return await as_future(found) if isinstance(found, Signal) else found


async def test_many_who_need_a_key_ask_once_and_then_nobody_does() -> None:
    bench = Bench()
    found = await asyncio.gather(*(bench.key() for _ in range(20)))
    assert len(set(map(id, found))) == 1 and bench.source.asked == ["acme"]
    assert bench.ring.current("acme") is found[0]


async def test_a_key_is_asked_for_anew_at_half_its_time_beside_the_work() -> None:
    bench = Bench()
    key = await bench.key()
    bench.clock.advance(51)
    assert bench.ring.current("acme") is key, "nobody waits for that"
    while len(bench.owner):
        await asyncio.sleep(0)
    assert len(bench.source.asked) == 2 and bench.ring.left("acme") == 100.0


async def test_a_master_that_is_away_disturbs_nobody_until_the_time_is_over_then_it_fails_closed() -> None:
    bench = Bench()
    key = await bench.key()
    bench.source.error = MasterUnavailable("away")
    bench.clock.advance(99)
    assert bench.ring.current("acme") is key
    while len(bench.owner):
        await asyncio.sleep(0)
    bench.clock.advance(2)
    with pytest.raises(MasterUnavailable):
        await bench.key()
    asked = len(bench.source.asked)
    with pytest.raises(MasterUnavailable):
        bench.ring.current("acme")
    assert len(bench.source.asked) == asked, "after a failure nobody asks for a second"
    bench.source.error = None
    bench.clock.advance(2)
    assert (await bench.key()).id == key.id


async def test_a_master_that_stays_away_is_told_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    caplog.set_level("INFO")

    async def fails(tenant: str, seconds: float) -> None:
        with pytest.raises(MasterUnavailable):
            await bench.key(tenant)
        bench.clock.advance(seconds)

    bench.source.error = MasterUnavailable("away")
    for number in range(31):
        await fails(f"t{number}", 2.0)
    await fails("acme", 2.0)
    bench.source.error = MasterUnavailable("sealed")
    await fails("acme", 2.0)
    bench.source.error = None
    await bench.key()
    assert [record.getMessage() for record in caplog.records] == [
        "there is no data key for the texts of the tenant 't0': away",
        "there are still no data keys (30 more attempts): away",
        "there is no data key for the texts of the tenant 'acme': sealed",
        "there are data keys again, after 33 failed attempts",
    ]


async def test_a_pause_of_this_process_while_a_key_is_fetched_costs_nobody_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, paused = asyncio.get_running_loop(), [0.0]
    time_of = loop.time
    monkeypatch.setattr(loop, "time", lambda: time_of() + paused[0])
    bench = Bench()
    gate = bench.source.gate = asyncio.Event()
    waiting = asyncio.ensure_future(bench.key())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert bench.source.asked == ["acme"]
    paused[0] = 40.0
    for _ in range(3):
        await asyncio.sleep(0)
    gate.set()
    assert (await waiting).id == "dk-acme-1"


async def test_a_drop_overtakes_an_answer_that_is_on_its_way() -> None:
    bench = Bench()
    bench.source.gate = asyncio.Event()
    waiting = asyncio.ensure_future(bench.key())
    while not bench.source.asked:
        await asyncio.sleep(0)
    bench.source.version = 2
    bench.ring.drop("acme")
    bench.source.gate.set()
    assert (await waiting).id == "dk-acme-2" and len(bench.source.asked) == 2


async def test_what_happens_to_others_keys_makes_nobody_ask_again() -> None:
    bench = Bench()
    bench.source.gate = asyncio.Event()
    waiting = asyncio.ensure_future(bench.key("globex"))
    while not bench.source.asked:
        await asyncio.sleep(0)
    bench.ring.drop("acme")
    bench.source.gate.set()
    await waiting
    assert bench.source.asked == ["globex"]
    bench.source.gate.clear()
    waiting = asyncio.ensure_future(bench.key("acme"))
    while bench.source.asked != ["globex", "acme"]:
        await asyncio.sleep(0)
    bench.ring.drop(None)
    bench.source.gate.set()
    await waiting
    assert bench.source.asked == ["globex", "acme", "acme"], "that concerns all"


async def test_dropping_takes_the_key_from_who_has_it() -> None:
    bench = Bench()
    key, other = await bench.key(), await bench.key("globex")
    bench.ring.drop("acme")
    assert key.gone and not other.gone
    bench.ring.drop(None)
    assert other.gone


async def test_a_process_remembers_so_many_tenants() -> None:
    bench = Bench(capacity=2)
    for tenant in ("a", "b", "c"):
        await bench.key(tenant)
    assert isinstance(bench.ring.current("a"), Signal)
    bench.source.error = StoreUnavailable("away")
    for number in range(5):
        with pytest.raises(StoreUnavailable):
            await bench.key(f"x{number}")
    assert len(bench.ring._failed) <= 2
    await bench.owner.aclose()
