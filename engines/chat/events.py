"""What a runtime's thread hands the event loop, token by token, and the job as the loop sees it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Generic, Literal, Protocol, TypeVar

from engines.chat.sampling import TopLogprobs
from engines.sidecar.shell import ApiError

Finish = Literal["stop", "length"]


@dataclass(slots=True)
class Event:
    """One step's result for one sequence: a token (None if it only ends), and why it ended, if it did."""

    token: int | None
    piece: bytes = b""
    logprobs: TopLogprobs | None = None
    finish: Finish | None = None
    error: ApiError | None = None


class Job(Protocol):
    """One sequence to generate. tokens: of its prompt, `prompt` many, of which `reused` were in the KV memory. after: the job whose prompt
    it shares. placed, read: when it got a slot and when its prompt was read (perf_counter_ns; 0: not yet). paused: it waits for its reader,
    who counts in `consumed` the events taken. prompt_scores: of the prompt's tokens from the second on, if they were asked for."""

    index: int
    tokens: list[int]
    prompt: int
    reused: int
    placed: int
    read: int
    paused: bool
    consumed: int
    prompt_scores: list[TopLogprobs]

    @property
    def after(self) -> object | None: ...


J = TypeVar("J", bound=Job)


class Mailbox(Generic[J]):
    """The loop's end of one request's jobs: events in order, for one reader."""

    __slots__ = ("_events", "_waiter")

    def __init__(self) -> None:
        self._events: list[tuple[J, Event]] = []
        self._waiter: asyncio.Future[None] | None = None

    def put(self, job: J, event: Event) -> None:
        """Called by the batcher, on the loop."""
        self._events.append((job, event))
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def get(self) -> list[tuple[J, Event]]:
        """All events since the last call; waits for at least one."""
        if not self._events:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        events, self._events = self._events, []
        for job, _event in events:
            job.consumed += 1
        return events
