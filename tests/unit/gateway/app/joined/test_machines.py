"""What a gateway makes of its machines: who may bring which engine, over a real store and a clock that the test turns."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from gateway.app.gateway import Gateway
from gateway.app.joined.machines import JoinedMachines, parse_address, token_parts
from gateway.config.merge import Merged
from gateway.core.errors import AuthenticationError, GatehouseError
from gateway.core.host_port import HostPort
from gateway.core.joining import Beat, EngineReport, Joining, JoinToken, token_hash
from gateway.core.specs import ConfigSpec, EngineSpec, StoreSpec
from gateway.core.specs.fleet import JoinedSpec
from gateway.core.tasks import TaskOwner
from gateway.routing.leases import Unknown
from tests.unit.gateway.routing.test_leases import LEASE, Clock

TOKEN = "ghj_abc_" + "s" * 43


def config(upstreams: tuple[str, ...] = (), stored: bool = False, **joined: Any) -> Merged:
    engine = EngineSpec(name="chat", runtime="external", joined=JoinedSpec(**{"machines": ("gpu-*",), **joined}), clearance=("public",))
    spec = ConfigSpec(version=1, engines=(engine,), store=StoreSpec(upstreams=upstreams))
    return Merged(spec, {("engines", "chat"): 1} if stored else {})


def joining(name: str) -> Joining:
    public = Ed25519PrivateKey.generate().public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    return Joining(name=name, public_key=b64encode(public).decode())


class House:
    def __init__(self, gateway: Gateway, folder: Path) -> None:
        self.clock, self.changes, self.events = Clock(), 0, list[tuple[str, str, dict[str, Any]]]()
        self.store, self.owner = gateway.store_link.store, TaskOwner("test")
        told = (gateway.fleet.registry, self._changed, lambda *event: self.events.append(event), self.owner)
        self.machines = JoinedMachines(self.store, self.store.derived, folder, "gw-1", self.clock, *told)  # type: ignore[arg-type]

    def _changed(self) -> None:
        self.changes += 1

    async def token(self, text: str = TOKEN, **fields: Any) -> None:
        made = JoinToken(**{"hash": token_hash(text), "machines": ("gpu-*",), "engines": ("chat",), "expires": 2000.0, "left": 5, **fields})
        await self.store.create("join_tokens", token_parts(text)[0], msgspec.to_builtins(made), actor="test")

    async def join(self, name: str, text: str = TOKEN) -> None:
        await self.machines.join(text, joining(name))

    async def there(self, name: str, address: str = "10.0.0.5:8443", engine: str = "chat", state: Any = "ready") -> None:
        said = Beat(session="", sequence=1, address=address, engines=(EngineReport(name=engine, state=state),))
        with pytest.raises(Unknown) as begun:
            await self.machines.beat(name, said)
        await self.machines.beat(name, msgspec.structs.replace(said, session=begun.value.session))

    def bring(self, merged: Merged | None = None) -> list[tuple[str, HostPort]]:
        return [(one.machine, one.place) for one in self.machines.members(merged or config())["chat"]]


@pytest.fixture
async def house(gateway: Gateway, tmp_path: Path) -> AsyncIterator[House]:
    made = House(gateway, tmp_path / "machines")
    await made.token()
    yield made
    await made.owner.aclose()


async def test_a_machine_brings_what_its_token_and_the_configuration_allow(house: House) -> None:
    await house.join("gpu-1")
    assert house.bring() == [], "it has not been heard"
    await house.there("gpu-1")
    assert house.bring() == [("gpu-1", HostPort("10.0.0.5", 8443))]
    told = {sample.name: sample.labels for family in house.machines.collect() for sample in family.samples}
    assert told["gatehouse_machine_engine_slots"] == {"machine": "gpu-1", "engine": "chat"}
    assert house.bring(config(machines=("tpu-*",))) == []
    await house.token("ghj_other_" + "t" * 43, engines=("embed",))
    await house.join("gpu-2", "ghj_other_" + "t" * 43)
    await house.there("gpu-2")
    assert [name for name, _ in house.bring()] == ["gpu-1"], "the token of gpu-2 is for another engine"


async def test_an_engine_that_is_not_up_or_not_named_is_not_brought(house: House) -> None:
    for name, fields in {"gpu-1": {"state": "loading"}, "gpu-2": {"engine": "other"}}.items():
        await house.join(name)
        await house.there(name, **fields)
    assert house.bring() == []


@pytest.mark.parametrize(
    ("address", "settings", "used"),
    [
        ("127.0.0.1:8443", {}, False),
        ("127.0.0.1:8443", {"networks": ("127.0.0.0/8",)}, True),
        ("169.254.169.254:80", {}, False),
        ("[::ffff:127.0.0.1]:80", {}, False),
        ("10.0.0.5:8443", {"networks": ("10.1.0.0/16",)}, False),
        ("10.0.0.5:8443", {"stored": True, "upstreams": ("10.1.0.0/16",)}, False),
        ("10.0.0.5:8443", {"stored": True, "upstreams": ("10.0.0.0/16",)}, True),
        ("gpu-1.example:8443", {}, False),
        ("10.0.0.5:0", {}, False),
    ],
)
async def test_where_machines_may_be(house: House, address: str, settings: dict[str, Any], used: bool) -> None:
    await house.join("gpu-1")
    await house.there("gpu-1", address)
    assert bool(house.bring(config(**settings))) is used
    assert used or "is not where machines may be" in house.machines.view("gpu-1")["reason"]


async def test_a_lost_machine_stays_in_its_pools_and_is_out_by_its_probe(house: House) -> None:
    await house.join("gpu-1")
    await house.there("gpu-1")
    engine = EngineSpec(name="chat@gpu-1", runtime="external", joined=JoinedSpec())

    class Well:
        async def probe(self, spec: EngineSpec, address: str, timeout: float) -> None:
            return None

        async def forget(self, engine: str) -> None: ...

        async def aclose(self) -> None: ...

    probe = house.machines.probe(Well())
    assert await probe.probe(engine, "", 1.0) is None
    for _ in range(20):
        house.clock.now += LEASE / 10
        house.machines.leases.look()
    result = await probe.probe(engine, "", 1.0)
    assert result is not None and (result.ok, result.refused) == (False, True)
    assert len(house.bring()) == 1
    other = msgspec.structs.replace(engine, joined=None)
    assert await probe.probe(other, "", 1.0) is None, "an engine that is no machine's has no lease"
    assert [event for event, *_ in house.events] == ["machine_admitted", "machine_joined", "machine_lost"]


async def test_a_drained_machine_brings_nothing_and_a_removed_one_is_forgotten(house: House) -> None:
    await house.machines.start()
    await house.join("gpu-1")
    await house.there("gpu-1")
    kept = await house.store.get("machines", "gpu-1")
    await house.store.update("machines", "gpu-1", {**kept.body, "drained": True}, actor="test")
    await house.machines.start()
    assert house.bring() == []
    await house.store.update("machines", "gpu-1", kept.body, actor="test")
    await house.machines.start()
    assert len(house.bring()) == 1
    await house.store.delete("machines", "gpu-1", actor="test")
    await house.machines.start()
    assert house.bring() == [] if house.machines.members(config()) else True
    assert await house.machines.key_of("gpu-1", ask=True) is None and house.machines.leases.machines == {}


async def test_tokens(house: House) -> None:
    await house.token("ghj_once_" + "u" * 43, left=1)
    await house.join("gpu-1", "ghj_once_" + "u" * 43)
    for name, text in (
        ("gpu-2", "ghj_once_" + "u" * 43),
        ("gpu-2", "ghj_abc_wrong"),
        ("gpu-2", "ghj_none_x"),
        ("gpu-2", "x" * 200),
        ("tpu-1", TOKEN),
    ):
        with pytest.raises(AuthenticationError):
            await house.join(name, text)
    with pytest.raises(GatehouseError) as taken:
        await house.join("gpu-1")
    assert taken.value.code == "name_taken"
    house.clock.now = 2000.0
    with pytest.raises(AuthenticationError):
        await house.join("gpu-2")
    assert (await house.store.get("join_tokens", "abc")).body["left"] == 5, "a refused join uses nothing"


async def test_a_machine_that_asks_again_before_it_was_answered_is_taken_in(house: House) -> None:
    """Its first request is answered late, as one of two that look at the same moment: neither finds it yet."""
    public = b64encode(Ed25519PrivateKey.generate().public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)).decode()
    asked = Joining(name="gpu-1", public_key=public)
    late = await house.machines._token(TOKEN, "gpu-1", told=True)
    await house.machines.join(TOKEN, asked)
    await house.machines._use(*late, asked)
    assert [event for event, *_ in house.events] == ["machine_admitted"]
    await house.there("gpu-1")
    assert len(house.bring()) == 1
    with pytest.raises(GatehouseError) as taken:
        await house.machines._use(*late, msgspec.structs.replace(asked, public_key=b64encode(bytes(32)).decode()))
    assert taken.value.code == "name_taken"


@pytest.mark.parametrize("uses", [1, 3])
async def test_a_machine_that_asks_at_two_replicas_at_once_is_in(house: House, monkeypatch: pytest.MonkeyPatch, uses: int) -> None:
    text, asked, real = "ghj_few_" + "u" * 43, joining("gpu-1"), house.machines._stored
    await house.token(text, left=uses)

    async def late(name: str) -> Any:
        monkeypatch.setattr(house.machines, "_stored", real)
        await house.machines.join(text, asked)
        return None  # as it was before

    monkeypatch.setattr(house.machines, "_stored", late)
    assert (await house.machines.join(text, asked)).name == "gpu-1"
    monkeypatch.setattr(house.machines, "_stored", late)
    with pytest.raises(GatehouseError) as caught:
        await house.machines.join(text, joining("gpu-1"))
    assert caught.value.code == ("invalid_join_token" if uses == 1 else "name_taken")


def test_addresses() -> None:
    assert parse_address("[fd00::1]:8443") == HostPort("fd00::1", 8443)
    for text in ("", ":", "1.2.3.4", "1.2.3.4:x", "1.2.3.4:70000", "a.example:1", "[fe80::1%eth0]:1", "1.2.3.4:١"):
        assert parse_address(text) is None, text


async def test_all_are_heard_once_none_that_has_joined_is_silent(house: House) -> None:
    assert house.machines.all_heard, "there is none"
    await house.join("gpu-1")
    assert not house.machines.all_heard
    await house.there("gpu-1")
    assert house.machines.all_heard
    for _ in range(int(LEASE / 0.1) + 2):
        house.clock.now += 0.1
        house.machines.leases.look()
    assert not house.machines.all_heard
