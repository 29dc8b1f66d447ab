"""Transcripts and translations of recordings (API reference, "Create transcription" and "Create translation"), passed to engines that make
them.

A request is a form with a file, which is passed on as it arrives; its other fields are policies' to read. The recording itself is nothing
that guardrails can read: what was said in it is read in the answer.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from math import isfinite
from typing import Any, Final

import msgspec

from gateway.core.errors import EngineError, GuardrailViolation, RequestError
from gateway.core.types import Headers, InferenceRequest, ResponseHead, Usage
from gateway.core.wire import WholeAnswer, WireApi
from gateway.wire.bodies import plain
from gateway.wire.openai.api import OpenAiApi
from gateway.wire.openai.fields import names
from gateway.wire.openai.transcribing_views import FACTS, TRANSCRIPTS, Facts, Piece, Transcript, TranscriptionForm
from gateway.wire.openai.usage import MAX_USAGE

PLAIN: Final = {"text": b"text/plain; charset=utf-8", "srt": b"application/x-subrip; charset=utf-8", "vtt": b"text/vtt; charset=utf-8"}
"""Formats of answers that are no JSON, and their types."""
MAX_DEPTH: Final = 8
MAX_NODES: Final = 1024
REWRITTEN: Final = 5
"""Of the texts of a transcript, those that may be rewritten."""
NUMBERS: Final = names(
    "temperature seed top_p top_k min_p frequency_penalty repetition_penalty presence_penalty max_completion_tokens",
)
_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]{1,400}(?:\.[0-9]{0,400})?|\.[0-9]{1,400})(?:[eE][+-]?[0-9]{1,4})?")
_CUES: Final = re.compile(r"(?m)^(?:WEBVTT.*|\d+|(?:\d+:)?\d+:\d+[.,]\d+ *--> *.*|)$\n?")
"""The lines of subtitles that nobody says."""
_SEGMENT: Final = frozenset(
    {"id", "seek", "start", "end", "text", "temperature", "avg_logprob", "compression_ratio", "no_speech_prob", "type", "speaker"}
)
"""Without `tokens`, which say the text once more for whoever has the tokenizer."""
_WORD: Final = frozenset({"word", "start", "end"})


class TranscriptionsApi(OpenAiApi):
    """One of the two operations."""

    __slots__ = ()

    def __init__(self, operation: str, path: bytes) -> None:
        super().__init__(operation, path, TranscriptionForm, frozenset({"prompt"}))
        self.forms = True

    def parse(self, path: bytes, body: bytes, headers: Headers, max_depth: int, max_nodes: int) -> InferenceRequest:
        raise RequestError("Send the recording as multipart/form-data.", code="unsupported_media_type", status=415)

    def parse_steps(
        self, path: bytes, body: bytes, headers: Headers, max_depth: int, max_nodes: int
    ) -> Generator[None, None, InferenceRequest]:
        yield
        return self.parse(path, body, headers, max_depth, max_nodes)

    def form(self, path: bytes, fields: bytes, headers: Headers) -> InferenceRequest:
        request = super().parse(path, fields, headers, MAX_DEPTH, MAX_NODES)
        for name in NUMBERS:
            if name in request.fields and not _is_number(plain(request.fields[name], name)):
                raise RequestError(f"{name}: Expected a finite number.", param=name, code="invalid_value")
        return request

    def _finish(self, request: InferenceRequest, length: int) -> None:
        super()._finish(request, length)
        if request.view.stream is not None and request.view.stream.lower() not in ("", "0", "false"):
            raise RequestError("stream: transcripts cannot be streamed; leave it out.", param="stream", code="unsupported_parameter")

    # --- answers

    def received(self, request: InferenceRequest, body: bytes) -> bytes:
        if is_object(body):
            return body
        if request.view.response_format not in PLAIN:
            raise EngineError("The engine's answer is not JSON.")
        try:
            body.decode()
        except UnicodeDecodeError:
            raise EngineError("The engine's answer is not text.") from None
        return body

    def answer_lines(self, head: ResponseHead, length: int) -> bytes:
        kind = (head.get(b"content-type") or b"").partition(b";")[0].strip().lower()
        shown = b"application/json"
        for known in PLAIN.values():
            if known.startswith(kind + b";"):
                shown = known
        return b"content-type: %b\r\ncontent-length: %d\r\n" % (shown, length)

    def answer_usage(self, request: InferenceRequest, body: bytes) -> Usage | None:
        try:
            found = TRANSCRIPTS.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return Usage(request.prompt_tokens, len(body) >> 2, 0, True)
        heard = found.usage
        if heard is None or heard.input_tokens is None:
            return Usage(request.prompt_tokens, len(found.text) >> 2, 0, True)
        read, made = heard.input_tokens, heard.output_tokens or 0
        if not (0 <= read <= MAX_USAGE and 0 <= made <= MAX_USAGE):
            return Usage(request.prompt_tokens, len(found.text) >> 2, 0, True)
        usage, details = Usage(read, made), heard.input_token_details
        if details is not None and details.audio_tokens is not None and 0 <= details.audio_tokens <= read:
            usage.of_media(0, details.audio_tokens, 0)
        return usage

    def answer(self, request: InferenceRequest, head: ResponseHead, body: bytes, inspected: bool) -> WholeAnswer:
        if not inspected:
            return WholeAnswer(body)
        return TranscriptAnswer(body) if is_object(body) else SubtitleAnswer(body)


def _is_number(given: Any) -> bool:
    """Whether a form's text is a finite number, or nothing."""
    if given.__class__ is not str:  # a field that is there twice
        return False
    return given == "" or (_NUMBER.fullmatch(given) is not None and isfinite(float(given)))


def is_object(body: bytes) -> bool:
    """Whether an answer is a JSON object, by its first byte: a text may begin with a bracket, as "[Music]" does."""
    return body.lstrip()[:1] == b"{"


class TranscriptAnswer(WholeAnswer):
    """A transcript in JSON. Its segments and words say the text again in pieces, in which no guardrail finds what goes over their borders:
    they are read together, and do not pass where the text is rewritten."""

    __slots__ = ("_facts",)

    def __init__(self, body: bytes) -> None:
        super().__init__(body)
        try:
            found: Transcript = TRANSCRIPTS.decode(body)
            facts: Facts = FACTS.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise EngineError("The engine's answer is not a transcript.") from None
        names: list[str] = []
        facts.segments = _known(facts.segments, _SEGMENT, names)
        facts.words = _known(facts.words, _WORD, names)
        facts.usage = _figures(facts.usage)
        self._facts = facts
        self.body = msgspec.json.encode(facts)
        pieces, words = found.segments or (), found.words or ()
        self.texts = [
            found.text,
            "".join([piece.text for piece in pieces]),
            " ".join([piece.text.strip() for piece in pieces]),
            " ".join([piece.word.strip() for piece in words]),
            _glued(words, found.text),
            *[one for one in (facts.task, facts.language, facts.duration) if isinstance(one, str)],
            *names,
        ]

    def replaced(self, texts: Sequence[str]) -> bytes:
        """Raises GuardrailViolation for what cannot be rewritten: anything but the text, and its pieces, which go."""
        if any(new != old for new, old in zip(texts[REWRITTEN:], self.texts[REWRITTEN:], strict=True)):
            raise GuardrailViolation("A transcript has content beside its text that a policy would rewrite.")
        facts = self._facts
        beside = {"task": facts.task, "language": facts.language, "duration": facts.duration, "usage": facts.usage}
        return msgspec.json.encode({"text": texts[0], **{name: value for name, value in beside.items() if value is not None}})


def _glued(words: Sequence[Piece], text: str) -> str:
    """The words with nothing between them, as a program may join them, unless they only say the text once more."""
    glued = "".join([piece.word for piece in words])
    return "" if _letters(glued) == _letters(text) else glued


def _letters(text: str) -> str:
    return "".join([character for character in text if character.isalnum()]).casefold()


def _known(given: Any, names: frozenset[str], texts: list[str]) -> list[dict[str, Any]] | None:
    """The pieces of a text with only what is known of them: figures, and texts, added to `texts` unless they are the piece's own."""
    if given is None:
        return None
    if not isinstance(given, list) or not all(isinstance(piece, dict) for piece in given):
        raise EngineError("The engine's answer is not a transcript.")
    pieces: list[dict[str, Any]] = []
    for piece in given:
        kept = {}
        for name, value in piece.items():
            if name in names and not isinstance(value, dict | list):
                kept[name] = value
                if isinstance(value, str) and name not in ("text", "word"):
                    texts.append(value)
        pieces.append(kept)
    return pieces


def _figures(usage: Any) -> dict[str, Any] | None:
    """What an engine reports, without any text but the kind of its figures."""
    if not isinstance(usage, dict):
        return None
    figures = {name: value for name, value in usage.items() if isinstance(value, int | float)}
    if usage.get("type") in ("tokens", "duration"):
        figures["type"] = usage["type"]
    return figures


class SubtitleAnswer(WholeAnswer):
    """A transcript as plain text or subtitles; of these what is said is read without times and numbers, too, as a phrase may go on in the
    next cue."""

    __slots__ = ()

    def __init__(self, body: bytes) -> None:
        super().__init__(body)
        try:
            text = body.decode()
        except UnicodeDecodeError:
            raise EngineError("The engine's answer is not text.") from None
        self.texts = [text, _said(text)]

    def replaced(self, texts: Sequence[str]) -> bytes:
        if texts[1] != self.texts[1] and _said(texts[0]) != texts[1]:
            raise GuardrailViolation("A policy would rewrite text of a transcript that spans several subtitles.")
        return texts[0].encode()


def _said(text: str) -> str:
    return " ".join(_CUES.sub("", text.replace("\r\n", "\n")).split("\n")).strip()


APIS: Final[tuple[WireApi, ...]] = (
    TranscriptionsApi("transcriptions", b"/v1/audio/transcriptions"),
    TranscriptionsApi("translations", b"/v1/audio/translations"),
)
