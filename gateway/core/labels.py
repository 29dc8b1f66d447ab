"""Data labels: which labels a request has from its caller, its model and its client. They bound the engines that may see it: an engine that
is not cleared for every label of a request is never asked (gateway.routing.router). A label only ever restricts, so one that was given is
never taken back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from gateway.core.errors import RequestError
from gateway.core.specs.guardrails import LabelSpec
from gateway.core.types import Headers, InferenceRequest, Peer, Principal
from gateway.core.values import UNLABELLED

HEADER: Final = b"x-gatehouse-data-label"
"""Labels that a trusted peer gives to a request, separated by commas."""
REMEMBERED: Final = 4096


class Labels:
    """The labels of one configuration. matches: whether a pattern fits a name."""

    def __init__(self, known: Mapping[str, LabelSpec], matches: Callable[[str, str], bool]) -> None:
        self._known, self._matches = dict(known), matches
        self._of_tenant: dict[str, frozenset[str]] = {}
        self._of_model: dict[str, frozenset[str]] = {}

    def __contains__(self, label: str) -> bool:
        return label in self._known

    def of(self, request: InferenceRequest, principal: Principal, model: str, headers: Headers, peer: Peer) -> frozenset[str]:
        """The labels that a request has before anything has read it. model: the public name. Raises RequestError for a label of a trusted
        peer that is not known here, and for a client's that cannot be read."""
        found = self.of_tenant(principal.tenant) | self.of_model(model)
        if peer.trusted and HEADER in headers:
            found |= self.of_peer(headers, peer)
        if "metadata" in request.fields and (own := request.api.label(request)) in self._known:
            found |= {own}
        return found

    def of_peer(self, headers: Headers, peer: Peer) -> frozenset[str]:
        """What a trusted peer says of a request. Raises RequestError for a label that is not known here."""
        given = headers.get(HEADER) if peer.trusted else None
        return UNLABELLED if given is None else self._named(given)

    def of_metadata(self, body: Mapping[str, Any]) -> frozenset[str]:
        """What a client says of a batch, in `metadata.data_label`."""
        metadata = body.get("metadata")
        own = metadata.get("data_label") if isinstance(metadata, dict) else None
        return frozenset((own,)) if isinstance(own, str) and own in self._known else UNLABELLED

    def of_tenant(self, tenant: str) -> frozenset[str]:
        """What all requests of a tenant have."""
        return self._remembered(self._of_tenant, tenant, lambda spec: spec.tenants)

    def of_model(self, model: str) -> frozenset[str]:
        """What all requests to a model have."""
        return self._remembered(self._of_model, model, lambda spec: spec.models)

    def _remembered(self, memory: dict[str, frozenset[str]], name: str, patterns: Callable[[LabelSpec], Collection[str]]) -> frozenset[str]:
        found = memory.get(name)
        if found is None:
            matches = self._matches
            found = frozenset(label for label, spec in self._known.items() if any(matches(one, name) for one in patterns(spec)))
            if len(memory) >= REMEMBERED:
                memory.clear()
            memory[name] = found
        return found

    def _named(self, given: bytes) -> frozenset[str]:
        names = frozenset(name.strip() for name in given.decode("latin-1").split(","))
        for name in names:
            if name not in self._known:
                header = HEADER.decode()
                shown = ascii(name[:64])
                raise RequestError(
                    f"{header}: {shown} is not a label of this gateway; write one or more, separated by commas.", param=header
                )
        return names
