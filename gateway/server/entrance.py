"""What each listener requires of a connection before it reads the first request."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from gateway.core.network import Rules
from gateway.core.snapshot import Snapshot


class Entrance(NamedTuple):
    """name: data or admin. trusted: proxies. proxy_protocol: whether these send its header first. rules: who is let in; None: everybody."""

    name: str
    trusted: tuple[str, ...]
    proxy_protocol: str
    rules: Rules | None


EntranceOf = Callable[[Snapshot], Entrance]


def data_entrance(snapshot: Snapshot) -> Entrance:
    listen = snapshot.spec.listen
    return Entrance("data", listen.trusted_peers, listen.proxy_protocol, snapshot.networks)


def admin_entrance(snapshot: Snapshot) -> Entrance:
    listen = snapshot.spec.listen
    return Entrance("admin", listen.admin_trusted_peers, listen.admin_proxy_protocol, snapshot.admin_networks)
