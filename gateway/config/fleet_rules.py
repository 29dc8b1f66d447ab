"""Checks the settings of engines that have rules of their own: `scale`, `dns`, `joined`, `lifecycle.group`, and what goes with requests."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from urllib.parse import urlsplit

from gateway.config.convert import quoted
from gateway.config.url_rules import check_url
from gateway.core.errors import ConfigError
from gateway.core.placing import OPTIONS
from gateway.core.specs import ConfigSpec, EngineSpec
from gateway.core.specs.fleet import DnsSpec, JoinedSpec, MachinesSpec, PlaceSpec, TicketsSpec
from gateway.wire.yamltree import join

OWN_HEADERS = frozenset(
    {"host", "content-length", "content-type", "transfer-encoding", "connection", "keep-alive", "te", "trailer", "upgrade"}
)
"""Headers that Gatehouse sets on a request to an engine; a second one would make the request ambiguous."""
MOST_TICKET_SECONDS = 300.0
MIN_LEASE, MAX_LEASE = 0.3, 60.0
"""Seconds. A shorter one would end with each pause of a busy process."""


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
    if spec.joined is not None:
        _joined(spec, spec.joined, path, error)
    if spec.lifecycle.group is not None and (spec.lifecycle.load != "lazy" or spec.lifecycle.pinned):
        raise error(f"{path}.lifecycle.group", "is for engines that are loaded on demand; set lifecycle.load to lazy, and not pinned")
    _credentials(spec, path, error)


def _credentials(spec: EngineSpec, path: str, error: Callable[[str, str], ConfigError]) -> None:
    """Checks what an engine is asked with."""
    if spec.api_key is not None and not spec.api_key.reveal():
        raise error(f"{path}.api_key", "is empty; remove it where the engine asks for none")
    if spec.api_key is not None and not ((key := spec.api_key.reveal()).isascii() and key.isprintable()):
        raise error(f"{path}.api_key", "holds characters that a header cannot carry; use printable ASCII")
    for name, value in spec.headers.items():
        if not name.replace("-", "").isalnum() or not name.isascii() or not value.isprintable() or not value.isascii():
            raise error(join(f"{path}.headers", name), "is not a valid header; names are letters, digits and '-', values printable ASCII")
        if name.lower() in OWN_HEADERS:
            raise error(join(f"{path}.headers", name), "is a header that Gatehouse sets itself; remove it")


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
        is_port = port.isascii() and port.isdigit() and len(port) < 6 and 0 < int(port) < 65536
        if not _is_address(address.removeprefix("[").removesuffix("]")) or not is_port:
            raise error(f"{path}.dns.servers[{index}]", f"{quoted(server)} is not ADDRESS:PORT, such as 10.0.0.10:53 or [fd00::10]:53")
    for index, network in enumerate(dns.networks):
        try:
            ipaddress.ip_network(network, strict=False)
        except ValueError:
            raise error(f"{path}.dns.networks[{index}]", f"{quoted(network)} is not a network; write 10.0.0.0/8 or fd00::/8") from None


def check_tickets(tickets: TicketsSpec, error: Callable[[str, str], ConfigError]) -> None:
    if not 1.0 <= tickets.expiry <= MOST_TICKET_SECONDS:
        raise error("tickets.expiry", f"must be between 1s and {MOST_TICKET_SECONDS:.0f}s: a ticket is a credential, and holds a slot")


def _joined(spec: EngineSpec, joined: JoinedSpec, path: str, error: Callable[[str, str], ConfigError]) -> None:
    if spec.runtime != "external":
        raise error(f"{path}.joined", f"is only for external engines; '{spec.name}' has the runtime {spec.runtime}")
    for name in ("url", "dns", "api_key", "tls", "headers", "scale"):
        if getattr(spec, name):
            raise error(f"{path}.{name}", "is not for an engine that joined machines bring: the gateway finds and verifies them itself")
    if joined.place is not None:
        _place(joined.place, f"{path}.joined.place", error)
    for index, network in enumerate(joined.networks):
        try:
            ipaddress.ip_network(network, strict=False)
        except ValueError:
            raise error(f"{path}.joined.networks[{index}]", f"{quoted(network)} is not a network; write 10.0.0.0/8 or fd00::/8") from None


def _place(place: PlaceSpec, path: str, error: Callable[[str, str], ConfigError]) -> None:
    if place.fallback is not None and place.device == "cpu":
        raise error(f"{path}.fallback", "is for engines on GPUs; the device is cpu, so remove it")
    for name in place.options:
        if name not in OPTIONS[place.runtime]:
            raise error(join(f"{path}.options", name), "is not for an engine that is placed on machines; leave it out")


def machines(spec: MachinesSpec, error: Callable[[str, str], ConfigError]) -> None:
    """Checks the settings of machines that join."""
    if not MIN_LEASE <= spec.lease <= MAX_LEASE:
        raise error("machines.lease", f"is {spec.lease:g} s; write {MIN_LEASE:g} to {MAX_LEASE:g} seconds")


def check_sharing(spec: ConfigSpec, error: Callable[[str, str], ConfigError]) -> None:
    """Checks the settings of models that replicas share."""
    sharing = spec.model_sharing
    if sharing.store is not None and sharing.store.endpoint is not None:
        check_url(sharing.store.endpoint, "model_sharing.store.endpoint", error, "use access_key and secret_key")
    if sharing.directory is None:
        return
    if spec.store.url == "sqlite":
        raise error(
            "model_sharing.directory",
            "needs a store that the replicas share, and this one is SQLite: give store.url, or use model_dirs",
        )
    for name in ("listen", "store"):
        if getattr(sharing, name) is not None:
            raise error(
                f"model_sharing.{name}", "is for replicas whose model files are not in one directory; remove it, or model_sharing.directory"
            )


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
