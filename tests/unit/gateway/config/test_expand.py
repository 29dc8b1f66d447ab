"""One engine as several: copies, and the addresses of a name."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gateway.config.expand import OnMachine, copies, expanded, merged_with_copies, with_copies
from gateway.config.fleet_rules import check
from gateway.config.merge import Merged
from gateway.core.errors import ConfigError
from gateway.core.host_port import HostPort
from gateway.core.joining import host_of
from gateway.core.specs import ClientTlsSpec, ConfigSpec, EngineSpec, LifecycleSpec, ModelSpec, PoolMemberSpec
from gateway.core.specs.fleet import DnsSpec, JoinedSpec, PlaceSpec, ScaleSpec
from gateway.transport.address import parse_address


def chat(**settings: Any) -> EngineSpec:
    return EngineSpec(name="chat", runtime="llama.cpp", model="/m.gguf", **settings)


def config(*engines: EngineSpec, pool: tuple[Any, ...] = ("chat",)) -> ConfigSpec:
    return ConfigSpec(version=1, engines=engines, models=(ModelSpec(name="m", pool=pool),))


def pool(spec: ConfigSpec) -> list[tuple[str, float]]:
    return [(member.engine, member.weight) for member in spec.models[0].pool if isinstance(member, PoolMemberSpec)]


def test_nothing_to_expand_is_the_same_object() -> None:
    spec = config(chat())
    assert with_copies(spec) is spec and expanded(spec, {}) is spec


def test_copies_take_the_settings_and_the_devices_in_turn_but_no_lifecycle() -> None:
    engine = chat(scale=ScaleSpec(min=1, max=4, devices=("cuda:1", "cuda:2")), device="cuda:0", lifecycle=LifecycleSpec(pinned=True))
    made = copies(engine)
    assert [(copy.name, copy.device) for copy in made] == [("chat~2", "cuda:1"), ("chat~3", "cuda:2"), ("chat~4", "cuda:1")]
    assert all(copy.scale is None and not copy.lifecycle.pinned and copy.model == "/m.gguf" for copy in made)


def test_pools_name_the_copies_with_the_weight_and_model_of_their_member() -> None:
    spec = with_copies(config(chat(scale=ScaleSpec(max=2)), pool=(PoolMemberSpec(engine="chat", weight=2.0, model="x"),)))
    after = expanded(spec, {})
    assert pool(after) == [("chat", 2.0), ("chat~2", 2.0)]
    assert all(isinstance(member, PoolMemberSpec) and member.model == "x" for member in after.models[0].pool)
    assert with_copies(spec) is spec, "copies are added once"


def test_a_copy_of_an_engine_of_the_store_has_its_revision() -> None:
    merged = merged_with_copies(Merged(config(chat(scale=ScaleSpec(max=3))), {("engines", "chat"): 7}))
    assert merged.revisions == {("engines", "chat"): 7, ("engines", "chat~2"): 7, ("engines", "chat~3"): 7}


def vllm(url: str = "https://vllm.example:8443/v1", **settings: Any) -> EngineSpec:
    settings.setdefault("dns", DnsSpec())
    return EngineSpec(name="vllm", runtime="external", url=url, **settings)


def test_each_address_is_an_engine_that_keeps_the_name_for_requests_and_certificates() -> None:
    after = expanded(config(vllm(), pool=("vllm",)), {"vllm": (HostPort("10.0.0.1", 8443), HostPort("fd00::1", 8443))})
    assert [engine.name for engine in after.engines] == ["vllm@10.0.0.1:8443", "vllm@[fd00::1]:8443"]
    assert pool(after) == [("vllm@10.0.0.1:8443", 1.0), ("vllm@[fd00::1]:8443", 1.0)]
    address = parse_address(after.engines[1].url or "")
    assert (address.host, address.host_header, address.dial) == ("vllm.example", b"vllm.example:8443", ("fd00::1", 8443))


def test_a_name_without_addresses_is_an_engine_that_nobody_can_reach() -> None:
    after = expanded(config(vllm(), pool=("vllm",)), {})
    assert pool(after) == [("vllm", 1.0)]
    address = parse_address(after.engines[0].url or "")
    assert address.dial == ("", 0)


def test_a_service_weighs_its_addresses_and_is_verified_by_its_domain() -> None:
    engine = vllm("https://_vllm._tcp.models.example", dns=DnsSpec(records="srv"), tls=ClientTlsSpec(ca="/ca.pem"))
    after = expanded(config(engine, pool=("vllm",)), {"vllm": (HostPort("10.0.0.1", 1, 30), HostPort("10.0.0.2", 2, 10))})
    assert pool(after)[0][1] == 1.0 and abs(pool(after)[1][1] - 1 / 3) < 1e-9
    first = after.engines[0]
    assert first.tls == ClientTlsSpec(ca="/ca.pem", server_name="models.example")
    assert parse_address(first.url or "").host_header == b"models.example"


def test_a_machine_brings_an_engine_whose_settings_are_the_configurations_alone() -> None:
    engine = EngineSpec(name="chat", runtime="external", joined=JoinedSpec(), clearance=("public",), weight=2.0)
    tls = ClientTlsSpec(ca="/ca.pem", cert="/c.pem", key="/k.pem")
    brought = {"chat": (OnMachine("gpu-1", host_of("gpu-1", "chat"), HostPort("10.0.0.5", 8443), tls),)}
    after = expanded(config(engine), {}, brought)
    assert pool(after) == [("chat@gpu-1", 1.0)]
    (made,) = after.engines
    assert (made.clearance, made.weight, made.tls, made.foreign) == (("public",), 2.0, tls, False)
    address = parse_address(made.url or "")
    assert (address.scheme, address.dial) == ("https", ("10.0.0.5", 8443)) and address.host.endswith(".gpu-1.joined.gatehouse")
    assert made.health.metrics is None
    (nowhere,) = expanded(config(engine), {}).engines
    assert nowhere.name == "chat" and parse_address(nowhere.url or "").dial == ("", 0)


def test_an_engine_that_is_placed_nowhere_waits_for_whoever_places_it() -> None:
    place = PlaceSpec(runtime="llama.cpp", model="m.gguf")
    engine = EngineSpec(name="chat", runtime="external", joined=JoinedSpec(place=place), clearance=("public",))
    spec = ConfigSpec(version=1, engines=(engine,), models=(ModelSpec(name="m", pool=("chat",)),))
    (nowhere,) = expanded(spec, {}).engines
    assert (nowhere.name, nowhere.runtime, nowhere.url, nowhere.clearance) == ("chat", "llama.cpp", None, ("public",))
    with pytest.raises(ConfigError) as error:
        wrong = PlaceSpec(runtime="llama.cpp", model="m.gguf", options={"confine": False})
        check(msgspec.structs.replace(engine, joined=JoinedSpec(place=wrong)), "engines[0]", lambda path, why: ConfigError(why, path=path))
    assert error.value.path == "engines[0].joined.place.options.confine"


def test_of_a_placed_engine_as_many_slots_count_as_were_ordered_whatever_the_machine_says() -> None:
    brought = {"chat": (OnMachine("gpu-1", host_of("gpu-1", "chat"), HostPort("10.0.0.5", 8443), ClientTlsSpec()),)}
    for ordered, ours, counts in ((4, None, 4), (4, 2, 2), (None, None, None)):
        joined = JoinedSpec(place=PlaceSpec(runtime="llama.cpp", model="m.gguf", slots=ordered))
        engine = EngineSpec(name="chat", runtime="external", joined=joined, slots=ours)
        made = expanded(ConfigSpec(version=1, engines=(engine,), models=(ModelSpec(name="m", pool=("chat",)),)), {}, brought)
        assert [one.slots for one in made.engines] == [counts]
