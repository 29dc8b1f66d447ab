"""Tensors as policy and audit read them: the texts of BYTES tensors, and names, types, shapes and hashes for the record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from gateway.core.errors import EngineError, GuardrailViolation, RequestError
from gateway.core.slices import Steps, at_once, portions
from gateway.core.types import ResponseHead
from gateway.core.wire import HashBody, RequestTexts, WholeAnswer
from gateway.wire.oip import codec, frames, values
from gateway.wire.openai.answers import is_name
from gateway.wire.scan import MAX_NODES


class TensorView:
    """An infer request. json_length: where the JSON part of the body ends (None: all of it is JSON)."""

    __slots__ = ("json_length", "request", "version")

    def __init__(self, request: codec.InferRequest, version: str, json_length: int | None = None) -> None:
        self.request, self.version, self.json_length = request, version, json_length


_PROTOCOL: Final = frozenset({"binary_data", "binary_data_output", "binary_data_size", "classification"})
"""Parameters of the protocol's own extensions."""


class TensorTexts(RequestTexts):
    """The elements of a request's BYTES inputs, its identifier and its parameters. Nothing of it is ever rewritten: if a policy would, the
    request is refused."""

    __slots__ = ()

    def reading(self, view: TensorView) -> Steps[None]:
        """Reads the texts."""
        request = view.request
        self.texts = yield from text_steps(request.inputs)
        if request.id:
            self.texts.append(request.id)
        self.texts += _said(request.parameters)
        for tensor in request.inputs:
            self.texts += _said(tensor.parameters)
        for output in request.outputs:
            self.texts += _said(output.parameters)

    def replace(self, texts: Sequence[str]) -> None:
        raise GuardrailViolation("A tensor has content that a policy would rewrite.", code="guardrail")


def _said(parameters: codec.Parameters | None) -> list[str]:
    """The texts in parameters: their names but for the protocol's own, and values that are strings."""
    found: list[str] = []
    for name, value in (parameters or {}).items():
        if name not in _PROTOCOL:
            found.append(name)
        if isinstance(value, str):
            found.append(value)
    return found


class TensorAnswer(WholeAnswer):
    """An engine's infer answer: the elements of its BYTES outputs, its parameters, fields that the protocol does not have, and names that
    say more than a name. Raises EngineError if it does not follow the protocol."""

    __slots__ = ("_json_length", "_response")

    def __init__(self, head: ResponseHead, body: bytes, inspected: bool) -> None:
        super().__init__(body)
        try:
            self._response, self._json_length = parse_answer(head, body)
            if inspected:
                self.texts = self._all_texts()
        except EngineError as error:
            raise EngineError(f"The engine's answer cannot be inspected: {error.message}") from None
        except RequestError as wrong:
            raise EngineError(f"The engine's answer cannot be inspected: {unquoted(wrong)}") from None

    def _all_texts(self) -> list[str]:
        response = self._response
        found = texts_of(response.outputs)
        found += _said(response.parameters)
        names = [response.id, response.model_name, response.model_version]
        for tensor in response.outputs:
            found += _said(tensor.parameters)
            names.append(tensor.name)
        found += [name for name in names if not is_name(name)]
        found += frames.unknown_texts(bytes(json_part(self.body, self._json_length)))
        return found

    def replaced(self, texts: Sequence[str]) -> bytes:
        raise GuardrailViolation("A tensor has content that a policy would rewrite.", code="guardrail")

    def evidence(self) -> bytes | memoryview:
        return json_part(self.body, self._json_length)

    def detail(self, hash_body: HashBody) -> dict[str, Any] | None:
        return {"outputs": summary(self._response.outputs, hash_body)}


def summary(tensors: Sequence[codec.Tensor], hash_body: HashBody) -> list[dict[str, Any]]:
    """Tensors as plain values, each with a hash of its data as sent (none when hashes are off) instead of the data."""
    found = []
    for t in tensors:
        entry: dict[str, Any] = {"name": t.name, "datatype": t.datatype, "shape": list(t.shape), "elements": t.elements}
        if digest := hash_body(t.raw):
            entry["hash"] = digest
        found.append(entry)
    return found


def json_part(body: bytes, json_length: int | None) -> bytes | memoryview:
    """The JSON part of a tensor message, which the record's body hash covers. Binary tensors have hashes of their own."""
    return body if json_length is None else memoryview(body)[:json_length]


def texts_of(tensors: Sequence[codec.Tensor]) -> list[str]:
    """The elements of the BYTES tensors, in order. Raises TensorError when they do not match the shape."""
    return at_once(text_steps(tensors))


def text_steps(tensors: Sequence[codec.Tensor]) -> Steps[list[str]]:
    """The same in steps."""
    found: list[str] = []
    for tensor in tensors:
        if tensor.datatype != "BYTES":
            continue
        if tensor.binary:
            elements = yield from values.split_steps(tensor)
            for some in portions(elements):
                found += [bytes(element).decode("utf-8", "replace") for element in some]
                yield
        else:
            found += [value if isinstance(value, str) else str(value) for value in values.json_values(tensor)]
            yield
    return found


def too_many(view: TensorView) -> str:
    """Why guardrails cannot read a request; "" when they can. In JSON, where each text is a node, it would have been refused."""
    count = 0
    for tensor in view.request.inputs:
        if tensor.datatype == "BYTES" and tensor.binary:
            count += tensor.elements
    return f"The request has more than {MAX_NODES} texts, which cannot be inspected." if count > MAX_NODES else ""


def parse_answer(head: ResponseHead, body: bytes) -> tuple[codec.InferResponse, int | None]:
    """An engine's infer answer and the length of its JSON part (None: all of it). Raises EngineError if it does not follow the protocol."""
    try:
        length = codec.header_length(head.get(codec.HEADER_LENGTH.encode()), len(body))
        return codec.parse_response(body, length), length
    except RequestError as error:
        raise no_protocol(error) from None


def no_protocol(error: RequestError) -> EngineError:
    """For an answer that does not follow the protocol."""
    return EngineError(f"The engine's answer does not follow the Open Inference Protocol: {unquoted(error)}")


def unquoted(error: RequestError) -> str:
    """What is wrong with an engine's answer, without the answer's own words: no guardrail has read them."""
    if not isinstance(error, codec.TensorError):
        return "it cannot be read"
    who = error.subject
    return f"{who if is_name(who.partition(' ')[2]) else who.partition(' ')[0]}: expected {error.expected}"
