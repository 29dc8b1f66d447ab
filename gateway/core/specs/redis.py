"""The settings of the Redis that replicas share."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from gateway.core.secret import Secret
from gateway.core.specs.base import ClientTlsSpec, Positive, Spec, Timeout

Prefix = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,63}$")]


class RedisSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A Redis that holds the state of limits for all replicas and carries hints between them.

    url: redis://, rediss://, unix:// or redis+sentinel://; or sentinels and master, for a Redis that Sentinel watches. timeout: how long
    a request waits for it, in seconds. timeout_ms: the same in milliseconds, as it was named in the first versions. prefix: what all keys
    begin with. tls: for rediss:// and for Sentinel.
    """

    url: Secret | None = None
    sentinels: tuple[str, ...] = ()
    master: str | None = None
    username: str | None = None
    password: Secret | None = None
    sentinel_username: str | None = None
    sentinel_password: Secret | None = None
    timeout: Timeout = 0.05
    timeout_ms: Positive | None = None
    prefix: Prefix = "gatehouse"
    tls: ClientTlsSpec | None = None

    @property
    def patience(self) -> float:
        """Seconds that a request waits at most."""
        return self.timeout if self.timeout_ms is None else self.timeout_ms / 1000
