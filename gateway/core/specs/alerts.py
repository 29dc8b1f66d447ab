"""Settings of alerts: who is told of events. gateway.core.specs exports them with all others."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from gateway.core.secret import Secret
from gateway.core.specs.base import ClientTlsSpec, Name, Spec, Timeout

EventPattern = Annotated[str, Meta(pattern=r"^[a-z0-9_.*]{1,64}$")]


class WebhookSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An address that events are posted to. secret: signs what is sent. events: names of events, with `*` for any run of characters.
    timeout: for one attempt, connecting included."""

    name: Name
    url: Annotated[str, Meta(min_length=1, max_length=2048)]
    secret: Secret
    events: Annotated[tuple[EventPattern, ...], Meta(min_length=1)] = ("budget_used",)
    timeout: Timeout = 5.0
    tls: ClientTlsSpec | None = None


class AlertsSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which events go to which webhooks."""

    webhooks: tuple[WebhookSpec, ...] = ()
