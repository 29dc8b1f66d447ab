"""The table of wire formats, which maps paths to operations for the server, the pipeline, the key store and the sidecars."""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

from gateway.core.errors import GatehouseError, RequestError
from gateway.core.tickets import OPERATION as TICKETS
from gateway.core.types import Headers, InferenceRequest
from gateway.core.wire import WireApi
from gateway.wire.anthropic import api as anthropic
from gateway.wire.oip import api as oip
from gateway.wire.openai import api as openai
from gateway.wire.openai import engines, generating, tokenizing, transcribing
from gateway.wire.responses import api as responses
from gateway.wire.scan import MAX_NODES

APIS: Final[tuple[WireApi, ...]] = (
    *openai.APIS,
    *engines.APIS,
    *generating.APIS,
    *transcribing.APIS,
    *tokenizing.APIS,
    *anthropic.APIS,
    *responses.APIS,
    *oip.APIS,
)
"""Every operation of every format, one line per format."""
OPERATIONS: Final = (*dict.fromkeys(api.operation for api in APIS), TICKETS)
"""Their names in policies and keys, and the wish to run one directly at a machine."""
_EXACT: Final[dict[bytes, WireApi]] = {path: api for api in APIS for path in api.paths}
_PATTERNS: Final = [api for api in APIS if not api.paths]
_PREFIXES: Final = [api for api in APIS if api.prefix]


def find(path: bytes) -> WireApi | None:
    """The operation of a POST to this path, or None."""
    api = _EXACT.get(path)
    if api is None:
        for pattern in _PATTERNS:
            if pattern.matches(path):
                return pattern
    return api


def is_inference(path: bytes) -> bool:
    """Whether a POST to this path goes through the pipeline."""
    return find(path) is not None


def parse(path: bytes, body: bytes, headers: Headers, max_depth: int = 64, max_nodes: int = MAX_NODES) -> InferenceRequest:
    """The typed view of an inference request. Raises RequestError."""
    api = find(path)
    if api is None:
        raise RequestError("This path does not exist.", code="not_found", status=404)
    return api.parse(path, body, headers, max_depth, max_nodes)


def parse_steps(
    path: bytes, body: bytes, headers: Headers, max_depth: int = 64, max_nodes: int = MAX_NODES
) -> Generator[None, None, InferenceRequest]:
    """The same for a large body, with a pause after every few milliseconds."""
    api = find(path)
    if api is None:
        raise RequestError("This path does not exist.", code="not_found", status=404)
    return api.parse_steps(path, body, headers, max_depth, max_nodes)


class Parser:
    """`parse` and `parse_steps` with the bounds of one configuration. To call its method costs a third of a partial with keywords."""

    __slots__ = ("_depth", "_nodes")

    def __init__(self, max_depth: int, max_nodes: int) -> None:
        self._depth, self._nodes = max_depth, max_nodes

    def parse(self, path: bytes, body: bytes, headers: Headers) -> InferenceRequest:
        return parse(path, body, headers, self._depth, self._nodes)

    def parse_steps(self, path: bytes, body: bytes, headers: Headers) -> Generator[None, None, InferenceRequest]:
        return parse_steps(path, body, headers, self._depth, self._nodes)


def refusal(error: GatehouseError, path: bytes, headers: Headers, request_id: bytes) -> tuple[int, bytes]:
    """The status and the body of an error in the format that owns the path. headers: the request's."""
    api = _owner(path)
    if api is None:
        return error.status, error.body()
    return api.error_status(error), api.error_body(error, headers, request_id)


def identity_lines(path: bytes, request_id: bytes) -> bytes:
    """The header lines in which the format that owns the path tells the request's identifier, besides `x-request-id`."""
    api = _owner(path)
    return b"" if api is None else api.identity_lines(request_id)


def _owner(path: bytes) -> WireApi | None:
    api = _EXACT.get(path)
    if api is None:
        for owner in _PREFIXES:
            if path.startswith(owner.prefix):
                return owner
    return api
