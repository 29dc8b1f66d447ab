"""Texts with names and places in known positions, put together from data/names.yaml, without end."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

INVENTED = 0.5
"""Share of names that are drawn letter by letter instead of from the lists."""
FRAMED, CARRIED = 0.35, 0.3
"""Shares of sentences by a frame, and of clean sentences into which a name is put. All others are clean."""
REACH = 2
"""Letters that the next one of an invented name follows from."""
SYLLABLES = 0.35
"""Share of invented names that are drawn by syllables instead, whatever the lists look like."""
# fmt: off
_ONSETS = ("", "b", "br", "c", "ch", "d", "dr", "f", "fr", "g", "gr", "h", "j", "k", "kh", "kl", "kr", "l",
    "m", "n", "p", "ph", "r", "s", "sh", "st", "t", "th", "tr", "v", "w", "y", "z")
_VOWELS = ("a", "e", "i", "o", "u", "ai", "ea", "ei", "ia", "ie", "oo", "ou", "y", "é", "ö", "ü")
_CODAS = ("", "", "", "", "l", "ll", "m", "n", "nd", "ng", "r", "rd", "rt", "s", "ss", "st", "t", "tz", "ck", "ld", "x")
# fmt: on
_END = "\x00"
_SLOT = re.compile(r"\{(person|first|last|place|street|title|thing|capital|opener|org|product|n)\}")
_WORD = re.compile(r"[^\W\d_]+")
_HELD_SLOT = re.compile(r"\[(person|first|last|place)\]")


class Span(NamedTuple):
    """An entity of a text, in characters."""

    kind: str
    start: int
    end: int


class Inventor:
    """Words that look like those of a list (a Markov chain of letters), and are none of `never`."""

    def __init__(self, words: Sequence[str], draw: random.Random, never: frozenset[str]) -> None:
        self._draw, self._never = draw, never
        self._follows: dict[str, list[str]] = {}
        for word in words:
            padded = _END * REACH + word + _END
            for place in range(REACH, len(padded)):
                self._follows.setdefault(padded[place - REACH : place], []).append(padded[place])

    def word(self) -> str:
        """A word of 2 to 14 letters."""
        draw = self._draw
        while True:
            if draw.random() < SYLLABLES:
                parts = (_ONSETS, _VOWELS, _CODAS) * draw.choice((1, 2, 2, 3))
                word = "".join([draw.choice(part) for part in parts]).capitalize()
            else:
                text = _END * REACH
                while (letter := draw.choice(self._follows[text[-REACH:]])) != _END:
                    text += letter
                word = text[REACH:]
            if 2 <= len(word) <= 14 and word.casefold() not in self._never:
                return word


class Phrases:
    """Sentences by the frames of the data. prose: further sentences; those that hold a name of the data's lists are left out."""

    def __init__(self, data: dict[str, Any], draw: random.Random, prose: Sequence[str]) -> None:
        self._data, self._draw = data, draw
        held = data["heldout"]
        listed = [name for kind in ("given", "family", "places") for name in (*data[kind], *held[kind])]
        known = {word for name in listed for word in name.split() if word[0].isupper()}
        self.prose = [text for text in prose if known.isdisjoint(_WORD.findall(text))]
        self._carriers = [text for text in self.prose if 4 <= text.count(" ") <= 25]
        never = frozenset(word.casefold() for kind in ("given", "family", "places") for word in data["heldout"][kind])
        self._given, self._family, self._places = (Inventor(data[kind], draw, never) for kind in ("given", "family", "places"))
        names = [name for kind in ("given", "family", "places") for name in data[kind]]
        products = Inventor(names, draw, never | {name.casefold() for name in names})
        made: dict[str, Callable[[], tuple[str, str]]] = {
            "person": self._person, "first": lambda: ("PER", self._first()), "last": lambda: ("PER", self._last()), "place": self._place,
            "street": self._street, "n": lambda: ("", str(draw.randrange(1, draw.choice((10, 100, 3000))))), "org": self._org,
            "product": lambda: ("", products.word()),
        }  # fmt: skip
        for name, kind in (("title", "titles"), ("thing", "things"), ("capital", "capital"), ("opener", "opener")):
            made[name] = lambda kind=kind: ("", draw.choice(data[kind]))  # type: ignore[misc] # a lambda's default
        self._made = made

    def sample(self) -> tuple[str, list[Span]]:
        """A text of one to four sentences and its entities."""
        draw = self._draw
        text, spans = "", []
        for number in range(draw.choice((1, 1, 2, 3, 4))):
            piece, found = self._sentence()
            if number:
                text += draw.choice((" ", " ", "\n", "\n\n"))
            spans += [Span(span.kind, span.start + len(text), span.end + len(text)) for span in found]
            text += piece
        chance = draw.random()
        changed = text.lower() if chance < 0.04 else text.upper() if chance < 0.06 else text
        return (changed, spans) if len(changed) == len(text) else (text, spans)

    def _sentence(self) -> tuple[str, list[Span]]:
        draw = self._draw
        chance = draw.random()
        if chance < FRAMED:
            return _filled(_SLOT, draw.choice(self._data["frames"]), self._made)
        if chance < FRAMED + CARRIED:
            return self._carried()
        return _filled(_SLOT, draw.choice(self._data["clean"]), self._made) if draw.random() < 0.4 else (draw.choice(self.prose), [])

    def _carried(self) -> tuple[str, list[Span]]:
        """A clean sentence with one or two names where none was, behind the words that names stand behind, or in front of all."""
        draw = self._draw
        words = draw.choice(self._carriers).split(" ")
        for _ in range(draw.choice((1, 1, 2))):
            place = draw.randrange(len(words) + 1)
            if place == 0:
                if words[0][1:].islower():
                    words[0] = words[0].lower()
                words.insert(0, draw.choice(self._data["first"]))
            else:
                words.insert(place, draw.choice(self._data["between"]))
        return _filled(_SLOT, " ".join(words), self._made)

    def _invented(self) -> bool:
        return self._draw.random() < INVENTED

    def _first(self) -> str:
        return self._given.word() if self._invented() else str(self._draw.choice(self._data["given"]))

    def _last(self) -> str:
        return self._family.word() if self._invented() else str(self._draw.choice(self._data["family"]))

    def _person(self) -> tuple[str, str]:
        draw = self._draw
        first, last = self._first(), self._last()
        initial = chr(ord("A") + draw.randrange(26))
        forms = (
            *[f"{first} {last}"] * 10, first, last, f"{first} {initial}. {last}", f"{initial}. {last}", f"{first} {self._first()} {last}",
            f"{first} {last}-{self._last()}", f"{first}-{self._first()} {last}", f"{first} van {last}", f"{first} de {last}",
        )  # fmt: skip
        return "PER", draw.choice(forms)

    def _place(self) -> tuple[str, str]:
        return "LOC", self._places.word() if self._invented() else str(self._draw.choice(self._data["places"]))

    def _street(self) -> tuple[str, str]:
        draw = self._draw
        values = {"n": draw.randrange(1, 300), "family": self._last(), "given": self._first(), "place": self._place()[1]}
        return "LOC", str(draw.choice(self._data["streets"])).format(**values)

    def _org(self) -> tuple[str, str]:
        draw = self._draw
        name = draw.choice((self._last, self._given.word, self._places.word))()
        return "", f"{name} {draw.choice(self._data['company'])}"

    @staticmethod
    def held(held: dict[str, Any], draw: random.Random, sentence: str) -> tuple[str, list[Span]]:
        """A sentence that was held apart, with names that were held apart."""
        made: dict[str, Callable[[], tuple[str, str]]] = {
            "person": lambda: ("PER", f"{draw.choice(held['given'])} {draw.choice(held['family'])}"),
            "first": lambda: ("PER", draw.choice(held["given"])),
            "last": lambda: ("PER", draw.choice(held["family"])),
            "place": lambda: ("LOC", draw.choice(held["places"])),
        }
        return _filled(_HELD_SLOT, sentence, made)


def _filled(slot: re.Pattern[str], frame: str, made: dict[str, Callable[[], tuple[str, str]]]) -> tuple[str, list[Span]]:
    text, spans, at = "", [], 0
    for found in slot.finditer(frame):
        text += frame[at : found.start()]
        kind, value = made[found[1]]()
        if kind:
            spans.append(Span(kind, len(text), len(text) + len(value)))
        text += value
        at = found.end()
    return text + frame[at:], spans
