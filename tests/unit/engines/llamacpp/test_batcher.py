"""The decode thread with a real (tiny) model, and a context that fails when the test says so."""

import asyncio
import math
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engines.chat.events import Event, Mailbox
from engines.chat.sampling import SamplingParams
from engines.llamacpp import app
from engines.llamacpp import batcher as batcher_module
from engines.llamacpp.app import LlamaRuntime
from engines.llamacpp.batcher import BACKLOG, MAX_FAULTS, Batcher
from engines.llamacpp.jobs import SequenceJob
from engines.llamacpp.native import Batch, Context, Model, NativeLog
from engines.llamacpp.pacing import HOLD, Pacer
from engines.llamacpp.sampling import Sampler
from engines.llamacpp.scheduler import StepCosts
from engines.sidecar.shell import ApiError
from gateway.core.specs import SidecarSpec
from loadtests.llamacpp.random_gguf import Shape, write
from tests.waiting import reached

DEADLINE = 150.0


class ScriptedContext(Context):
    """Runs llama.cpp, unless `script` holds another result for the next steps. `gate` holds a step back."""

    script: list[int]
    sequences: list[set[int]]
    before: Callable[[], None] | None

    def decode(self, batch: Batch) -> int:
        if self.before is not None:
            self.before()
        self.sequences.append(set(batch.seq[: batch.count].tolist()))
        return self.script.pop(0) if self.script else super().decode(batch)


@pytest.fixture(scope="module")
def log() -> NativeLog:
    return NativeLog()


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("model") / "m.gguf", Shape(layers=1, width=32, heads=2, kv_heads=1, feed_forward=32))


@pytest.fixture(scope="module")
def model(model_file: Path, log: NativeLog) -> Iterator[Model]:
    model = Model(str(model_file), log, gpu_layers=0, use_mmap=True, use_mlock=False)
    yield model
    model.close()


Maker = Callable[..., tuple[Batcher, ScriptedContext]]


@pytest.fixture
async def make(model: Model, log: NativeLog) -> AsyncIterator[Maker]:
    made: list[tuple[Batcher, ScriptedContext]] = []

    def maker(
        slots: int = 2, queue: int = 8, cells: int = 2048, outputs: int = 64, unified: bool = True
    ) -> tuple[Batcher, ScriptedContext]:
        lines = slots * 2
        context = ScriptedContext(
            model,
            log,
            cells=cells,
            sequences=lines,
            batch=64,
            micro_batch=64,
            threads=1,
            threads_batch=1,
            outputs=outputs,
            unified=unified,
        )
        context.script, context.sequences, context.before = [], [], None
        batcher = Batcher(model, context, slots=slots, queue=queue, batch=64, lines=lines, costs=StepCosts(), outputs=outputs)
        batcher.start()
        made.append((batcher, context))
        return made[-1]

    yield maker
    for batcher, context in made:
        batcher.close()
        context.close()


def job(model: Model, tokens: list[int] | None = None, *, count: int = 4, priority: int = 1, **more: Any) -> SequenceJob:
    tokens = tokens or [1, 300, 301, 302]
    sampler = Sampler(model, SamplingParams(temperature=0), tokens)
    return SequenceJob(
        priority=priority, arrival=0, prompt=len(tokens), tokens=tokens, sampler=sampler, max_tokens=count, mailbox=Mailbox(),
        ignore_eos=True, **more,
    )  # fmt: skip


async def read(item: SequenceJob, batcher: Batcher | None = None) -> list[Event]:
    """batcher: of a job with more than BACKLOG tokens, which waits for a reader that falls behind."""
    events: list[Event] = []
    while not events or (events[-1].finish is None and events[-1].error is None):
        events += [event for _, event in await asyncio.wait_for(item.mailbox.get(), DEADLINE)]
        if batcher is not None and item.paused:
            batcher.resume(item)
    return events


async def test_a_job_gets_its_tokens_one_event_each(make: Maker, model: Model) -> None:
    batcher, _ = make()
    item = job(model)
    batcher.submit([item])
    events = await read(item)
    assert [event.finish for event in events] == [None, None, None, "length"] and all(event.token is not None for event in events)


async def test_all_sequences_share_a_step(make: Maker, model: Model) -> None:
    batcher, context = make(slots=4, queue=0)
    jobs = [job(model, [1, 300 + n], count=8) for n in range(4)]
    batcher.submit(jobs)
    await asyncio.gather(*map(read, jobs))
    assert max(map(len, context.sequences)) == 4
    assert batcher.stats.steps < 20


@pytest.mark.parametrize("hold", [0.0, HOLD])
async def test_tokens_that_are_held_while_a_prompt_is_read_come_all_and_in_order(model: Model, make: Maker, hold: float) -> None:
    """Nobody waits here for the pace: what ends an answer brings all that was held."""
    batcher, context = make(cells=1024)
    for streams in (1, 2):
        batcher.costs.observe(streams, 0, 0.2)
    batcher.costs.observe(1, 16, 0.2 + 16 * 0.03)  # six tokens fit into a step, which is few
    batcher._pacer = Pacer(batcher.costs, hold)
    decided: list[tuple[int, int]] = []
    observed = batcher.costs.observe

    def observe(decode: int, prefill: int, seconds: float, depth: float = 0.0) -> None:
        decided.append((decode, prefill))
        if not decode:
            observed(decode, prefill, seconds, depth)

    batcher.costs.observe = observe  # type: ignore[method-assign]  # steps cost what the test says
    stream, both = job(model, [1, 310], count=400), threading.Event()

    def not_alone() -> None:
        """The stream does not get on before the prompt is there."""
        if stream.produced:
            assert both.wait(DEADLINE)

    context.before = not_alone
    batcher.submit([stream])
    await reached(lambda: stream.produced)
    long = job(model, [1, *(300 + n % 4 for n in range(200))], count=2)
    batcher.submit([long])
    both.set()
    first, second = await asyncio.gather(read(stream, batcher), read(long))
    assert len(first) == 400 and len(second) == 2 and first[-1].finish == second[-1].finish == "length"
    alone = job(model, [1, 310], count=400)
    batcher.submit([alone])
    assert [event.token for event in first] == [event.token for event in await read(alone, batcher)]
    pieces = [prefill for decode, prefill in decided if decode and prefill]
    assert max(pieces) > 12 if hold else max(pieces) <= 8


async def test_a_failed_step_ends_its_jobs_and_the_engine_goes_on(make: Maker, model: Model) -> None:
    batcher, context = make()
    context.script = [-1]
    first = job(model)
    batcher.submit([first])
    error = (await read(first))[-1].error
    assert error is not None and error.status == 500 and error.code == "engine_failed"
    second = job(model)
    batcher.submit([second])
    assert (await read(second))[-1].finish == "length" and batcher.failed is None


async def test_a_fault_before_the_step_is_told_to_whoever_was_admitted(
    make: Maker, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    batcher, context = make()
    monkeypatch.setattr(context, "trim", lambda *_: 1 / 0)
    item = job(model)
    batcher.submit([item])
    error = (await read(item))[-1].error
    assert error is not None and error.code == "engine_failed"
    monkeypatch.undo()
    second = job(model)
    batcher.submit([second])
    assert (await read(second))[-1].finish == "length"


async def test_an_engine_that_keeps_failing_says_so(make: Maker, model: Model) -> None:
    batcher, context = make()
    context.script = [-1] * MAX_FAULTS
    for _ in range(MAX_FAULTS):
        item = job(model)
        batcher.submit([item])
        await read(item)
    await reached(lambda: batcher.failed is not None)
    with pytest.raises(ApiError) as caught:
        batcher.check_room()
    assert caught.value.status == 503 and caught.value.code == "engine_failed"


class EndlessSampler(Sampler):
    """A grammar whose search for the next token ends when the test says so."""

    def __init__(self, model: Model) -> None:
        super().__init__(model, SamplingParams(temperature=0), [])
        self.searching, self.found = threading.Event(), threading.Event()

    @property
    def constrained(self) -> bool:
        return True

    def sample(self, context: Context, index: int) -> int:
        self.searching.set()
        self.found.wait(DEADLINE)
        return super().sample(context, index)


async def test_a_grammar_without_an_end_is_a_failed_engine_until_it_ends(
    model_file: Path, log: NativeLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """The supervisor ends an engine that says so (test_supervisor.py): nothing else can."""
    spec = SidecarSpec(name="e", runtime="llama.cpp", model=str(model_file), socket="", state_dir=str(tmp_path), slots=2, context=64)
    monkeypatch.setattr(app, "NativeLog", lambda: log)  # llama.cpp has one log, and it must outlive the runtime here
    runtime = LlamaRuntime(spec)
    monkeypatch.setattr(sys, "setswitchinterval", lambda seconds: None)
    await asyncio.to_thread(runtime.load)
    await runtime.start()
    sampler = EndlessSampler(runtime.generator().model)
    try:
        batcher = runtime.generator().batcher
        item = SequenceJob(
            priority=1, arrival=0, prompt=2, tokens=[1, 300], sampler=sampler, max_tokens=1, mailbox=Mailbox(), ignore_eos=True
        )  # fmt: skip
        batcher.submit([item])
        await reached(sampler.searching.is_set)
        monkeypatch.setattr(batcher_module, "STUCK_SECONDS", 2 * DEADLINE)
        assert "state" not in runtime.health()  # it is only slow
        monkeypatch.setattr(batcher_module, "STUCK_SECONDS", 0.0)
        report = runtime.health()
        assert (report["state"], report["reason"], report["reason_code"]) == ("failed", "a grammar has no end", "engine_failed")
        sampler.found.set()
        assert (await read(item))[-1].finish is not None
        assert "state" not in runtime.health()
    finally:
        sampler.found.set()
        await runtime.aclose()


async def test_no_room_in_the_memory_costs_the_cached_lines_first(make: Maker, model: Model) -> None:
    batcher, context = make()
    done = job(model)
    batcher.submit([done])
    await read(done)
    context.script = [1]
    item = job(model, [1, 200, 201, 202, 203])
    batcher.submit([item])
    assert (await read(item))[-1].finish == "length"


async def test_cached_lines_never_crowd_out_running_ones(make: Maker, model: Model) -> None:
    batcher, context = make(slots=2, cells=512)
    for n in range(12):
        item = job(model, [1] + [260 + n] * 200, count=20)
        batcher.submit([item])
        assert (await read(item))[-1].finish == "length"
    assert batcher.stats.cells_used <= context.cells and batcher.stats.faults == 0


async def test_cancelling_frees_the_slot_at_the_next_step(make: Maker, model: Model) -> None:
    batcher, _ = make(slots=1, queue=1)
    endless, waiting = job(model, count=1900), job(model, [1, 310], count=1)
    batcher.submit([endless, waiting])
    await endless.mailbox.get()
    with pytest.raises(ApiError) as caught:
        batcher.submit([job(model)])
    assert caught.value.status == 503 and caught.value.code == "overloaded"
    batcher.cancel(endless)
    assert (await read(waiting))[-1].finish == "length"
    assert endless.ended and endless.generated < 1900 and batcher.stats.cancelled == 1
    await reached(lambda: batcher._outstanding == 0)


async def test_who_waits_is_served_by_priority_and_expires(make: Maker, model: Model) -> None:
    batcher, _ = make(slots=1, queue=8)
    order: list[SequenceJob] = []

    class Noting(Mailbox):
        def put(self, item: SequenceJob, event: Event) -> None:
            if event.finish is not None:
                order.append(item)
            super().put(item, event)

    running = job(model, count=30)
    late = job(model, deadline=time.monotonic() - 1)
    batch, standard, urgent = job(model, priority=2), job(model, priority=1), job(model, priority=0)
    for item in (batch, standard, urgent):
        item.mailbox = Noting()
    batcher.submit([running, late, batch, standard, urgent])
    await asyncio.gather(*map(read, (batch, standard, urgent)))
    assert order == [urgent, standard, batch]
    error = (await read(late))[-1].error
    assert error is not None and error.status == 504


async def test_a_reader_that_does_not_read_stops_its_generation_only(make: Maker, model: Model) -> None:
    batcher, _ = make(slots=2)
    slow, quick = job(model, count=1000), job(model, [1, 310], count=900)
    batcher.submit([slow])
    await reached(lambda: slow.paused)
    assert slow.produced == BACKLOG + 1
    batcher.submit([quick])
    events = 0
    while events < 900:
        events += len(await asyncio.wait_for(quick.mailbox.get(), DEADLINE))
        if quick.paused:
            batcher.resume(quick)
    assert slow.produced == BACKLOG + 1  # nothing more meanwhile
    got = 0
    while got < 1000:
        got += len(await asyncio.wait_for(slow.mailbox.get(), DEADLINE))
        if slow.paused:
            batcher.resume(slow)
    assert slow.generated == 1000


async def test_choices_share_one_reading_of_the_prompt(make: Maker, model: Model) -> None:
    batcher, _ = make(slots=4)
    first = job(model, [1] + [300] * 40)
    others = [job(model, [1] + [300] * 40, after=first) for _ in range(3)]
    batcher.submit([first, *others])
    await asyncio.gather(*map(read, [first, *others]))
    assert first.reused == 0 and [other.reused for other in others] == [40] * 3


async def test_a_pinned_beginning_survives_everything(make: Maker, model: Model) -> None:
    batcher, _ = make(slots=2, cells=512)
    system = [1] + [270] * 60
    await batcher.pin([system])
    for n in range(8):
        item = job(model, [1] + [280 + n] * 150, count=20)
        batcher.submit([item])
        await read(item)
    item = job(model, [*system, 300])
    batcher.submit([item])
    await read(item)
    assert item.reused == len(system) and batcher._outstanding == 0


async def test_a_pinned_beginning_is_read_again_after_a_failed_step(make: Maker, model: Model) -> None:
    batcher, context = make(slots=2, cells=512)
    system = [1] + [270] * 60
    await batcher.pin([system])
    context.script = [-1]
    failing = job(model)
    batcher.submit([failing])
    assert (await read(failing))[-1].error is not None
    await reached(lambda: [len(line.tokens) for line in batcher._lines._lines if line.pinned] == [61], what="the pin")
    item = job(model, [*system, 300])
    batcher.submit([item])
    await read(item)
    assert item.reused == len(system) and batcher._outstanding == 0


async def test_a_pinned_beginning_whose_own_reading_fails_is_read_once_more(make: Maker, model: Model) -> None:
    batcher, context = make(slots=2, cells=512)
    await batcher.pin([[1] + [270] * 60])
    context.script = [-1, -1]  # a request's step, then the step that reads the pin again
    failing = job(model)
    batcher.submit([failing])
    assert (await read(failing))[-1].error is not None
    await reached(lambda: not context.script and any(line.pinned for line in batcher._lines._lines), what="the pin")
    assert batcher.stats.faults == 2 and batcher.failed is None


async def test_prompts_that_are_scored_never_ask_for_more_logits_than_there_is_room_for(make: Maker, model: Model) -> None:
    batcher, context = make(slots=4, outputs=12)
    wanted: list[int] = []
    context.before = lambda: wanted.append(int(batcher._batch.output[: batcher._batch.count].sum()))
    jobs = [job(model, [1] + [300 + n] * 30, prompt_logprobs=True, logprobs=1, count=4) for n in range(3)]
    batcher.submit([*jobs, job(model, [1, 310, 311], count=30)])
    await asyncio.gather(*map(read, jobs))
    assert max(wanted) <= 12 and all(len(item.prompt_scores) == 30 for item in jobs)


@pytest.mark.parametrize("unified", [True, False])
async def test_a_beginning_is_taken_from_a_line_in_use(make: Maker, model: Model, unified: bool) -> None:
    batcher, _ = make(slots=3, unified=unified)
    system = [1] + [270 + n % 7 for n in range(60)]
    source = job(model, [*system, 310], count=250)
    batcher.submit([source])
    await reached(lambda: source.generated > 3, what="tokens of the source")
    others = [job(model, [*system, 320 + n], count=12) for n in range(2)]
    batcher.submit(others)
    assert [len(await read(other)) for other in others] == [12, 12]
    assert all(other.reused == len(system) for other in others)
    assert (await read(source))[-1].finish == "length" and batcher.stats.faults == 0


async def test_closing_ends_the_thread_with_jobs_under_way(make: Maker, model: Model) -> None:
    batcher, _ = make(slots=1)
    batcher.submit([job(model, count=1900), job(model)])
    batcher.close()
    assert not batcher._thread.is_alive()
    assert math.isfinite(batcher.stats.decode_seconds)
