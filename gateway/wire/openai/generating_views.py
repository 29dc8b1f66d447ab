"""Requests for images and speech as typed views, and what settles an answer in images."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from gateway.wire.openai.views import Inference, Text


class ImageRequest(Inference, gc=False, kw_only=True):
    """POST /v1/images/generations"""

    prompt: Text
    n: Annotated[int, Meta(ge=1, le=10)] | None = None
    response_format: str | None = None
    user: Annotated[str, Meta(max_length=512)] | None = None

    def texts(self) -> list[str]:
        return [self.prompt]

    def replace(self, texts: list[str]) -> None:
        (self.prompt,) = texts


class SpeechRequest(Inference, gc=False, kw_only=True):
    """POST /v1/audio/speech"""

    input: Text
    stream_format: str | None = None

    def texts(self) -> list[str]:
        return [self.input]

    def replace(self, texts: list[str]) -> None:
        (self.input,) = texts


class ImageCounts(Struct, gc=False):
    input_tokens: int | None = None
    output_tokens: int | None = None


class ImageAnswer(Struct, gc=False):
    usage: ImageCounts | None = None


IMAGES: Final = msgspec.json.Decoder(ImageAnswer)
