"""Why no endpoint of a pool takes requests, and when to come again."""

from __future__ import annotations

from typing import Final

from gateway.core.errors import EngineError
from gateway.routing.selectors import Member

MAX_RETRY_AFTER: Final = 60.0


def unavailable(model: str, members: tuple[Member, ...], now: float) -> EngineError:
    """The error for a model none of whose members is open. now: monotonic seconds."""
    loading = [member.endpoint.load_left(now) for member in members if member.endpoint.state == "starting"]
    if loading:  # one of these will serve, whatever the others do
        after = min(min(loading), MAX_RETRY_AFTER)
        return EngineError(f"The model {model} is being loaded.", code="model_loading", status=503, retry_after=after)
    if all(m.endpoint.state in ("down", "unloaded") and m.endpoint.code == "insufficient_memory" for m in members):
        return EngineError(f"The model {model} does not fit into memory.", code="insufficient_memory", status=507)
    back = [m.endpoint.breaker.until - now for m in members if m.endpoint.state == "open" and m.endpoint.breaker.forced is None]
    back += [m.endpoint.retry_at - now for m in members if m.endpoint.state == "unloaded"]
    after = min(max(1.0, min(back, default=1.0)), MAX_RETRY_AFTER)
    if all(member.endpoint.state == "unloaded" for member in members):
        why = next((member.endpoint.code for member in members if member.endpoint.code), None)
        message = f"The model {model} could not be loaded{f' ({why})' if why else ''}."
        return EngineError(message, code="no_healthy_endpoint", status=503, retry_after=after)
    return EngineError(f"No endpoint of {model} is healthy.", code="no_healthy_endpoint", status=503, retry_after=after)
