"""A draft model's guesses checked by the real llama.cpp: the same text in fewer steps. Nothing repeats itself here; the draft model is
wrong after a fifth of the tokens, and at higher temperatures more often."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import tempfile
from array import array
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from engines.chat.events import Event, Mailbox
from engines.chat.sampling import SamplingParams
from engines.llamacpp import drafting, guessing
from engines.llamacpp.batcher import Batcher
from engines.llamacpp.drafting import MAX_FAULTS, Drafter, check_pair
from engines.llamacpp.jobs import SequenceJob
from engines.llamacpp.native import Batch, Context, Model, NativeLog
from engines.llamacpp.sampling import Sampler
from engines.llamacpp.scheduler import StepCosts
from engines.llamacpp.speculation import Guesser, Prices, Trust
from engines.sidecar.loading import LoadError
from loadtests.llamacpp.random_gguf import F32, Shape, metadata, write, write_circles, write_lora
from tests.integration.llamacpp.process import SHAPE as TINY
from tests.integration.llamacpp.process import Sidecar

SHAPE = Shape(layers=2, width=256, heads=4, kv_heads=2, feed_forward=128, extra_words=400)
SMALL = Shape(layers=1, width=128, heads=4, kv_heads=2, feed_forward=128, extra_words=400)
LOG = NativeLog()
DEADLINE = 150.0
PROMPT = list(range(300, 420, 7))


class Eager(Prices):
    """Further tokens of a step cost next to nothing: every guess is made that is not hopeless."""

    def at(self, tokens: int) -> float:
        return 1.0 + 1e-6 * tokens


class Free(Prices):
    """So do all steps of the draft model."""

    def at(self, tokens: int) -> float:
        return 1e-6 * tokens


@dataclass(frozen=True)
class Models:
    model: Model
    draft: Model


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Models]:
    folder = tmp_path_factory.mktemp("drafts")
    large = write_circles(folder / "m.gguf", SHAPE, kind=F32, circle=1000)
    small = write_circles(folder / "d.gguf", SMALL, kind=F32, circle=1000, wrong=0.2)
    found = Models(*(Model(str(path), LOG, gpu_layers=0, use_mmap=True, use_mlock=False) for path in (large, small)))
    check_pair(found.model, found.draft, small)
    yield found
    found.model.close()
    found.draft.close()


class Engines:
    """Two engines for one model: without and with a draft model."""

    def __init__(self, models: Models, unified: bool) -> None:
        self.models = models
        self.contexts: list[Context] = []
        self.batchers = []
        self.draft = self._context(models.draft, 4096 + 64, unified)
        self.drafter = Drafter(models.draft, self.draft, batch=128, lines=16, vocabulary=models.model.n_vocab, longest=2048)
        for drafter in (None, self.drafter):
            context = self._context(models.model, 4096 if unified else 16 * 512, unified)
            batcher = Batcher(
                models.model, context, slots=8, queue=8, batch=128, lines=16, costs=StepCosts(), drafts=8 if drafter else 0, drafter=drafter
            )
            batcher.start()
            self.contexts.append(context)
            self.batchers.append(batcher)

    @staticmethod
    def _context(model: Model, cells: int, unified: bool) -> Context:
        return Context(
            model, LOG, cells=cells if unified else 16 * 512, sequences=16, batch=128, micro_batch=128, threads=1, threads_batch=1,
            unified=unified,
        )  # fmt: skip

    def job(self, drafted: bool, request: Request) -> SequenceJob:
        prompt = [*PROMPT, request.last, *request.more]
        return SequenceJob(
            priority=1, arrival=0, prompt=len(prompt), tokens=prompt, sampler=Sampler(self.models.model, request.params, prompt),
            max_tokens=request.tokens, mailbox=Mailbox(), ignore_eos=True, domain=request.domain,
            guesser=Guesser(prompt, 3) if drafted else None, trust=Trust() if drafted else None,
        )  # fmt: skip

    async def run(self, drafted: bool, *requests: Request) -> list[Answer]:
        """All at once."""
        jobs = [self.job(drafted, request) for request in requests]
        self.batchers[drafted].submit(jobs)
        return await asyncio.gather(*(read(job) for job in jobs))

    def close(self) -> None:
        for batcher, context in zip(self.batchers, self.contexts, strict=True):
            batcher.close()
            context.close()
        self.draft.close()


@dataclass(frozen=True)
class Answer:
    tokens: list[int]
    finish: str | None
    reused: int


@dataclass(frozen=True)
class Request:
    params: SamplingParams
    last: int = 420
    more: tuple[int, ...] = ()
    tokens: int = 120
    domain: bytes = b""


async def read(job: SequenceJob) -> Answer:
    events: list[Event] = []
    while not events or (events[-1].finish is None and events[-1].error is None):
        events += [event for _, event in await asyncio.wait_for(job.mailbox.get(), DEADLINE)]
    assert events[-1].error is None, events[-1].error
    return Answer([event.token for event in events if event.token is not None], events[-1].finish, job.reused)


@pytest.fixture(params=[True, False], ids=["one-memory", "a-memory-each"])
async def engines(models: Models, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> AsyncIterator[Engines]:
    monkeypatch.setattr(guessing, "Prices", Eager)
    monkeypatch.setattr(drafting, "Prices", Free)
    engines = Engines(models, request.param)
    yield engines
    engines.close()


def warm(temperature: float, seed: int = 1) -> SamplingParams:
    return SamplingParams(temperature=temperature, seed=seed)


async def test_the_tokens_are_the_same(engines: Engines) -> None:
    for number, temperature in enumerate((0.0, 0.0, 1.0, 1.3, 1.7, 2.5)):
        request = Request(warm(temperature, number), last=420 + number)
        assert await engines.run(True, request) == await engines.run(False, request)


async def test_right_guesses_save_steps_and_are_counted(engines: Engines) -> None:
    await engines.run(True, Request(warm(0)))
    stats = engines.batchers[True].stats
    assert stats.steps < 70 and stats.generated_tokens == 120
    assert stats.accepted == stats.model_accepted == 120 - stats.steps < stats.model_drafted == stats.drafted
    assert 0 < stats.draft_seconds < stats.decode_seconds + stats.draft_seconds


async def test_streams_that_run_together_keep_their_tokens(engines: Engines) -> None:
    requests = [Request(warm(1.4 * (number % 2), number), last=430 + 9 * number, tokens=40 + 17 * number) for number in range(8)]
    alone = [(await engines.run(False, request))[0].tokens for request in requests]
    together = [answer.tokens for answer in await engines.run(True, *requests)]
    assert together == alone and engines.batchers[True].stats.model_accepted > 0


async def test_what_was_guessed_wrongly_is_in_neither_memory(engines: Engines) -> None:
    """What follows in the same line, in a copy of its beginning and in another domain is as without guesses; the draft model never holds
    more of a line than the model does."""
    answers: list[list[Answer]] = []
    for drafted in (False, True):
        (first,) = await engines.run(drafted, Request(warm(1.65, 3)))
        (again,) = await engines.run(drafted, Request(warm(0), more=tuple(first.tokens[:50]), tokens=40))
        (other,) = await engines.run(drafted, Request(warm(1.65, 4), more=(*first.tokens[:20], 350)))
        (foreign,) = await engines.run(drafted, Request(warm(1.65, 4), more=(*first.tokens[:20], 350), domain=b"other"))
        answers.append([first, again, other, foreign])
    assert answers[0] == answers[1] and [answer.reused for answer in answers[1]] == [0, 68, 39, 0]
    lines = engines.batchers[True]._lines._lines
    assert all(engines.drafter.lacks(line.seq, line.tokens) >= 0 for line in lines)
    stats = engines.batchers[True].stats
    assert 0 < stats.accepted < stats.drafted


async def test_a_long_prompt_is_read_by_and_by_and_then_guessed_from(engines: Engines) -> None:
    more = tuple(300 + (number * 17) % 380 for number in range(300))
    request = Request(warm(0), more=more, tokens=100)
    assert await engines.run(True, request) == await engines.run(False, request)
    assert engines.batchers[True].stats.model_accepted > 20


async def test_a_client_that_leaves_leaves_nothing_behind(engines: Engines) -> None:
    job = engines.job(True, Request(warm(1.5), tokens=400))
    batcher = engines.batchers[True]
    batcher.submit([job])
    await asyncio.wait_for(job.mailbox.get(), DEADLINE)
    batcher.cancel(job)
    (drafted,), (plain,) = [await engines.run(guessing, Request(warm(0), last=77, tokens=60)) for guessing in (True, False)]
    assert drafted.tokens == plain.tokens and drafted.reused == len(PROMPT)


async def test_pinned_prompts_are_read_by_both_models(engines: Engines) -> None:
    pinned = [*PROMPT, 420, *range(300, 380)]
    for batcher in engines.batchers:
        await batcher.pin([pinned])
    line = next(line for line in engines.batchers[True]._lines._lines if line.pinned)
    assert list(line.tokens) == pinned and engines.drafter.lacks(line.seq, line.tokens) == 0
    request = Request(warm(0), more=(*range(300, 380), 420), tokens=60, domain=b"any")
    drafted = await engines.run(True, request)
    assert drafted == await engines.run(False, request) and drafted[0].reused == len(pinned)


async def test_a_full_memory_costs_guesses_and_not_requests(engines: Engines) -> None:
    for number in range(12):
        await engines.run(True, Request(warm(0), more=tuple([300 + number] * 370), tokens=9))
    answers = await engines.run(True, *(Request(warm(0, number), more=(350 + number,), tokens=150) for number in range(8)))
    stats = engines.batchers[True].stats
    assert all(len(answer.tokens) == 150 for answer in answers) and stats.faults == 0 and stats.model_accepted > 0


async def test_a_draft_model_that_fails_fails_alone(engines: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(batch: Batch) -> int:
        return -1

    wanted = await engines.run(False, Request(warm(0)), Request(warm(1.5)))
    monkeypatch.setattr(engines.draft, "decode", broken)
    assert await engines.run(True, Request(warm(0)), Request(warm(1.5))) == wanted
    stats = engines.batchers[True].stats
    assert engines.drafter.broken and (stats.faults, stats.model_drafted) == (0, 0)


async def test_one_failure_of_the_draft_model_is_forgotten(engines: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    decode, calls = engines.draft.decode, []

    def sometimes(batch: Batch) -> int:
        calls.append(batch.count)
        return -1 if len(calls) in (3, 7) else decode(batch)

    wanted = await engines.run(False, Request(warm(0)))
    monkeypatch.setattr(engines.draft, "decode", sometimes)
    assert await engines.run(True, Request(warm(0))) == wanted
    assert len(calls) > MAX_FAULTS and not engines.drafter.broken and engines.batchers[True].stats.model_accepted > 20


def test_a_padded_vocabulary_may_be_smaller_and_what_it_lacks_is_not_read(tmp_path: Path, models: Models) -> None:
    shape = Shape(layers=1, width=64, extra_words=390)
    draft = Model(str(write(tmp_path / "p.gguf", shape, kind=F32)), LOG, gpu_layers=0, use_mmap=True, use_mlock=False)
    check_pair(models.model, draft, tmp_path)
    context = Context(draft, LOG, cells=256, sequences=1, batch=64, micro_batch=64, threads=1, threads_batch=1)
    drafter = Drafter(draft, context, batch=64, lines=1, vocabulary=models.model.n_vocab, longest=0)
    stream = drafting.Stream(0, array("i", [1, 2, draft.n_vocab]), 3, Trust(), 4)
    drafter.guess([stream], 0.0)
    assert stream.guesses == [] and drafter.lacks(0, stream.tokens) == 3
    context.close()
    draft.close()


@pytest.mark.parametrize(
    ("shape", "changes", "words"),
    [
        (Shape(extra_words=100), {}, "its vocabulary is another"),
        (Shape(extra_words=400), {"tokenizer__ggml__eos_token_id": 2}, "the same"),
        (Shape(extra_words=400), {"tokens": "swapped"}, "the model's '▁w7q'"),
    ],
)
def test_another_vocabulary_is_refused_by_name(
    tmp_path: Path, models: Models, shape: Shape, changes: dict[str, Any], words: str
) -> None:  # fmt: skip
    values = metadata(shape, **{key: value for key, value in changes.items() if key != "tokens"})
    if "tokens" in changes:
        texts = values["tokenizer.ggml.tokens"]
        at = texts.index("▁w7q")
        texts[at], texts[at + 1] = texts[at + 1], texts[at]
    draft = Model(str(write(tmp_path / "x.gguf", shape, values=values)), LOG, gpu_layers=0, use_mmap=True, use_mlock=False)
    with pytest.raises(LoadError, match=r"options\.speculation\.draft: .*x\.gguf: ") as caught:
        check_pair(models.model, draft, tmp_path / "x.gguf")
    assert words in str(caught.value)
    draft.close()


# --- in a sidecar


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pair")
    write(folder / "m.gguf", TINY, scale=4.0, kind=F32)
    shutil.copy(folder / "m.gguf", folder / "d.gguf")
    write(folder / "vectors.gguf", TINY, kind=F32, values=metadata(TINY, llama__pooling_type=1))
    write(folder / "other.gguf", Shape(extra_words=300))
    (folder / "broken.gguf").write_bytes((folder / "d.gguf").read_bytes()[:5000])
    write_lora(folder / "german.gguf", TINY, seed=2)
    return folder


@pytest.fixture
def start(folder: Path) -> Iterator[Callable[[dict[str, Any]], Sidecar]]:
    started: list[Sidecar] = []
    with tempfile.TemporaryDirectory(prefix="gh") as path:

        def make(options: dict[str, Any]) -> Sidecar:
            started.append(Sidecar(Path(path), folder / "m.gguf", options=options))
            return started[-1]

        yield make
        for sidecar in started:
            sidecar.close()


def test_a_sidecar_drafts_with_and_without_an_adapter(folder: Path, start: Callable[[dict[str, Any]], Sidecar]) -> None:
    digest = hashlib.sha256((folder / "d.gguf").read_bytes()).hexdigest()
    adapters = [{"name": "german", "file": "german.gguf"}]
    sidecar = start({"speculation": {"tokens": 4, "draft": {"file": "d.gguf", "sha256": digest}}, "adapters": adapters})
    assert sidecar.wait("ready", "failed")["state"] == "ready"
    for model in ("m", "m:german"):
        answer = sidecar.complete(model=model, temperature=0.0, max_tokens=200, ignore_eos=True)
        assert answer["usage"]["completion_tokens"] == 200
    accepted, drafted = (sidecar.metric(f"{name}_total") for name in ("accepted_model_draft_tokens", "model_drafted_tokens"))
    assert 0 <= accepted <= drafted <= sidecar.metric("drafted_tokens_total") and sidecar.metric("draft_seconds_total") >= 0


@pytest.mark.parametrize(
    ("file", "changes", "words"),
    [
        ("none.gguf", {}, "no such file; a draft model lies beside the model's file"),
        ("broken.gguf", {}, "the file is truncated"),
        ("vectors.gguf", {}, "it makes embeddings or scores"),
        ("other.gguf", {}, "its vocabulary is another"),
        ("d.gguf", {"sha256": "0" * 64}, "sha256 is"),
    ],
)
def test_a_draft_that_cannot_be_one_is_refused_by_name(
    start: Callable[[dict[str, Any]], Sidecar], file: str, changes: dict[str, Any], words: str
) -> None:  # fmt: skip
    report = start({"speculation": {"draft": {"file": file, **changes}}}).wait("failed", "ready")
    assert report["reason"].startswith("options.speculation.draft: ") and words in report["reason"], report
