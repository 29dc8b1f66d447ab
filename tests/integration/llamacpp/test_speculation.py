"""Guesses checked by the real llama.cpp: the same text in fewer steps. The model runs in circles, so that many guesses are right; at higher
temperatures it leaves them, so that many are wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from engines.chat.events import Event, Mailbox
from engines.chat.sampling import SamplingParams, TopLogprobs
from engines.llamacpp import guessing as guessing_module
from engines.llamacpp.batcher import Batcher
from engines.llamacpp.jobs import SequenceJob
from engines.llamacpp.native import Context, Model, NativeLog
from engines.llamacpp.sampling import Sampler
from engines.llamacpp.scheduler import StepCosts
from engines.llamacpp.speculation import Guesser, Prices
from loadtests.llamacpp.random_gguf import F32, Shape, metadata, write, write_circles
from tests.integration.llamacpp.process import Sidecar

SHAPE = Shape(layers=2, width=256, heads=4, kv_heads=2, feed_forward=128, extra_words=400)
LOG = NativeLog()
DEADLINE = 150.0
Maker = Callable[..., Sidecar]
PROMPT = [300, 360, 420, 480, 540, 303, 363, 423, 483, 543, 306, 366]


class Eager(Prices):
    """Further tokens of a step cost next to nothing: every guess is made that is not hopeless."""

    def at(self, tokens: int) -> float:
        return 1.0 + 1e-6 * tokens


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    path = write_circles(tmp_path_factory.mktemp("circles") / "m.gguf", SHAPE, kind=F32, circle=6)
    model = Model(str(path), LOG, gpu_layers=0, use_mmap=True, use_mlock=False)
    yield model
    model.close()


class Engines:
    """Two engines for one model: without and with guesses."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.contexts = []
        self.batchers = []
        for drafts in (0, 8):
            context = Context(model, LOG, cells=4096, sequences=16, batch=128, micro_batch=128, threads=1, threads_batch=1)
            batcher = Batcher(model, context, slots=8, queue=8, batch=128, lines=16, costs=StepCosts(), drafts=drafts)
            batcher.start()
            self.contexts.append(context)
            self.batchers.append(batcher)

    async def run(self, guessing: bool, requests: list[Request]) -> list[Answer]:
        """All at once; the tokens, scores, end and reused tokens of each."""
        jobs = [request.job(self.model, guessing) for request in requests]
        self.batchers[guessing].submit(jobs)
        return await asyncio.gather(*(read(job) for job in jobs))

    def close(self) -> None:
        for batcher, context in zip(self.batchers, self.contexts, strict=True):
            batcher.close()
            context.close()


@dataclass(frozen=True)
class Answer:
    tokens: list[int]
    scores: list[TopLogprobs | None]
    finish: str | None
    reused: int


@dataclass(frozen=True)
class Request:
    params: SamplingParams
    last: int = 400
    more: tuple[int, ...] = ()
    tokens: int = 120

    def job(self, model: Model, guessing: bool) -> SequenceJob:
        prompt = [*PROMPT, self.last, *self.more]
        return SequenceJob(
            priority=1, arrival=0, prompt=len(prompt), tokens=prompt, sampler=Sampler(model, self.params, prompt), max_tokens=self.tokens,
            mailbox=Mailbox(), ignore_eos=True, logprobs=2, guesser=Guesser(prompt, 3) if guessing else None,
        )  # fmt: skip


async def read(job: SequenceJob) -> Answer:
    events: list[Event] = []
    while not events or (events[-1].finish is None and events[-1].error is None):
        events += [event for _, event in await asyncio.wait_for(job.mailbox.get(), DEADLINE)]
    made = [event for event in events if event.token is not None]
    return Answer([event.token or 0 for event in made], [event.logprobs for event in made], events[-1].finish, job.reused)


@pytest.fixture
async def engines(model: Model, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Engines]:
    monkeypatch.setattr(guessing_module, "Prices", Eager)
    engines = Engines(model)
    yield engines
    engines.close()


def warm(temperature: float, seed: int) -> SamplingParams:
    return SamplingParams(temperature=temperature, seed=seed)


@pytest.mark.parametrize("temperature", [0.0, 1.0, 1.3, 1.7, 2.5])
async def test_the_tokens_are_the_same(engines: Engines, temperature: float) -> None:
    """One stream after the other: what differs is the guesses alone. The scores differ in their last bits, as those of any two batches."""
    for seed in range(6):
        request = Request(warm(temperature, seed), last=400 + seed)
        (plain,), (guessed,) = await engines.run(False, [request]), await engines.run(True, [request])
        assert guessed.tokens == plain.tokens and (guessed.finish, guessed.reused) == (plain.finish, plain.reused)
        for left, right in zip(plain.scores, guessed.scores, strict=True):
            assert left is not None and right is not None and right.logprob == pytest.approx(left.logprob, abs=1e-3)


async def test_right_guesses_save_steps_and_are_counted(engines: Engines) -> None:
    await engines.run(False, [Request(warm(0, 1))])
    await engines.run(True, [Request(warm(0, 1))])
    plain, guessing = (batcher.stats for batcher in engines.batchers)
    assert plain.steps == 120 and guessing.steps < 40
    assert guessing.accepted == guessing.drafted == 120 - guessing.steps and plain.drafted == 0


async def test_wrong_guesses_are_counted_and_given_up(engines: Engines) -> None:
    """In a text that nothing follows twice, no more is guessed than by chance."""
    await engines.run(True, [Request(warm(30.0, 5), tokens=400)])
    stats = engines.batchers[True].stats
    assert (stats.drafted < 40 and stats.accepted < stats.drafted) or stats.drafted == 0


async def test_streams_that_run_together_keep_their_tokens(engines: Engines) -> None:
    requests = [Request(warm(1.4 * (number % 2), number), last=410 + number, tokens=40 + 17 * number) for number in range(8)]
    alone = [(await engines.run(False, [request]))[0].tokens for request in requests]
    together = [answer.tokens for answer in await engines.run(True, requests)]
    assert together == alone and engines.batchers[True].stats.accepted > 0


async def test_what_was_guessed_wrongly_is_not_in_the_memory(engines: Engines) -> None:
    """What follows in the same line, and in a copy of its beginning, is as without guesses."""
    answers: list[list[Answer]] = []
    for guessing in (False, True):
        (first,) = await engines.run(guessing, [Request(warm(1.65, 3), tokens=200)])
        (again,) = await engines.run(guessing, [Request(warm(0, 0), more=tuple(first.tokens[:50]), tokens=40)])
        (other,) = await engines.run(guessing, [Request(warm(1.65, 4), more=(*first.tokens[:20], 350), tokens=200)])
        answers.append([first, again, other])
    assert [answer.tokens for answer in answers[0]] == [answer.tokens for answer in answers[1]]
    assert [answer.reused for answer in answers[0]] == [answer.reused for answer in answers[1]] == [0, 62, 33]
    assert engines.batchers[True].stats.accepted < engines.batchers[True].stats.drafted


@pytest.mark.parametrize("most", [1, 2, 3, 7, 31])
async def test_an_answer_has_as_many_tokens_as_were_asked_for(engines: Engines, most: int) -> None:
    (answer,) = await engines.run(True, [Request(warm(0, 1), more=tuple(PROMPT * 2), tokens=most)])
    assert (answer.finish, len(answer.tokens)) == ("length", most)


async def test_a_grammar_ends_where_it_does_without(engines: Engines) -> None:
    params = SamplingParams(temperature=0, grammar='root ::= ("ab" | "ba"){20} "."')
    plain, guessed = await engines.run(False, [Request(params)]), await engines.run(True, [Request(params)])
    assert guessed[0].tokens == plain[0].tokens and guessed[0].finish == plain[0].finish == "stop"


async def test_guesses_never_take_the_room_of_a_running_stream(engines: Engines) -> None:
    """The memory is full of cached lines: a step with guesses forgets one of them, not all."""
    for number in range(12):
        await engines.run(True, [Request(warm(0, 1), more=tuple([300 + number] * 300), tokens=100)])
    await engines.run(True, [Request(warm(0, number), more=(350 + number,), tokens=300) for number in range(8)])
    stats = engines.batchers[True].stats
    assert stats.faults == 0 and stats.accepted > 0 and stats.cells_used <= engines.contexts[True].cells


def test_a_sidecar_guesses_and_tells_so(start: Maker) -> None:
    sidecar = start("tiny.gguf", options={"speculation": {"tokens": 4, "match": 2}})
    assert sidecar.wait("ready", "failed")["state"] == "ready"
    answer = sidecar.complete(temperature=0.0, max_tokens=200, ignore_eos=True)
    assert answer["usage"]["completion_tokens"] == 200
    assert sidecar.metric("accepted_draft_tokens_total") <= sidecar.metric("drafted_tokens_total")


def test_a_model_that_makes_no_text_is_refused(start: Maker, models: Path) -> None:
    report = start("embed.gguf", options={"speculation": {}}).wait("failed")
    assert report["reason"].startswith("options.speculation: not with this model, it makes embeddings")


def test_a_recurrent_model_is_refused(tmp_path: Path) -> None:
    """Its memory cannot forget the guesses that were wrong."""
    shape = Shape(layers=1)
    values = metadata(shape, general__architecture="mamba")
    names = {
        "llama." + key: value
        for key, value in (("ssm.conv_kernel", 4), ("ssm.inner_size", 128), ("ssm.state_size", 16), ("ssm.time_step_rank", 4))
    }
    values = {key.replace("llama.", "mamba."): value for key, value in {**values, **names}.items()}
    vocab = len(values["tokenizer.ggml.tokens"])
    block = {"attn_norm.weight": (64,), "ssm_in.weight": (256, 64), "ssm_conv1d.weight": (128, 4), "ssm_conv1d.bias": (128,),
             "ssm_x.weight": (36, 128), "ssm_dt.weight": (128, 4), "ssm_dt.bias": (128,), "ssm_a": (128, 16), "ssm_d": (128,),
             "ssm_out.weight": (64, 128)}  # fmt: skip
    entries = [("token_embd.weight", (vocab, 64)), ("output_norm.weight", (64,)), ("output.weight", (vocab, 64))]
    entries += [(f"blk.0.{name}", dims) for name, dims in block.items()]
    path = write(tmp_path / "mamba.gguf", shape, values=values, kind=F32, entries=entries)
    sidecar = Sidecar(tmp_path, path, options={"speculation": {}})
    try:
        report = sidecar.wait("failed", "ready")
        assert report["state"] == "failed" and "its memory cannot forget single tokens" in report["reason"]
    finally:
        sidecar.close()
