"""What conditions read of a caller and a request (policies.conditions has the names), looked up only when a condition names it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from gateway.core.types import InferenceRequest, Peer, Principal
from policies.conditions import EARLIEST, LATEST, MAX_ITEMS, UNTIMED, instant

UNBOUNDED: Final = 1 << 53
"""`request.max_tokens` of a request that may generate as much as the engine likes."""
_OF_PRINCIPAL: Final = {f"principal.{name}": name for name in ("id", "tenant", "kind", "user", "agent", "session")}
_LISTS: Final = {f"principal.{name}": name for name in ("groups", "roles", "scopes")}
_OF_LOGIN: Final = {f"principal.{name}": name for name in ("strength", "issuer", "acr")}
_TEXTS: Final = frozenset(f"request.{name}" for name in ("operation", "model", "version", "adapter", "label"))


class TooMany(ValueError):
    """A list that a caller chooses is too long to be read."""


def of_caller(principal: Principal, name: str) -> Any:
    """One fact about a caller."""
    field = _OF_PRINCIPAL.get(name)
    if field is not None:
        return getattr(principal, field)
    field = _LISTS.get(name)
    if field is not None:
        return list(getattr(principal, field))
    if name == "principal.key":
        return principal.id if principal.kind == "api_key" else ""
    login = principal.login
    if name == "principal.auth_time":
        time = None if login is None else login.auth_time
        return UNTIMED if time is None or not EARLIEST <= time <= LATEST else instant(time)
    if name == "principal.amr":
        return [] if login is None else list(login.amr)
    found: str = "" if login is None else getattr(login, _OF_LOGIN[name])
    return "key" if name == "principal.strength" and not found and principal.kind == "api_key" else found


def bound_of(request: InferenceRequest) -> int:
    """`request.max_tokens`: without a bound of its own, a request that generates text is not a small one."""
    bound = request.max_tokens
    if bound > 0:
        return bound
    return UNBOUNDED if request.api.generates else 0


class Asked:
    """Reads the facts of one request. model: the public name. country: of an address, "" if not known. wall: seconds since the epoch."""

    __slots__ = ("country", "model", "peer", "principal", "request", "size", "wall")

    def __init__(
        self,
        principal: Principal,
        request: InferenceRequest,
        model: str,
        peer: Peer,
        size: int,
        country: Callable[[str], str],
        wall: Callable[[], float],
    ) -> None:
        self.principal, self.request, self.model, self.peer, self.size = principal, request, model, peer, size
        self.country, self.wall = country, wall

    def read(self, name: str) -> Any:
        """Raises TooMany; RequestError for a label that cannot be read."""
        if name == "request.max_tokens":
            return bound_of(self.request)
        if name == "source.address":
            return self.peer.address
        if name == "now":
            return instant(self.wall())
        if name.startswith("principal."):
            return of_caller(self.principal, name)
        if name == "source.country":
            return self.country(self.peer.address)
        if name == "source.certificate":
            return self.peer.thumbprint
        return self._of_request(name)

    def _of_request(self, name: str) -> Any:
        request = self.request
        if name == "request.model":
            return self.model
        if name == "request.operation":
            return request.operation
        if name == "request.stream":
            return request.stream
        if name == "request.bytes":
            return self.size
        if name == "request.version":
            return request.version
        if name == "request.adapter":
            return adapter_of(self.model)
        if name == "request.label":
            return request.api.label(request)
        tools = request.api.tools(request)
        if len(tools) > MAX_ITEMS:
            raise TooMany(name)
        return tools


class Present:
    """Reads the facts of a call of the admin listener: there is no request to infer, so everything of `request` is absent."""

    __slots__ = ("country", "peer", "principal", "wall")

    def __init__(self, principal: Principal, peer: Peer, country: Callable[[str], str], wall: Callable[[], float]) -> None:
        self.principal, self.peer, self.country, self.wall = principal, peer, country, wall

    def read(self, name: str) -> Any:
        if name.startswith("principal."):
            return of_caller(self.principal, name)
        if name == "source.address":
            return self.peer.address
        if name == "source.country":
            return self.country(self.peer.address)
        if name == "source.certificate":
            return self.peer.thumbprint
        if name == "now":
            return instant(self.wall())
        return absent(name)


def absent(name: str) -> Any:
    """What a fact of `request` is where there is none."""
    if name in _TEXTS:
        return ""
    if name == "request.tools":
        return []
    return False if name == "request.stream" else 0


def adapter_of(model: str) -> str:
    """What follows the first colon in a model's public name."""
    return model.partition(":")[2]
