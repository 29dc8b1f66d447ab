"""Requests for tokens as typed views."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from gateway.wire.openai.views import Inference, Message, Text


class TokenizeRequest(Inference, gc=False, kw_only=True):
    """POST /tokenize"""

    prompt: Text | None = None
    messages: Annotated[list[Message], Meta(min_length=1, max_length=4096)] | None = None
    return_token_strs: bool | None = None

    def texts(self) -> list[str]:
        return []  # all its fields are read as any field that no view knows

    def replace(self, texts: list[str]) -> None:
        """None of them is the view's."""


class DetokenizeRequest(Inference, gc=False, kw_only=True):
    """POST /detokenize"""

    tokens: Annotated[list[int], Meta(max_length=1 << 20)]

    def texts(self) -> list[str]:
        return []

    def replace(self, texts: list[str]) -> None:
        """It has none."""
