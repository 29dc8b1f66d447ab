"""Sampling settings of requests that name none. Imports nothing heavy: the gateway's process reads it with the runtimes' options."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from gateway.core.specs import Spec

Temperature = Annotated[float, Meta(ge=0, le=10)]
Share = Annotated[float, Meta(ge=0, le=1)]

Format = Literal[
    "harmony", "gemma", "kimi", "deepseek", "deepseek_v3_1", "deepseek_v3_2", "deepseek_v4", "minimax", "command_r", "qwen_coder",
    "seed_oss", "glm", "mistral", "hermes", "tool_calls", "nemotron", "granite", "gigachat", "llama3", "generic",
]  # fmt: skip
"""The names of `engines.chat.formats.table`; a test holds them equal."""


class Defaults(Spec, frozen=True):
    """Sampling settings of requests that name none; llama.cpp's own unless the model or `options.sampling` differ."""

    temperature: Temperature = 0.8
    top_p: Share = 0.95
    top_k: Annotated[int, Meta(ge=0)] = 40
    min_p: Share = 0.05
    typical_p: Share = 1.0
    repeat_penalty: Annotated[float, Meta(gt=0, le=10)] = 1.0
    repeat_last_n: Annotated[int, Meta(ge=0, le=4096)] = 64
