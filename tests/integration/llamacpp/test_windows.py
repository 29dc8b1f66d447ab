"""Layers with a sliding window that keep no more than their window (`swa_full: false`): the same text, less memory, less reuse."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from engines.llamacpp.batcher import Batcher
from engines.llamacpp.gguf import describe, read_model
from engines.llamacpp.native import Context, Model, NativeLog
from engines.llamacpp.scheduler import StepCosts
from loadtests.llamacpp.random_gguf import Shape, write_windowed
from tests.integration.llamacpp.process import Sidecar
from tests.integration.llamacpp.test_speculation import Answer, Request, read, warm

SHAPE = Shape(layers=4, width=64, heads=4, kv_heads=2, feed_forward=128, extra_words=400)
WINDOW = 32
LOG = NativeLog()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_windowed(tmp_path_factory.mktemp("windows") / "m.gguf", SHAPE, WINDOW)


@pytest.fixture(scope="module")
def model(file: Path) -> Iterator[Model]:
    model = Model(str(file), LOG, gpu_layers=0, use_mmap=True, use_mlock=False)
    yield model
    model.close()


class Engines:
    """Two engines for one model: whole, and with windows only."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.contexts = [
            Context(
                model, LOG, cells=4096, sequences=6, batch=64, micro_batch=64, threads=1, threads_batch=1, unified=unified, swa_full=full
            )
            for full, unified in ((True, True), (False, True), (False, False))
        ]
        self.batchers = [Batcher(model, one, slots=4, queue=8, batch=64, lines=6, costs=StepCosts()) for one in self.contexts]
        for batcher in self.batchers:
            batcher.start()

    async def run(self, requests: list[Request]) -> list[list[Answer]]:
        """All requests at once, by each engine after the other."""
        found = []
        for batcher in self.batchers:
            jobs = [request.job(self.model, False) for request in requests]
            batcher.submit(jobs)
            found.append(await asyncio.gather(*map(read, jobs)))
        return found

    def close(self) -> None:
        for batcher, context in zip(self.batchers, self.contexts, strict=True):
            batcher.close()
            context.close()


@pytest.fixture
async def engines(model: Model) -> AsyncIterator[Engines]:
    engines = Engines(model)
    yield engines
    engines.close()


def words(seed: int, count: int) -> tuple[int, ...]:
    return tuple(265 + (seed * 7 + number * 13) % 90 for number in range(count))


def tokens(answers: list[Answer]) -> list[list[int]]:
    return [answer.tokens for answer in answers]


async def test_the_tokens_are_the_same_far_beyond_the_window(engines: Engines) -> None:
    requests = [Request(warm(0, number), last=300 + number, more=words(number, 40 * number), tokens=150) for number in range(4)]
    whole, shared, own = await engines.run(requests)
    assert tokens(whole) == tokens(shared) == tokens(own)
    assert [len(one.tokens) for one in whole] == [150] * 4


async def test_whole_conversations_are_gone_on_with_and_beginnings_are_not_shared(engines: Engines) -> None:
    first = Request(warm(0, 1), last=300, more=words(1, 100), tokens=50)
    answers = await engines.run([first])
    said = tuple(answers[0][0].tokens)
    turn = Request(warm(0, 1), last=300, more=(*first.more, *said, *words(2, 20)), tokens=50)
    again = await engines.run([turn])
    assert [one[0].reused for one in again] == [162, 162, 162], "prompt of 113 tokens and all but the last of the answer"
    other = await engines.run([Request(warm(0, 1), last=300, more=(*first.more, *words(3, 20)), tokens=50)])
    assert [one[0].reused for one in other] == [113, 0, 0]
    assert tokens(again[0]) == tokens(again[1]) == tokens(again[2]) and tokens(other[0]) == tokens(other[1]) == tokens(other[2])


async def test_many_conversations_by_turns_never_run_out_of_cells(engines: Engines) -> None:
    for turn in range(2):
        requests = [Request(warm(0, 1), last=300 + number, more=words(number, 60 + 150 * turn), tokens=20) for number in range(8)]
        for request in requests:
            whole, shared, own = await engines.run([request])
            assert tokens(whole) == tokens(shared) == tokens(own)
        assert [len(one.tokens) for answers in await engines.run(requests) for one in answers] == [20] * 24
    assert [batcher.stats.faults for batcher in engines.batchers] == [0, 0, 0]


def test_the_file_says_which_layers_have_a_window(file: Path) -> None:
    found = describe(read_model(file))
    assert (found.window, found.windowed) == (WINDOW, (True, False, True, False))


@pytest.fixture
def windows(file: Path, models: Path) -> str:
    (models / "windows.gguf").write_bytes(file.read_bytes())
    return "windows.gguf"


def test_guesses_and_windows_are_refused_together(windows: str, start: Callable[..., Sidecar]) -> None:
    report = start(windows, options={"speculation": {}, "swa_full": False}).wait("failed", "ready")
    assert report["reason"].startswith("options.speculation: not with this model, with swa_full: false its memory cannot forget")


def test_a_sidecar_with_windows_answers(windows: str, start: Callable[..., Sidecar]) -> None:
    sidecar = start(windows, options={"swa_full": False, "pinned": ["You are short."]})
    ready = sidecar.wait("ready", "failed")
    assert ready["state"] == "ready", ready
    assert sidecar.complete(max_tokens=80, ignore_eos=True)["usage"]["completion_tokens"] == 80
