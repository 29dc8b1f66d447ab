"""Images and speech from texts (API reference, "Create image" and "Create speech"), passed to engines that make them.

Their requests are texts, which guardrails read as those of every request. An answer in images or sound is nothing that guardrails can
read: where the policies of a model want answers inspected, it is refused, except for what an image's answer says in words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from gateway.core.errors import EngineError, GuardrailViolation, RequestError
from gateway.core.types import InferenceRequest, ResponseHead, Usage
from gateway.core.wire import WholeAnswer, WireApi
from gateway.wire.openai.api import OpenAiApi
from gateway.wire.openai.generating_views import IMAGES, ImageRequest, SpeechRequest
from gateway.wire.openai.media import is_media
from gateway.wire.openai.usage import MAX_USAGE

SOUNDS: Final = frozenset(
    {
        b"audio/mpeg",
        b"audio/mp3",
        b"audio/opus",
        b"audio/ogg",
        b"audio/aac",
        b"audio/flac",
        b"audio/x-flac",
        b"audio/wav",
        b"audio/wave",
        b"audio/x-wav",
        b"audio/pcm",
        b"audio/l16",
        b"application/octet-stream",
    }
)
"""What an engine may call its sound; anything else that is not JSON is a failure."""
_READ: Final = ("revised_prompt",)
_IMAGE: Final = ("b64_json",)


class ImagesApi(OpenAiApi):
    """Where guardrails read answers, images come in these themselves: an address would have the client fetch what no policy has seen."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__("images", b"/v1/images/generations", ImageRequest, frozenset({"prompt"}))

    def _finish(self, request: InferenceRequest, length: int) -> None:
        super()._finish(request, length)
        if request.view.stream is True:
            raise RequestError("stream: images cannot be streamed; leave it out.", param="stream", code="unsupported_parameter")
        request.choices = request.view.n or 1

    def unanswerable(self, request: InferenceRequest) -> str:
        if request.view.response_format != "url":
            return ""
        return "This model's guardrails inspect answers, and images behind URLs cannot be inspected: ask for b64_json."

    def _usage(self, request: InferenceRequest, body: bytes) -> Usage | None:
        try:
            counts = IMAGES.decode(body).usage
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        if counts is None or counts.input_tokens is None:
            return None
        read, made = counts.input_tokens, counts.output_tokens or 0
        return Usage(read, made) if 0 <= read <= MAX_USAGE and 0 <= made <= MAX_USAGE else None

    def answer(self, request: InferenceRequest, head: ResponseHead, body: bytes, inspected: bool) -> WholeAnswer:
        return ImagesAnswer(body)


class ImagesAnswer(WholeAnswer):
    """What the engine says of its images in words. Around them, only figures and names pass."""

    __slots__ = ("_document",)

    def __init__(self, body: bytes) -> None:
        super().__init__(body)
        try:
            document = msgspec.json.decode(body)
            images = document["data"]
            texts = [image[name] for image in images for name in _READ if image.get(name) is not None]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError, TypeError, AttributeError):
            raise EngineError("The engine's answer has no list of images.") from None
        for image in images:
            for name, value in image.items():
                if name not in _READ and not (name in _IMAGE and value.__class__ is str and is_media(value)) and value is not None:
                    raise EngineError("The engine's answer has a field beside an image that cannot be inspected.")
        if not all(text.__class__ is str for text in texts):
            raise EngineError("The engine's answer has no list of images.")
        known: dict[str, Any] = {"data": images}
        if document.get("created").__class__ is int:
            known = {"created": document["created"], **known}
        self._document: dict[str, Any] = known
        self.body = msgspec.json.encode(known)
        self.texts = texts

    def replaced(self, texts: Sequence[str]) -> bytes:
        new = iter(texts)
        for image in self._document["data"]:
            for name in _READ:
                if image.get(name) is not None:
                    image[name] = next(new)
        return msgspec.json.encode(self._document)


class SpeechApi(OpenAiApi):
    """The answer is sound, passed byte for byte with its type."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__("speech", b"/v1/audio/speech", SpeechRequest, frozenset({"input"}))

    def _finish(self, request: InferenceRequest, length: int) -> None:
        super()._finish(request, length)
        if request.view.stream is True or request.view.stream_format == "sse":
            raise RequestError(
                "stream_format: speech is sent as audio only; leave it out.", param="stream_format", code="unsupported_parameter"
            )

    def received(self, request: InferenceRequest, body: bytes) -> bytes:
        if not body:
            raise EngineError("The engine's answer is empty.")
        return body

    def answer_lines(self, head: ResponseHead, length: int) -> bytes:
        kind = (head.get(b"content-type") or b"").partition(b";")[0].strip().lower()
        return b"content-type: %b\r\ncontent-length: %d\r\n" % (kind if kind in SOUNDS else b"application/octet-stream", length)

    def answer_usage(self, request: InferenceRequest, body: bytes) -> Usage | None:
        return Usage(request.prompt_tokens, 0, 0, True)

    def unanswerable(self, request: InferenceRequest) -> str:
        return "This model's guardrails inspect answers, and audio cannot be inspected."

    def answer(self, request: InferenceRequest, head: ResponseHead, body: bytes, inspected: bool) -> WholeAnswer:
        if inspected:
            raise GuardrailViolation(self.unanswerable(request))
        return WholeAnswer(body)


APIS: Final[tuple[WireApi, ...]] = (ImagesApi(), SpeechApi())
