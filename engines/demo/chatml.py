"""The chat format of the demo model: ChatML, once as the jinja template that goes into the GGUF and once in Python for training.

Both forms of one dialogue are the same text; tests/unit/engines/demo/test_chatml.py proves it.
"""

from dataclasses import dataclass
from typing import Literal

Role = Literal["system", "user", "assistant"]

END_OF_TEXT = "<|endoftext|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
SPECIAL_TOKENS = (END_OF_TEXT, TURN_START, TURN_END)
"""In the order of their token ids: 0, 1, 2."""

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
"""Jinja; text parts of a message are joined, parts of other types are left out."""


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
    """The dialogue as it is fed to the model: what an assistant says, with the token that ends it, is learned, the rest is given."""
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
    """The text after which the model writes its answer to `messages`."""
    return "".join(piece.text for piece in pieces(messages)) + f"{TURN_START}assistant\n"
