"""The text of a generation as a format's reader sees it: it comes in pieces that may end anywhere.

A reader is a generator. It asks a :class:`Source` for what should come next and is suspended (`yield`) until the text says; so it is
written as if the whole text were there, and what it makes of the text cannot depend on the pieces. Text that was consumed but not said
(`kept` to `at`) is given back as content when it turns out to be no call: nothing is lost.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Literal

from engines.chat.text import held

Kind = Literal["content", "reasoning", "call", "arguments"]
Reading = Generator[None, None, None]
MAX_HEADER = 512
"""Characters within which a header (a function's name, a channel) must end."""


class Malformed(Exception):
    """The text is not what the format says; or it ended too early."""


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of output. `kind` call: a call of the function `name` begins (`ident`: the id that the model gave it, if any); arguments:
    more of the last call's arguments, JSON text."""

    kind: Kind
    text: str = ""
    name: str = ""
    ident: str = ""


class Source:
    """`feed` adds text, `end` says that no more comes; everything else is for readers. `parts` is what was said since they were taken."""

    __slots__ = ("_kept", "at", "ended", "parts", "text")

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        self._kept = 0
        self.ended = False
        self.parts: list[Part] = []

    def feed(self, text: str) -> None:
        """Add text."""
        self.text = self.text[self._kept :] + text
        self.at -= self._kept
        self._kept = 0

    # -- what a reader says -------------------------------------------------------------------------------------------

    def say(self, kind: Kind, text: str) -> None:
        """Say a text; what was consumed so far is settled."""
        if text:
            self.parts.append(Part(kind, text))
        self._kept = self.at

    def call(self, name: str, ident: str = "") -> None:
        """Begin a call."""
        self.parts.append(Part("call", name=name, ident=ident))
        self._kept = self.at

    def settle(self) -> None:
        """What was consumed has no meaning of its own (tags, blanks)."""
        self._kept = self.at

    def give_back(self) -> None:
        """What was consumed since the last settling is content."""
        text = self.consumed()
        self.say("content", text if text.strip() else "")

    def rewind(self) -> None:
        """Forget that anything was consumed since the last settling."""
        self.at = self._kept

    def consumed(self) -> str:
        """What was consumed since the last settling."""
        return self.text[self._kept : self.at]

    # -- what a reader asks -------------------------------------------------------------------------------------------

    def ahead(self) -> Generator[None, None, str]:
        """The next character, not consumed; empty at the end."""
        while self.at >= len(self.text):
            if self.ended:
                return ""
            yield
        return self.text[self.at]

    def skip(self, blanks: str | None = None) -> Reading:
        """Consume blanks (None: any white space)."""
        while True:
            rest = self.text[self.at :]
            self.at += len(rest) - len(rest.lstrip(blanks))
            if self.at < len(self.text) or self.ended:
                return
            yield

    def taken(self, *options: str) -> Generator[None, None, str | None]:
        """Consume and return the one of these texts that comes next; None if none does. None of them may begin with another."""
        while True:
            for option in options:
                if self.text.startswith(option, self.at):
                    self.at += len(option)
                    return option
            rest = self.text[self.at :]
            if self.ended or not any(option.startswith(rest) for option in options):
                return None
            yield

    def expect(self, option: str) -> Reading:
        """Consume a text. Raises Malformed if something else comes."""
        if (yield from self.taken(option)) is None:
            raise Malformed(option)

    def header(self, *ends: str) -> Generator[None, None, tuple[str, str]]:
        """Consume a short text and the one of `ends` that ends it; (text, end). Raises Malformed if none comes soon."""
        while True:
            rest = self.text[self.at : self.at + MAX_HEADER]
            found = min(((place, end) for end in ends if (place := rest.find(end)) >= 0), default=None)
            if found is not None:
                place, end = found
                self.at += place + len(end)
                return rest[:place], end
            if self.ended or len(rest) >= MAX_HEADER:
                raise Malformed("a header has no end")
            yield

    def text_until(self, kind: Kind, tags: tuple[str, ...], blanks: str | None = None) -> Generator[None, None, str | None]:
        """Say the text before the first of these tags, without the blanks just before it, and consume it; the tag, or None at the end.

        The tag and its blanks are not settled: they are given back if what follows is malformed.
        """
        while True:
            rest = self.text[self.at :]
            found = min(((place, tag) for tag in tags if (place := rest.find(tag)) >= 0), default=None)
            if found is not None:
                place, tag = found
                before = rest[:place].rstrip(blanks)
                self.at += len(before)
                self.say(kind, before)
                self.at += place - len(before) + len(tag)
                return tag
            keep = held(rest, tags)
            before = rest[: len(rest) - keep].rstrip(blanks) if not self.ended else rest
            self.at += len(before)
            self.say(kind, before)
            if self.ended:
                return None
            yield

    def rest(self, kind: Kind) -> Reading:
        """Say everything that still comes."""
        while True:
            text = self.text[self.at :]
            self.at = len(self.text)
            self.say(kind, text)
            if self.ended:
                return
            yield
