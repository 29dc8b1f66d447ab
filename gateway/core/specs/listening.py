"""Settings of what the data listener offers to browsers and to WebSockets."""

from __future__ import annotations

from gateway.core.specs.base import Positive, Seconds, Spec, Timeout


class CorsSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Cross-origin access of browsers to the data listener; off while `origins` is empty."""

    origins: tuple[str, ...] = ()
    max_age: Seconds = 600.0


class SocketsSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """WebSockets at `/v1/stream`: how much one may ask for at once, and when one ends on which nothing comes."""

    max_requests: Positive = 128
    max_per_principal: Positive = 64
    ping_interval: Timeout = 20.0
    ping_timeout: Timeout = 20.0
    idle_timeout: Timeout = 600.0
