"""From a path and a body to an InferenceRequest: the OpenAI operations, and `infer` of the Open Inference Protocol."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote, unquote

import msgspec
from msgspec import Raw

from gateway.core.errors import GuardrailViolation, RequestError
from gateway.core.types import Headers, InferenceRequest
from gateway.wire import oip, oip_data, openai
from gateway.wire.openai import OPERATIONS

_ENCODER = msgspec.json.Encoder()
V2_MODELS = b"/v2/models/"
JSON = b"content-type: application/json\r\n"
BINARY = b"content-type: application/octet-stream\r\ninference-header-content-length: %d\r\n"


def is_inference(path: bytes) -> bool:
    """Whether a POST to this path goes through the pipeline."""
    return path in OPERATIONS or (path.startswith(V2_MODELS) and path.endswith(b"/infer"))


def parse(path: bytes, body: bytes, headers: Headers, max_depth: int = 64) -> InferenceRequest:
    """The typed view of an inference request. Raises RequestError."""
    if path in OPERATIONS:
        return openai.parse(path, body, max_depth)
    return parse_infer(path, body, headers, max_depth)


class TensorView:
    """What policy reads of an infer request: its texts are the elements of BYTES inputs."""

    __slots__ = ("request", "version")

    def __init__(self, request: oip.InferRequest, version: str) -> None:
        self.request, self.version = request, version

    def texts(self) -> list[str]:
        found: list[str] = []
        for tensor in self.request.inputs:
            if tensor.datatype == "BYTES":
                found += _strings(tensor)
        return found

    def replace(self, texts: Sequence[str]) -> None:
        """Tensors are not rewritten: what would have to be is refused."""
        raise GuardrailViolation("A tensor has content that a policy would rewrite.", code="guardrail")

    def detail(self) -> dict[str, Any]:
        """Names, types and shapes for the audit record."""
        return {"version": self.version, "inputs": summary(self.request.summary())}


def summary(tensors: Sequence[oip.TensorSummary]) -> list[dict[str, Any]]:
    """Tensors as plain values, without their data."""
    return [{"name": t.name, "datatype": t.datatype, "shape": list(t.shape), "elements": t.elements} for t in tensors]


def _strings(tensor: oip.Tensor) -> list[str]:
    if tensor.binary:
        return [bytes(element).decode("utf-8", "replace") for element in oip_data.split_bytes(tensor)]
    return [value if isinstance(value, str) else str(value) for value in oip_data.json_values(tensor)]


def parse_infer(path: bytes, body: bytes, headers: Headers, max_depth: int) -> InferenceRequest:
    """An infer request, JSON or with binary tensors. Its cost for limits is its elements, as if each were a token."""
    place = oip.parse_path(unquote(path.decode("latin-1"), errors="strict"))
    if place is None:
        raise RequestError("There is no such path.", code="not_found", status=404)
    length = oip.header_length(headers.get(oip.HEADER_LENGTH.encode()), len(body))
    openai.check_depth(body if length is None else body[:length], max_depth)
    view = oip.parse_request(body, length)
    elements = sum(tensor.elements for tensor in view.inputs)
    content = JSON if length is None else BINARY % length
    return InferenceRequest(
        "infer", path, place.model, {}, TensorView(view, place.version), prompt_tokens=elements, content=content, raw=body
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


def answer_detail(body: bytes, header_length: bytes | None) -> dict[str, Any] | None:
    """Shapes of an infer answer for the audit record; None when it is not what the protocol says."""
    try:
        return {"outputs": summary(oip.parse_response(body, oip.header_length(header_length, len(body))).summary())}
    except RequestError:
        return None
