"""Who runs next, what happens to those who leave or do not read, and faults: with a model that does as the test says."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from engines.chat.events import Event, Mailbox
from engines.chat.sampling import SamplingParams
from engines.genai.native import GenaiModel, GuidanceError
from engines.genai.runner import BACKLOG, MAX_FAULTS, GenaiJob, Runner
from engines.genai.vocabulary import GenaiVocabulary
from engines.sidecar.shell import ApiError

END = 2
LATE = 60.0


@dataclass
class FakeModel:
    """Each sequence notes its prompt's first token, waits for the gate and does what `step` says."""

    step: Callable[[], int] = lambda: 7
    eos: frozenset[int] = frozenset({END})
    gate: threading.Event = field(default_factory=threading.Event)
    begun: list[int] = field(default_factory=list)
    made: int = 0

    def sequence(self, params: SamplingParams, longest: int, *, ignore_eos: bool = False) -> Any:
        return FakeText(self)


@dataclass
class FakeText:
    model: FakeModel
    guided: bool = False
    done: bool = False

    def read(self, tokens: list[int]) -> None:
        self.model.begun.append(tokens[0])
        assert self.model.gate.wait(LATE)

    def next(self, logprobs: int | None = None) -> tuple[int, None]:
        self.model.made += 1
        return self.model.step(), None


class FakeVocabulary:
    def piece(self, token: int) -> bytes:
        return b"x"


@pytest.fixture
def model() -> FakeModel:
    return FakeModel()


@pytest.fixture
async def runner(model: FakeModel) -> AsyncIterator[Runner]:
    made = Runner(cast(GenaiModel, model), cast(GenaiVocabulary, FakeVocabulary()), slots=1, queue=3, chunk=16)
    made.start()
    yield made
    model.gate.set()
    await asyncio.to_thread(made.close)


def job(first: int, *, priority: int = 1, deadline: float = math.inf, tokens: int = 1) -> GenaiJob:
    return GenaiJob(
        index=0,
        tokens=[first],
        prompt=1,
        priority=priority,
        deadline=deadline,
        max_tokens=tokens,
        params=SamplingParams(),
        mailbox=Mailbox(),
    )


async def ends(made: GenaiJob) -> Event:
    async with asyncio.timeout(LATE):
        while True:
            for _job, event in await made.mailbox.get():
                if event.finish is not None or event.error is not None:
                    return event


async def reached(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(LATE):
        while not condition():
            await asyncio.sleep(0.002)


async def test_by_priority_then_arrival_and_within_bounds(model: FakeModel, runner: Runner) -> None:
    first = job(10)
    runner.submit([first])
    await reached(lambda: model.begun == [10])
    others = [job(11, priority=2), job(12), job(13, priority=0)]
    runner.submit(others)
    assert (runner.stats.in_use, runner.stats.waiting) == (1, 3)
    with pytest.raises(ApiError) as full:
        runner.submit([job(14)])
    assert (full.value.status, full.value.code) == (503, "overloaded")
    model.gate.set()
    assert [(await ends(made)).finish for made in (first, *others)] == ["length"] * 4
    assert model.begun == [10, 13, 12, 11]
    await reached(lambda: (runner.stats.in_use, runner.stats.cells) == (0, 0))


async def test_who_waits_too_long_or_leaves_is_never_begun(model: FakeModel, runner: Runner) -> None:
    first, late, gone = job(10), job(11, deadline=time.monotonic() - 1), job(12)
    runner.submit([first])
    await reached(lambda: model.begun == [10])
    runner.submit([late, gone])
    runner.cancel(gone)
    runner.cancel(gone)
    assert (runner.stats.waiting, runner.stats.cancelled) == (1, 1)
    model.gate.set()
    assert (await ends(first)).finish == "length"
    error = (await ends(late)).error
    assert error is not None and error.status == 504
    assert model.begun == [10]
    runner.check_room(4)


async def test_who_leaves_while_he_is_served_frees_his_slot(model: FakeModel, runner: Runner) -> None:
    endless = job(10, tokens=1 << 30)
    model.gate.set()
    runner.submit([endless])
    await reached(lambda: model.made)
    runner.cancel(endless)
    after = job(11)
    runner.submit([after])
    assert (await ends(after)).finish == "length"
    await reached(lambda: endless.ended)
    runner.check_room(4)


async def test_who_does_not_read_waits_and_goes_on_when_he_does(model: FakeModel, runner: Runner) -> None:
    model.gate.set()
    slow = job(10, tokens=BACKLOG * 2)
    runner.submit([slow])
    await reached(lambda: slow.paused)
    assert slow.produced == BACKLOG + 1 == model.made
    count = 0
    async with asyncio.timeout(LATE):
        while count < BACKLOG * 2:
            count += len(await slow.mailbox.get())
            if slow.paused:
                runner.resume(slow)
    await reached(lambda: slow.ended)


async def test_an_end_is_no_token(model: FakeModel, runner: Runner) -> None:
    model.gate.set()
    model.step = lambda: END
    made = job(10, tokens=5)
    runner.submit([made])
    event = await ends(made)
    assert (event.token, event.finish, made.produced) == (None, "stop", 0)


async def test_faults_end_their_job_alone_and_many_in_a_row_the_engine(
    model: FakeModel, runner: Runner, capfd: pytest.CaptureFixture[str]
) -> None:
    model.gate.set()

    def fail() -> int:
        raise RuntimeError("idx=secret")

    def refuse() -> int:
        raise GuidanceError("no such type")

    for step, status in ((fail, 500), (fail, 500), (refuse, 400), (lambda: END, None), *[(fail, 500)] * MAX_FAULTS):
        assert runner.failed is None
        model.step = step
        made = job(10)
        runner.submit([made])
        error = (await ends(made)).error
        assert (None if error is None else error.status) == status
    assert runner.failed is not None and runner.stats.faults == 2 + MAX_FAULTS
    with pytest.raises(ApiError, match="the engine failed"):
        runner.check_room()
    assert "secret" not in capfd.readouterr().err
