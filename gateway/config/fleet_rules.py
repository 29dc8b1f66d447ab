"""Checks the settings of engines of which there are several: `scale` and `dns`."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from urllib.parse import urlsplit

from gateway.config.convert import quoted
from gateway.core.errors import ConfigError
from gateway.core.fleet_specs import DnsSpec
from gateway.core.specs import EngineSpec


def check(spec: EngineSpec, path: str, error: Callable[[str, str], ConfigError]) -> None:
    """Raises ConfigError for the first contradiction."""
    if "~" in spec.name or "@" in spec.name:
        raise error(f"{path}.name", f"{quoted(spec.name)} holds ~ or @, which name copies and addresses of engines; leave them out")
    scale = spec.scale
    if scale is not None:
        if scale.max < scale.min:
            raise error(f"{path}.scale.max", f"is {scale.max}, less than min ({scale.min})")
        if scale.devices and spec.runtime == "external":
            raise error(f"{path}.scale.devices", f"is only for engines that Gatehouse starts; '{spec.name}' is external")
    if spec.dns is not None:
        _dns(spec, spec.dns, path, error)


def _dns(spec: EngineSpec, dns: DnsSpec, path: str, error: Callable[[str, str], ConfigError]) -> None:
    if spec.runtime != "external" or spec.url is None:
        raise error(f"{path}.dns", "is only for external engines, whose url names the host")
    parts = urlsplit(spec.url)
    host = parts.hostname or ""
    if _is_address(host):
        raise error(f"{path}.dns", f"follows a host name, and {host} in the url is an address; remove one of them")
    if dns.records == "srv":
        if not host.startswith("_"):
            raise error(
                f"{path}.url", f"{quoted(host)} is not the name of a service; with records: srv it begins as in _http._tcp.vllm.example"
            )
        if parts.port is not None:
            raise error(f"{path}.url", "names a port, and with records: srv the records do; remove it")
    elif host.startswith("_"):
        raise error(f"{path}.dns.records", f"is 'address', and {quoted(host)} is the name of a service; write records: srv")
    if dns.max_ttl < dns.min_ttl:
        raise error(f"{path}.dns.max_ttl", "is shorter than min_ttl")
    for index, server in enumerate(dns.servers):
        address, _, port = server.rpartition(":")
        if not _is_address(address.removeprefix("[").removesuffix("]")) or not port.isdigit() or not 0 < int(port) < 65536:
            raise error(f"{path}.dns.servers[{index}]", f"{quoted(server)} is not ADDRESS:PORT, such as 10.0.0.10:53 or [fd00::10]:53")
    for index, network in enumerate(dns.networks):
        try:
            ipaddress.ip_network(network, strict=False)
        except ValueError:
            raise error(f"{path}.dns.networks[{index}]", f"{quoted(network)} is not a network; write 10.0.0.0/8 or fd00::/8") from None


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
