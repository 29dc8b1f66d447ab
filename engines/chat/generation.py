"""The loop's side of a request: its choices, their text, and how much of it may be sent. No HTTP, no JSON."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from engines.chat.events import Event, Finish, J, Mailbox
from engines.chat.sampling import TopLogprobs
from engines.chat.text import Assembler

R = TypeVar("R", contravariant=True)


@dataclass(slots=True)
class Delta:
    """News of one choice: text that is certain, the tokens it was made of with their scores (if requested), and the end."""

    index: int
    text: str
    scores: list[tuple[int, TopLogprobs]] = field(default_factory=list)
    finish: Finish | None = None


class Runner(Protocol[R]):
    """What runs jobs. All on the loop."""

    def submit(self, jobs: Sequence[R], /) -> None:
        """Queue jobs that belong together. Raises ApiError 503 if they do not fit."""

    def cancel(self, job: R, /) -> None:
        """Stop a job: no more events come. Harmless if it has ended."""

    def resume(self, job: R, /) -> None:
        """The reader of a paused job has caught up."""


class Choice(Generic[J]):
    """One sequence of a request."""

    __slots__ = ("_scores", "assembler", "finish", "job", "tokens")

    def __init__(self, job: J, stops: tuple[str, ...]) -> None:
        self.job = job
        self.assembler = Assembler(stops)
        self.tokens = 0
        self.finish: Finish | None = None
        self._scores: list[tuple[int, TopLogprobs]] = []

    def take(self, event: Event) -> Delta:
        """Add one event. Raises the event's error."""
        if event.error is not None:
            raise event.error
        text = ""
        if event.token is not None:
            self.tokens += 1
            text = self.assembler.feed(event.piece)
            if event.logprobs is not None:
                self._scores.append((event.token, event.logprobs))
        finish = event.finish
        if self.assembler.stopped is None and finish is not None:
            text += self.assembler.finish()
        if self.assembler.stopped is not None:
            finish = "stop"
            if not text:
                self._scores = []
        self.finish = finish
        scores = self._scores
        if scores and (text or finish is not None):
            self._scores = []
        else:
            scores = []
        return Delta(self.job.index, text, scores, finish)


class Generation(Generic[J]):
    """All choices of one request. Iterate `deltas`; closing the iterator early cancels what still runs."""

    def __init__(self, batcher: Runner[J], mailbox: Mailbox[J], jobs: Sequence[J], stops: tuple[str, ...]) -> None:
        self._batcher = batcher
        self._mailbox = mailbox
        self._choices = {id(job): Choice(job, stops) for job in jobs}
        self.jobs = jobs
        self._submitted = 0

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompts, each counted once however many choices share it."""
        return sum(job.prompt for job in self.jobs if job.after is None)

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that were in the KV memory already."""
        return sum(job.reused for job in self.jobs if job.after is None)

    @property
    def completion_tokens(self) -> int:
        """Tokens generated so far, over all choices."""
        return sum(choice.tokens for choice in self._choices.values())

    def submit(self) -> None:
        """Queue the jobs; raises ApiError 503 when they do not fit."""
        self._batcher.submit(self.jobs)
        self._submitted = time.perf_counter_ns()

    def phases(self) -> list[tuple[str, int]]:
        """For a trace: the prompt was made, the first sequence got a slot, its prompt was read, all choices were written."""
        first = self.jobs[0]
        found = [("prepare", self._submitted), ("queue", first.placed), ("prefill", first.read)]
        if first.read and all(choice.finish is not None for choice in self._choices.values()):
            found.append(("decode", time.perf_counter_ns()))
        return [(name, at) for name, at in found if at]

    def cancel(self) -> None:
        """Stop everything that still runs; the slots are free at the next step."""
        for choice in self._choices.values():
            if choice.finish is None:
                self._batcher.cancel(choice.job)

    async def deltas(self) -> AsyncGenerator[list[Delta], None]:
        """Yields what each hand-over of the decode thread brought, until every choice has ended. Raises ApiError."""
        open_choices = len(self._choices)
        try:
            while open_choices:
                news: list[Delta] = []
                for job, event in await self._mailbox.get():
                    choice = self._choices[id(job)]
                    if choice.finish is not None:
                        continue  # tokens already under way when a stop string was found
                    delta = choice.take(event)
                    if delta.finish is not None:
                        open_choices -= 1
                        if event.finish is None:
                            self._batcher.cancel(job)
                    elif job.paused:
                        self._batcher.resume(job)
                    if delta.text or delta.finish is not None or delta.scores:
                        news.append(delta)
                if news:
                    yield news
        finally:
            self.cancel()


async def collect(generation: Generation[Any]) -> list[tuple[str, list[tuple[int, TopLogprobs]], str | None]]:
    """Run to the end; text, scores and finish reason of each choice."""
    texts: list[list[str]] = [[] for _ in generation.jobs]
    scores: list[list[tuple[int, TopLogprobs]]] = [[] for _ in generation.jobs]
    finishes: list[str | None] = [None] * len(generation.jobs)
    async with aclosing(generation.deltas()) as deltas:
        async for news in deltas:
            for delta in news:
                texts[delta.index].append(delta.text)
                scores[delta.index].extend(delta.scores)
                finishes[delta.index] = delta.finish
    return [("".join(text), score, finish) for text, score, finish in zip(texts, scores, finishes, strict=True)]
