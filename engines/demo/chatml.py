"""The demo model's chat format, ChatML: as the jinja template that goes into the GGUF, and in Python for training.

Both produce the same text for a dialogue; tests/unit/engines/demo/test_chatml.py checks this.
"""

from dataclasses import dataclass
from typing import Literal

Role = Literal["system", "user", "assistant"]

END_OF_TEXT = "<|endoftext|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
SPECIAL_TOKENS = (END_OF_TEXT, TURN_START, TURN_END)
"""Ordered by token id: 0, 1, 2."""

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message['role'] + '\\n' -}}"
    "{%- if message['content'] is string -%}{{- message['content'] -}}"
    "{%- elif message['content'] -%}"
    "{%- for part in message['content'] -%}{%- if part['type'] == 'text' -%}{{- part['text'] -}}{%- endif -%}{%- endfor -%}"
    "{%- endif -%}"
    "{{- '<|im_end|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)
"""Jinja; joins the text parts of a message and leaves out parts of other types."""


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a dialogue."""

    role: Role
    content: str


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of training text; only learned pieces count in the loss."""

    text: str
    learned: bool


def pieces(messages: tuple[Message, ...]) -> list[Piece]:
    """The dialogue as fed to the model. The assistant's messages and their end tokens are learned; the rest is given."""
    found: list[Piece] = []
    for message in messages:
        found.append(Piece(f"{TURN_START}{message.role}\n", learned=False))
        if message.role == "assistant":
            found.append(Piece(message.content + TURN_END, learned=True))
            found.append(Piece("\n", learned=False))
        else:
            found.append(Piece(f"{message.content}{TURN_END}\n", learned=False))
    return found


def prompt(messages: tuple[Message, ...]) -> str:
    """The prompt text that the model continues with its answer to `messages`."""
    return "".join(piece.text for piece in pieces(messages)) + f"{TURN_START}assistant\n"
