"""From a path and a body to an InferenceRequest: the OpenAI operations, and `infer` of the Open Inference Protocol."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final
from urllib.parse import quote, unquote

import msgspec
from msgspec import Raw

from gateway.core.errors import EngineError, GatehouseError, GuardrailViolation, RequestError
from gateway.core.types import Headers, InferenceRequest, ResponseHead
from gateway.wire.oip import codec, values
from gateway.wire.openai import requests as openai
from gateway.wire.openai.requests import OPERATIONS

_ENCODER: Final = msgspec.json.Encoder()
HashBody = Callable[[bytes | memoryview], str]
V2_MODELS: Final = b"/v2/models/"
JSON: Final = b"content-type: application/json\r\n"
TRITON_CLIENT: Final = b"python/gevent-http-client"
"""How tritonclient's HTTP client calls itself (the user agent of the library below it)."""
BINARY: Final = b"content-type: application/octet-stream\r\ninference-header-content-length: %d\r\n"


def is_inference(path: bytes) -> bool:
    """Whether a POST to this path goes through the pipeline."""
    return path in OPERATIONS or (path.startswith(V2_MODELS) and path.endswith(b"/infer"))


def parse(path: bytes, body: bytes, headers: Headers, max_depth: int = 64) -> InferenceRequest:
    """The typed view of an inference request. Raises RequestError."""
    if path in OPERATIONS:
        return openai.parse(path, body, max_depth)
    return parse_infer(path, body, headers, max_depth)


class TensorView:
    """What policy reads of an infer request: its texts are the elements of BYTES inputs. json_length: where the JSON part ends."""

    __slots__ = ("json_length", "request", "version")

    def __init__(self, request: codec.InferRequest, version: str, json_length: int | None = None) -> None:
        self.request, self.version, self.json_length = request, version, json_length

    def texts(self) -> list[str]:
        return texts_of(self.request.inputs)

    def replace(self, texts: Sequence[str]) -> None:
        """Tensors are not rewritten: what would have to be is refused."""
        raise GuardrailViolation("A tensor has content that a policy would rewrite.", code="guardrail")

    def detail(self, hash_body: HashBody) -> dict[str, Any]:
        """Version, and the inputs' names, types, shapes and hashes, for the audit record."""
        return {"version": self.version, "inputs": summary(self.request.inputs, hash_body)}


def summary(tensors: Sequence[codec.Tensor], hash_body: HashBody) -> list[dict[str, Any]]:
    """Tensors as plain values, with a hash of their data as it was sent (none where hashes are off) and without the data."""
    found = []
    for t in tensors:
        entry = {"name": t.name, "datatype": t.datatype, "shape": list(t.shape), "elements": t.elements}
        if digest := hash_body(t.raw):
            entry["hash"] = digest
        found.append(entry)
    return found


def json_part(body: bytes, json_length: int | None) -> bytes | memoryview:
    """What of a tensor message the record's body hash covers: the JSON part. Binary tensors have hashes of their own."""
    return body if json_length is None else memoryview(body)[:json_length]


def texts_of(tensors: Sequence[codec.Tensor]) -> list[str]:
    """The elements of the BYTES tensors, in order. Raises TensorError where they are not as the shape says."""
    return [text for tensor in tensors if tensor.datatype == "BYTES" for text in _strings(tensor)]


def _strings(tensor: codec.Tensor) -> list[str]:
    if tensor.binary:
        return [bytes(element).decode("utf-8", "replace") for element in values.split_bytes(tensor)]
    return [value if isinstance(value, str) else str(value) for value in values.json_values(tensor)]


def parse_infer(path: bytes, body: bytes, headers: Headers, max_depth: int) -> InferenceRequest:
    """An infer request, JSON or with binary tensors. Its cost for limits is its elements, as if each were a token."""
    try:
        place = codec.parse_path(unquote(path.decode("latin-1"), errors="strict"))
    except UnicodeDecodeError:
        place = None
    if place is None:
        raise RequestError("There is no such path.", code="not_found", status=404)
    length = codec.header_length(headers.get(codec.HEADER_LENGTH.encode()), len(body))
    openai.check_depth(body if length is None else body[:length], max_depth)
    view = codec.parse_request(body, length)
    elements = sum(tensor.elements for tensor in view.inputs)
    content = JSON if length is None else BINARY % length
    return InferenceRequest(
        "infer",
        path,
        place.model,
        {},
        TensorView(view, place.version, length),
        prompt_tokens=elements,
        content=content,
        raw=body,
        version=place.version,
    )


def infer_path(model: str, version: str, action: str) -> bytes:
    """`/v2/models/{model}[/versions/{version}][/action]`, percent-encoded; `action` may be empty."""
    place = f"/v2/models/{quote(model, safe='')}"
    if version:
        place += f"/versions/{quote(version, safe='')}"
    return (f"{place}/{action}" if action else place).encode()


def target(request: InferenceRequest, name: str | None) -> tuple[bytes, bytes]:
    """(path, body) for an engine that knows the model by `name` (None: by its public one)."""
    if request.operation == "infer":
        return infer_path(name or request.model, request.view.version, "infer"), request.raw
    if name is not None and name != request.model:
        return request.path, _ENCODER.encode({**request.fields, "model": name})
    return request.path, _ENCODER.encode(request.fields)


def rename(request: InferenceRequest, model: str) -> None:
    """An alias becomes the model that it stands for."""
    request.model = model
    if request.operation != "infer":
        request.fields["model"] = Raw(_ENCODER.encode(model))


def parse_answer(head: ResponseHead, body: bytes) -> tuple[codec.InferResponse, int | None]:
    """An engine's infer answer and the length of its JSON part (None: all of it). Raises EngineError when it is not the protocol's."""
    try:
        length = codec.header_length(head.get(codec.HEADER_LENGTH.lower().encode()), len(body))
        return codec.parse_response(body, length), length
    except RequestError as error:
        raise EngineError(f"The engine's answer is not what the Open Inference Protocol says: {error.message}") from None


def error_body(error: GatehouseError, path: bytes, headers: Headers) -> bytes:
    """The body of an error: the error object everywhere, but for tritonclient the protocol's own form, in which `error` is a
    string. Its exceptions put the string into a sentence and cannot be printed with anything else."""
    if path.startswith(b"/v2/") and headers.get(b"user-agent", b"").startswith(TRITON_CLIENT):
        return codec.encode_error(error.message, code=error.code, param=error.param)
    return error.body()
