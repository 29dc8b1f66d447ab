"""What clients are told of what their requests cost: in a header of an answer, or in a trailer field of a stream."""

from __future__ import annotations

from gateway.core.prices import written
from gateway.pipeline.exchange import Exchange


def shows(x: Exchange) -> bool:
    """Whether the client is told."""
    request = x.request
    priced = x.costs is not None or (request is not None and request.price is not None)
    return priced and x.snapshot.spec.usage.cost_header


def in_trailer(x: Exchange) -> bool:
    """What a stream costs is known at its end: it is told in a trailer field (RFC 9110, 6.5), to clients that say they read these."""
    return shows(x) and b"trailers" in x.headers.get(b"te", b"").lower()


def line(x: Exchange) -> bytes:
    """The header line, or trailer field, once the usage is known; of a pipeline, once its steps are over. b"": nothing had a price."""
    costs = _own(x) if x.costs is None else x.costs
    if not costs:
        return b""
    return b"x-gatehouse-cost: %b\r\n" % b", ".join([b"%b %b" % (written(cost), currency.encode()) for currency, cost in costs.items()])


def _own(x: Exchange) -> dict[str, int]:
    usage, request = x.relay.usage() if x.relay is not None else None, x.request
    if usage is None or request is None or request.price is None:
        return {}
    x.usage = usage
    price = request.price
    x.timed(usage)
    return {price.currency: price.cost(usage) + (0 if x.spent is None else x.spent.cost)}
