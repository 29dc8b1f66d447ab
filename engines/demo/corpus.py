"""Turns the hand-written data into an endless, reproducible stream of dialogues and plain documents to train on.

The same source and seed give the same stream. Questions from heldout.yaml never appear in it, whatever their case and punctuation.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from engines.demo.chatml import END_OF_TEXT, Message, Piece, pieces
from engines.demo.phrasing import framed, normal_form, typed, varied
from engines.demo.source import Source, Talk, Topic

TURNS = ((1, 46), (2, 22), (3, 14), (4, 8), (6, 6), (9, 3), (14, 1))
"""(number of turns in a dialogue, weight)."""
KINDS = (("topic", 66), ("talk", 15), ("outside", 12), ("count", 2), ("name", 4), ("story", 1))
"""(kind of turn, weight)."""
OPENING_SHARE = 0.84
"""Share of examples with one question and the first words of its answer. They teach which answer fits and cost a fifth of a dialogue."""
OPENING_KINDS = (("topic", 70), ("talk", 12), ("outside", 13), ("more", 5))
OPENING_WORDS = 6
OPENING_SYSTEM_SHARE = 0.2
DOCUMENT_SHARE = 0.12
"""Share of the other examples that are plain documents."""
SYSTEM_SHARE = 0.45
MORE_SHARE = 0.22
"""Share of topics followed by a request for more."""
FOREMOST = {
    "gatehouse": 3,
    "circuit-breaker": 3,
    "create-key": 3,
    "quickstart": 2,
    "guardrail": 2,
    "rate-limit": 2,
    "audit": 2,
    "greet": 4,
    "name": 2,
}
"""Topics that are asked about more often than others, and how many times as often."""


@dataclass(frozen=True, slots=True)
class Example:
    """One training example: the pieces of a dialogue or document, and the ids of the topics it teaches."""

    pieces: tuple[Piece, ...]
    topics: tuple[str, ...]


class Corpus:
    """The stream of examples. Not thread-safe."""

    def __init__(self, source: Source, seed: int) -> None:
        self._source = source
        self._rng = random.Random(seed)
        self._forbidden = frozenset(normal_form(text) for texts in source.heldout.values() for text in texts)
        self._topics = [topic for topic in source.topics for _ in range(FOREMOST.get(topic.id, 1))]
        self._talks = [talk for talk in source.talks for _ in range(FOREMOST.get(talk.id, 1))]

    def examples(self) -> Iterator[Example]:
        """An endless stream of examples."""
        while True:
            if self._rng.random() < OPENING_SHARE:
                yield self._opening()
            elif self._rng.random() < DOCUMENT_SHARE:
                yield self._document()
            else:
                yield self._dialogue()

    def questions(self, topic: Topic) -> Iterator[str]:
        """An endless stream of questions about `topic`, as people might type them."""
        while True:
            kind, seed = self._rng.choice(topic.seeds)
            text = varied(self._rng, self._source.frames, framed(self._rng, self._source.frames, kind, seed))
            if normal_form(text) not in self._forbidden:
                yield text

    def _opening(self) -> Example:
        messages: list[Message] = []
        if self._rng.random() < OPENING_SYSTEM_SHARE:
            messages.append(Message("system", self._system()))
        kind = self._weighted(OPENING_KINDS)
        if kind in ("topic", "more"):
            topic = self._rng.choice(self._topics)
            self._add(messages, next(self.questions(topic)), topic.answer)
            if kind == "more" and topic.more:
                self._add(messages, typed(self._rng, self._rng.choice(self._source.frames.more)), topic.more)
            taught = topic.id
        elif kind == "talk":
            taught = self._add_talk(messages, self._rng.choice(self._talks))
        else:
            taught = self._add_outside(messages)
        *given, answer, _ = pieces(tuple(messages))
        words = answer.text.split(" ")
        return Example((*given, Piece(" ".join(words[:OPENING_WORDS]), learned=True)), (taught,))

    def _weighted(self, table: tuple[tuple[str, int], ...] | tuple[tuple[int, int], ...]) -> str | int:
        return self._rng.choices([value for value, _ in table], weights=[weight for _, weight in table])[0]

    def _allowed(self, text: str, otherwise: str) -> str:
        return otherwise if normal_form(text) in self._forbidden else text

    def _dialogue(self) -> Example:
        messages: list[Message] = []
        topics: list[str] = []
        name: str | None = None
        if self._rng.random() < SYSTEM_SHARE:
            messages.append(Message("system", self._system()))
        for _ in range(int(self._weighted(TURNS))):
            kind = self._weighted(KINDS)
            if kind == "topic":
                topics += self._add_topic(messages)
            elif kind == "talk":
                topics.append(self._add_talk(messages, self._rng.choice(self._talks)))
            elif kind == "outside":
                topics.append(self._add_outside(messages))
            elif kind == "count":
                topics.append(self._add_count(messages))
            elif kind == "name":
                name = self._add_name(messages, name)
                topics.append("names")
            else:
                self._add(messages, typed(self._rng, self._rng.choice(self._source.extras.story_ask)), self._source.extras.story)
                topics.append("story")
        return Example(tuple(pieces(tuple(messages))), tuple(topics))

    @staticmethod
    def _add(messages: list[Message], question: str, answer: str) -> None:
        messages += (Message("user", question), Message("assistant", answer))

    def _add_topic(self, messages: list[Message]) -> list[str]:
        topic = self._rng.choice(self._topics)
        self._add(messages, next(self.questions(topic)), topic.answer)
        if topic.more and self._rng.random() < MORE_SHARE:
            self._add(messages, typed(self._rng, self._rng.choice(self._source.frames.more)), topic.more)
            return [topic.id, topic.id]
        return [topic.id]

    def _add_talk(self, messages: list[Message], talk: Talk) -> str:
        first = not any(message.role == "user" for message in messages)
        if talk.id == "more-of-nothing" and not first:
            talk = next(other for other in self._source.talks if other.id == "thanks")
        text = typed(self._rng, self._rng.choice(talk.ask))
        self._add(messages, self._allowed(text, talk.ask[0]), talk.answer)
        return talk.id

    def _add_outside(self, messages: list[Message]) -> str:
        outside = self._source.outside
        if self._rng.random() < 0.35:
            text = self._rng.choice(outside.questions)
        else:
            text = self._rng.choice(outside.frames).format(x=self._subject(), y=self._subject())
        text = varied(self._rng, self._source.frames, text)
        self._add(messages, self._allowed(text, outside.subjects[0]), outside.answer)
        return "outside"

    def _subject(self) -> str:
        """A subject that the model does not know. One in eight is an invented word, to teach it what unknown words look like."""
        if self._rng.random() < 0.125:
            return "".join(self._rng.choices(self._source.outside.syllables, k=self._rng.randint(2, 4)))
        return self._rng.choice(self._source.outside.subjects)

    def _add_count(self, messages: list[Message]) -> str:
        last = self._rng.choice((3, 5, 10, 10, 20, 30, 50, 100, self._rng.randint(2, 100)))
        text = typed(self._rng, self._rng.choice(self._source.extras.count_ask).format(n=last))
        self._add(messages, text, ", ".join(str(number) for number in range(1, last + 1)) + ".")
        return "count"

    def _add_name(self, messages: list[Message], name: str | None) -> str | None:
        extras = self._source.extras
        if name is None and self._rng.random() < 0.75:
            name = self._rng.choice(extras.names)
            text = typed(self._rng, self._rng.choice(extras.introduce).format(name=name))
            self._add(messages, text, extras.introduced.format(name=name))
        if name is None or self._rng.random() < 0.8:
            answer = extras.unknown_name if name is None else extras.known_name.format(name=name)
            self._add(messages, typed(self._rng, self._rng.choice(extras.ask_name)), answer)
        return name

    def _system(self) -> str:
        systems = self._source.systems
        if self._rng.random() < 0.5:
            return self._rng.choice(systems.fixed)
        names = self._source.extras.names
        text = "".join(self._rng.choice(part) for part in systems.parts)
        return text.strip().replace("{name}", self._rng.choice(names))

    def _document(self) -> Example:
        """Plain text for /v1/completions about one or two topics, as prose or as questions and answers."""
        topics = self._rng.sample(self._source.topics, self._rng.choice((1, 1, 2)))
        if self._rng.random() < 0.3:
            parts = [f"Question: {next(self.questions(topic))}\nAnswer: {topic.answer}" for topic in topics]
        else:
            parts = [f"{topic.answer} {topic.more}".strip() for topic in topics]
        return Example((Piece("\n\n".join(parts) + END_OF_TEXT, learned=True),), tuple(topic.id for topic in topics))
