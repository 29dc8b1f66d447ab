"""The texts of forms with a recording, as a typed view, and what settles a transcript."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from gateway.wire.openai.views import ModelName, Text


class TranscriptionForm(Struct, gc=False, kw_only=True):
    """POST /v1/audio/transcriptions and /v1/audio/translations, without the file: forms have only texts."""

    model: ModelName
    prompt: Text = ""
    stream: str | None = None
    response_format: str = "json"

    def texts(self) -> list[str]:
        return [self.prompt]

    def replace(self, texts: list[str]) -> None:
        (self.prompt,) = texts


class HeardDetails(Struct, gc=False):
    audio_tokens: int | None = None


class Heard(Struct, gc=False):
    """What an engine reports: tokens, or the seconds of the recording (`type: duration`)."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    input_token_details: HeardDetails | None = None


class Piece(Struct, gc=False):
    """A segment, or a word."""

    text: str = ""
    word: str = ""


class Transcript(Struct, gc=False):
    text: str
    usage: Heard | None = None
    segments: list[Piece] | None = None
    words: list[Piece] | None = None


class Facts(Struct, gc=False, omit_defaults=True):
    """What may stand beside the text of a transcript that guardrails read."""

    text: str
    task: Annotated[str, Meta(max_length=32)] | None = None
    language: Annotated[str, Meta(max_length=64)] | None = None
    duration: float | str | None = None
    segments: Any = None
    words: Any = None
    usage: Any = None


TRANSCRIPTS: Final = msgspec.json.Decoder(Transcript)
FACTS: Final = msgspec.json.Decoder(Facts)
