"""The paths of OpenAI's first API, which old clients still use: `POST /v1/engines/{id}/completions` is `POST /v1/completions` with the
engine's name as the model."""

from __future__ import annotations

from collections.abc import Generator
from typing import Final
from urllib.parse import unquote

from gateway.core.errors import RequestError
from gateway.core.types import Headers, InferenceRequest
from gateway.core.wire import WireApi
from gateway.wire.json_api import ENCODER
from gateway.wire.openai.api import CompletionsApi

ENGINES: Final = b"/v1/engines/"
_COMPLETIONS: Final = b"/completions"
_LONGEST: Final = 256
_PATH: Final = b"/v1/completions"


class EngineCompletionsApi(CompletionsApi):
    """A body that names a model, too, has the name twice, and is refused."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__()
        self.paths = ()

    def matches(self, path: bytes) -> bool:
        return path.startswith(ENGINES) and path.endswith(_COMPLETIONS) and len(path) > len(ENGINES) + len(_COMPLETIONS)

    def parse(self, path: bytes, body: bytes, headers: Headers, max_depth: int, max_nodes: int) -> InferenceRequest:
        return CompletionsApi.parse(self, _PATH, _named(path, body), headers, max_depth, max_nodes)

    def parse_steps(
        self, path: bytes, body: bytes, headers: Headers, max_depth: int, max_nodes: int
    ) -> Generator[None, None, InferenceRequest]:
        return (yield from CompletionsApi.parse_steps(self, _PATH, _named(path, body), headers, max_depth, max_nodes))


def _named(path: bytes, body: bytes) -> bytes:
    """The body with the name that the path has. Raises RequestError."""
    try:
        name = unquote(path.removeprefix(ENGINES).removesuffix(_COMPLETIONS).decode("latin-1"), errors="strict")
    except UnicodeDecodeError:
        name = ""
    if not name or len(name) > _LONGEST:
        raise RequestError("The engine's name in the path is not valid.", param="model", code="not_found", status=404)
    rest = body.lstrip()
    if rest[:1] != b"{":
        return body  # refused as every other body that is no object
    rest = rest[1:].lstrip()
    return b'{"model":%b%b%b' % (ENCODER.encode(name), b"" if rest[:1] == b"}" else b",", rest)


APIS: Final[tuple[WireApi, ...]] = (EngineCompletionsApi(),)
