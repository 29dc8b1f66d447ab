"""Settings of how a new model or engine is tried on real traffic."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from gateway.core.spec import Name, Spec, Timeout

Share = Annotated[float, Meta(gt=0, le=1)]


class ShadowSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A sample of a model's requests is also put to another model, whose answers nobody gets.

    model: the candidate. share, key: of the requests; those with the same key are mirrored together, as in `routing.key`; `request`: each
    by itself. timeout: seconds from the end of the request to the end of the candidate's answer. concurrency, queue: mirrored requests that
    run and wait at once, of the process; workers have equal shares. spare: the share of the candidate's slots that they leave free.
    compare: whether texts are compared.
    """

    model: Name
    share: Share = 0.01
    key: Annotated[str, Meta(pattern=r"^(request|prefix|session|tenant|key|header:[A-Za-z0-9-]+)$")] = "prefix"
    timeout: Timeout = 60.0
    concurrency: Annotated[int, Meta(ge=1, le=1024)] = 4
    queue: Annotated[int, Meta(ge=1, le=4096)] = 64
    spare: Annotated[float, Meta(ge=0, lt=1)] = 0.25
    compare: bool = True
