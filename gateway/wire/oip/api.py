"""`infer` of the Open Inference Protocol as a wire format: tensors, forwarded unchanged."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Final
from urllib.parse import unquote

from gateway.core.errors import GatehouseError, RequestError
from gateway.core.slices import at_once
from gateway.core.types import Headers, InferenceRequest, ResponseHead, Usage
from gateway.core.wire import JSON, HashBody, RequestTexts, WholeAnswer, WireApi
from gateway.wire.bodies import unreadable
from gateway.wire.oip import codec, frames, values
from gateway.wire.oip.tensors import TensorAnswer, TensorTexts, TensorView, json_part, summary, too_many
from gateway.wire.openai.fields import refused
from gateway.wire.scan import SEGMENT, steps

TRITON_CLIENT: Final = b"python/gevent-http-client"
"""The user agent of tritonclient's HTTP client (that of the library it uses)."""
BINARY: Final = b"content-type: application/octet-stream\r\ninference-header-content-length: %d\r\n"
_FLOATS: Final = ("FP16", "BF16", "FP32", "FP64")
_DIGITS: Final = bytes([48 if 48 <= code <= 57 else code for code in range(256)])
_RUN: Final = b"0" * 19
"""An integer of fewer digits is in the range of 64 bits."""
_FLOAT_RUN: Final = b"0" * 21
"""The shortest decimal of a double has no more digits in a row, unless it has an exponent."""
_DIGIT: Final = b"0"
_HEADER: Final = codec.HEADER_LENGTH.encode()


class InferApi(WireApi):
    """`POST /v2/models/{model}[/versions/{version}]/infer`, JSON or with binary tensors."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__("infer", prefix=b"/v2/", describes=True)

    # --- requests

    def matches(self, path: bytes) -> bool:
        return path.startswith(codec.V2_MODELS) and path.endswith(b"/infer")

    def parse(self, path: bytes, body: bytes, headers: Headers, max_depth: int, max_nodes: int) -> InferenceRequest:
        return at_once(self.parse_steps(path, body, headers, max_depth, max_nodes))

    def parse_steps(
        self, path: bytes, body: bytes, headers: Headers, max_depth: int, max_nodes: int
    ) -> Generator[None, None, InferenceRequest]:
        """Its cost for limits is its elements, as if each were a token."""
        try:
            place = codec.parse_path(unquote(path.decode("latin-1"), errors="strict"))
        except UnicodeDecodeError:
            place = None
        if place is None:
            raise RequestError("This path does not exist.", code="not_found", status=404)
        length = codec.header_length(headers.get(_HEADER), len(body))
        head = body if length is None else body[:length]
        yield from steps(head, max_depth, max_nodes, len(body))  # numbers cost next to nothing: tensors are not decoded here
        if not head.isascii():
            try:
                head.decode()
            except UnicodeDecodeError as error:
                raise unreadable(head, error) from None
            yield
        view = codec.parse_request(body, length)
        for tensor in view.inputs:
            if tensor.datatype != "BYTES" and not tensor.binary and bytes(tensor.raw).find(b'"') >= 0:  # no guardrail would read it
                raise codec.TensorError(tensor.subject, f"data of {tensor.datatype}", "a text in it")
        yield
        for tensor in view.inputs:
            if tensor.datatype != "BYTES" and not tensor.binary:
                yield from _in_range(bytes(tensor.raw), tensor.datatype, tensor.subject)
        unknown = yield from frames.steps(head)
        elements = sum([tensor.elements for tensor in view.inputs])
        content = JSON if length is None else BINARY % length
        request = InferenceRequest(
            self,
            path,
            place.model,
            {},
            TensorView(view, place.version, length),
            prompt_tokens=elements,
            content=content,
            raw=body,
            version=place.version,
        )
        request.unknown = unknown
        return request

    def settle_unknown(self, request: InferenceRequest, policy: str, tools: Sequence[str] = ()) -> None:
        """Tensors are forwarded unchanged, so nothing is dropped from them."""
        if policy != "forward":
            raise refused(request.unknown[0], frames.TOP | frames.TENSOR)

    def target(self, request: InferenceRequest, name: str | None, salt: bytes = b"") -> tuple[bytes, bytes]:
        return codec.model_path(name or request.model, request.version, "infer"), request.raw

    def unreadable(self, request: InferenceRequest) -> str:
        return too_many(request.view)

    def texts(self, request: InferenceRequest) -> RequestTexts:
        return at_once(self.texts_steps(request))

    def texts_steps(self, request: InferenceRequest) -> Generator[None, None, RequestTexts]:
        texts, view = TensorTexts(), request.view
        yield from texts.reading(view)
        if request.unknown:
            texts.texts += frames.asked_texts(bytes(json_part(request.raw, view.json_length)))
        return texts

    def evidence(self, request: InferenceRequest, body: bytes) -> bytes | memoryview:
        return json_part(body, request.view.json_length)

    def detail(self, request: InferenceRequest, hash_body: HashBody) -> dict[str, Any] | None:
        """Version, and the inputs' names, types, shapes and hashes."""
        return {"version": request.version, "inputs": summary(request.view.request.inputs, hash_body)}

    # --- answers

    def answer_lines(self, head: ResponseHead, length: int) -> bytes:
        tensors = head.get(_HEADER)
        if tensors is not None and tensors.isdigit():
            lines = b"content-type: application/octet-stream\r\ninference-header-content-length: %b\r\ncontent-length: %d\r\n"
            return lines % (tensors, length)
        return b"content-type: application/json\r\ncontent-length: %d\r\n" % length

    def answer_usage(self, request: InferenceRequest, body: bytes) -> Usage | None:
        return Usage(request.prompt_tokens)

    def answer(self, request: InferenceRequest, head: ResponseHead, body: bytes, inspected: bool) -> WholeAnswer:
        return TensorAnswer(head, body, inspected)

    def error_body(self, error: GatehouseError, headers: Headers, request_id: bytes = b"") -> bytes:
        """The error object, but for tritonclient the protocol's own form, in which `error` is a string: its exceptions put the string into
        a sentence and cannot be printed with anything else."""
        if headers.get(b"user-agent", b"").startswith(TRITON_CLIENT):
            return codec.encode_error(error.message, code=error.code, param=error.param)
        return error.body()


def _in_range(data: bytes, datatype: str, subject: str) -> Generator[None, None, None]:
    """Refuses a number that the datatype cannot hold, of which engines make infinity, another number or an error. Only those are read that
    may be so large: with an exponent that is not negative, or many digits. Raises TensorError."""
    run, powers = _RUN, False
    if datatype == "BOOL":
        run = _DIGIT
    else:
        powers = _has_powers(data)
        if datatype in _FLOATS:
            run = _FLOAT_RUN
    start = 0
    while start < len(data):
        yield
        end = len(data)
        if end - start > SEGMENT:  # numbers end before commas
            end = data.rfind(b",", start, start + SEGMENT)
            if end <= start and (end := data.find(b",", start + SEGMENT)) < 0:
                end = len(data)
        part = data[start:end]
        if powers or part.translate(_DIGITS).find(run) >= 0:
            values.check_range(part, datatype, subject)
        start = end + 1


def _has_powers(data: bytes) -> bool:
    """Whether a number has an exponent that is not negative. Most data has none at all, which takes the least time to see."""
    if data.find(b"e") < 0 and data.find(b"E") < 0:
        return False
    return data.count(b"e") != data.count(b"e-") or data.count(b"E") != data.count(b"E-")


APIS: Final[tuple[WireApi, ...]] = (InferApi(),)
