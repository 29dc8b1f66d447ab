"""Settings of `scale` and `dns` that contradict themselves are refused, with what would be right."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.config.fleet_rules import check, check_sharing
from gateway.core.errors import ConfigError
from gateway.core.specs import ConfigSpec, EngineSpec, StoreSpec
from gateway.core.specs.fleet import DnsSpec, ModelSharingSpec, ModelStoreSpec, ScaleSpec


def error(path: str, message: str) -> ConfigError:
    return ConfigError(message, path=path)


def far(url: str = "http://vllm.example:8000", **settings: Any) -> EngineSpec:
    return EngineSpec(name="far", runtime="external", url=url, **settings)


@pytest.mark.parametrize(
    ("engine", "path", "words"),
    [
        (EngineSpec(name="chat~2", runtime="llama.cpp"), "e.name", "~ or @"),
        (EngineSpec(name="far@10.0.0.1:1", runtime="external", url="http://a"), "e.name", "~ or @"),
        (far(scale=ScaleSpec(min=3, max=2)), "e.scale.max", "less than min"),
        (far(scale=ScaleSpec(max=2, devices=("cuda:1",))), "e.scale.devices", "external"),
        (EngineSpec(name="chat", runtime="llama.cpp", dns=DnsSpec()), "e.dns", "external engines"),
        (far("http://10.0.0.1:8000", dns=DnsSpec()), "e.dns", "10.0.0.1"),
        (far("http://[fd00::1]:8000", dns=DnsSpec()), "e.dns", "fd00::1"),
        (far(dns=DnsSpec(records="srv")), "e.url", "_http._tcp"),
        (far("http://_http._tcp.vllm.example:8000", dns=DnsSpec(records="srv")), "e.url", "port"),
        (far("http://_http._tcp.vllm.example", dns=DnsSpec()), "e.dns.records", "srv"),
        (far(dns=DnsSpec(min_ttl=60.0, max_ttl=5.0)), "e.dns.max_ttl", "shorter"),
        (far(dns=DnsSpec(servers=("10.0.0.1:53", "dns.example:53"))), "e.dns.servers[1]", "ADDRESS:PORT"),
        (far(dns=DnsSpec(servers=("10.0.0.1",))), "e.dns.servers[0]", "10.0.0.10:53"),
        (far(dns=DnsSpec(servers=("10.0.0.1:\u0665\u0663",))), "e.dns.servers[0]", "10.0.0.10:53"),
        (far(dns=DnsSpec(servers=("10.0.0.1:\u00b2",))), "e.dns.servers[0]", "10.0.0.10:53"),
        (far(dns=DnsSpec(networks=("10.0.0.0/8", "ten"))), "e.dns.networks[1]", "10.0.0.0/8"),
    ],
)
def test_what_cannot_be(engine: EngineSpec, path: str, words: str) -> None:
    with pytest.raises(ConfigError) as found:
        check(engine, "e", error)
    assert found.value.path == path and words in found.value.message


def test_what_can_be() -> None:
    check(far(dns=DnsSpec(servers=("10.0.0.1:53", "[fd00::1]:53"), networks=("10.0.0.0/8",)), scale=ScaleSpec(max=4)), "e", error)
    check(far("https://_llm._tcp.vllm.example", dns=DnsSpec(records="srv")), "e", error)


@pytest.mark.parametrize(
    ("store", "sharing", "path"),
    [
        ("sqlite", ModelSharingSpec(directory="/srv/models"), "model_sharing.directory"),
        ("postgresql://db/g", ModelSharingSpec(directory="/srv/models", listen="0.0.0.0:1"), "model_sharing.listen"),
        ("postgresql://db/g", ModelSharingSpec(directory="/srv/models", store=ModelStoreSpec(bucket="models")), "model_sharing.store"),
    ],
)
def test_a_directory_that_replicas_share_needs_their_store_and_nothing_that_copies(
    store: str, sharing: ModelSharingSpec, path: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        check_sharing(ConfigSpec(version=1, store=StoreSpec(url=store), model_sharing=sharing), error)
    assert caught.value.path == path
    check_sharing(ConfigSpec(version=1, store=StoreSpec(url="postgresql://db/g"), model_sharing=ModelSharingSpec(directory="m")), error)
    check_sharing(ConfigSpec(version=1), error)
