"""The formats, in the order in which a template is asked for them: the particular before the general."""

from __future__ import annotations

from engines.chat.formats import (
    command_r,
    deepseek,
    gemma,
    generic,
    glm,
    harmony,
    hermes,
    invoke,
    kimi,
    llama3,
    mistral,
    qwen_coder,
)
from engines.chat.formats.base import Format

FORMATS: tuple[Format, ...] = (
    harmony.FORMAT,
    gemma.FORMAT,
    kimi.FORMAT,
    deepseek.FORMAT,
    deepseek.V3_1,
    invoke.DSML_3_2,
    invoke.DSML,
    invoke.MINIMAX,
    command_r.FORMAT,
    qwen_coder.FORMAT,
    qwen_coder.SEED,
    glm.FORMAT,
    mistral.FORMAT,
    *hermes.LISTS,
    hermes.FORMAT,
    llama3.FORMAT,
    generic.FORMAT,
)
BY_NAME = {item.name: item for item in FORMATS}
GENERIC = generic.FORMAT

REASONING_TAGS = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|channel>thought\n", "<channel|>"),
    ("<seed:think>", "</seed:think>"),
)


def format_of(template: str) -> Format:
    """The format of a chat template."""
    return next(item for item in FORMATS if item.tells(template))
