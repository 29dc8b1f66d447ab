"""Varies how a question is asked: frames, synonyms, capital letters, punctuation and typos.

All randomness comes from the given `random.Random`, so the same seed gives the same questions.
"""

import random
import re
from dataclasses import dataclass

ARTICLES = ("a ", "an ", "the ")
KEYBOARD_ROWS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
QUESTION = re.compile(
    r"\W*(what|how|why|who|whose|where|when|which|can|could|is|are|do|does|did|may|will|would|should|must|was|were|has)\b", re.I
)
SHORTER = (
    ("what is", "whats"),
    ("how do i", "how i"),
    ("please", "pls"),
    ("you", "u"),
    ("are", "r"),
    ("thanks", "thx"),
    ("do not", "dont"),
)


@dataclass(frozen=True, slots=True)
class Frames:
    """The sentence patterns of data/frames.yaml."""

    what: tuple[str, ...]
    how: tuple[str, ...]
    ask: tuple[str, ...]
    before: tuple[str, ...]
    after: tuple[str, ...]
    more: tuple[str, ...]
    synonyms: dict[str, tuple[str, ...]]


def normal_form(text: str) -> str:
    """Lower case, words only: two texts with the same normal form count as the same question."""
    return " ".join(re.findall(r"[a-z0-9]+", text.lower()))


def bare(noun: str) -> str:
    """The noun phrase without its article."""
    for article in ARTICLES:
        if noun.startswith(article):
            return noun[len(article) :]
    return noun


def is_question(text: str) -> bool:
    """Whether the text begins like a question, and so takes a question mark."""
    return QUESTION.match(text) is not None


def framed(rng: random.Random, frames: Frames, kind: str, seed: str) -> str:
    """`seed` in a random frame of its kind: a noun phrase for `what`, a verb phrase for `how`, otherwise a question."""
    if kind == "what":
        return rng.choice(frames.what).format(s=seed, b=bare(seed))
    if kind == "how":
        return rng.choice(frames.how).format(v=seed)
    return rng.choice(frames.ask).format(q=seed)


def varied(rng: random.Random, frames: Frames, text: str) -> str:
    """`text` as a person might type it: a few changes at most, often none."""
    if rng.random() < 0.15:
        text = _replace_synonym(rng, frames, text)
    if rng.random() < 0.08:
        text = rng.choice(frames.before) + text
    if rng.random() < 0.08:
        text = text + rng.choice(frames.after)
    return typed(rng, text)


def typed(rng: random.Random, text: str) -> str:
    """`text` with the capital letters, punctuation and typos of a person typing."""
    style = rng.random()
    if style < 0.55:
        text = _proper(rng, text)
    elif style < 0.95:
        text = text.lower() + rng.choice(("", "", "", "?", "?", " ?", "??", ".", "...", "!"))
    else:
        text = text.upper() + rng.choice(("", "?"))
    if rng.random() < 0.06:
        text = _shorten(rng, text)
    if rng.random() < 0.18:
        text = _mistype(rng, text)
        if rng.random() < 0.3:
            text = _mistype(rng, text)
    return text


def _proper(rng: random.Random, text: str) -> str:
    text = re.sub(r"\bi\b", "I", text)
    text = text[:1].upper() + text[1:]
    if text.endswith((".", "?", "!")):
        return text
    end = "?" if is_question(text) else rng.choice((".", ".", "", "!"))
    return text if rng.random() < 0.12 else text + end


def _replace_synonym(rng: random.Random, frames: Frames, text: str) -> str:
    words = text.split(" ")
    places = [index for index, word in enumerate(words) if word in frames.synonyms]
    if not places:
        return text
    place = rng.choice(places)
    words[place] = rng.choice(frames.synonyms[words[place]])
    return " ".join(words)


def _shorten(rng: random.Random, text: str) -> str:
    long, short = rng.choice(SHORTER)
    return re.sub(rf"\b{long}\b", short, text, flags=re.IGNORECASE)


def _mistype(rng: random.Random, text: str) -> str:
    places = [index for index, letter in enumerate(text) if letter.isalpha()]
    if len(places) < 6:
        return text
    at = rng.choice(places)
    mistake = rng.randrange(4)
    if mistake == 0:
        return text[:at] + text[at + 1 :]
    if mistake == 1:
        return text[: at + 1] + text[at:]
    if mistake == 2 and at + 1 < len(text):
        return text[:at] + text[at + 1] + text[at] + text[at + 2 :]
    return text[:at] + _neighbour(rng, text[at]) + text[at + 1 :]


def _neighbour(rng: random.Random, letter: str) -> str:
    for row in KEYBOARD_ROWS:
        at = row.find(letter.lower())
        if at >= 0:
            return rng.choice(row[max(0, at - 1) : at + 2])
    return letter
