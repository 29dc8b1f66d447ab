"""Next tokens chosen on several threads are those that one thread chooses."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import llama_cpp
import pytest

from engines.chat.events import Mailbox
from engines.chat.sampling import SamplingParams
from engines.llamacpp import choosing
from engines.llamacpp.choosing import Choosers, choice, thread_count
from engines.llamacpp.jobs import SequenceJob
from engines.llamacpp.native import Batch, Context, Model, NativeLog
from engines.llamacpp.sampling import Sampler
from loadtests.llamacpp.random_gguf import Shape, write

PARAMS = (
    SamplingParams(temperature=0),
    SamplingParams(temperature=0, logit_bias=((300, 100.0),)),
    SamplingParams(temperature=0, presence_penalty=1.5, repeat_penalty=1.3),
    SamplingParams(temperature=0.8, top_k=40, top_p=0.9, seed=1),
    SamplingParams(seed=2),
    SamplingParams(min_p=0.05, typical_p=0.9, seed=3),
)


@pytest.fixture(scope="module")
def log() -> NativeLog:
    return NativeLog()


@pytest.fixture(scope="module")
def model(log: NativeLog, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    path: Path = write(tmp_path_factory.mktemp("model") / "m.gguf", Shape())
    made = Model(str(path), log, gpu_layers=0, use_mmap=True, use_mlock=False)
    yield made
    made.close()


@pytest.fixture
def context(model: Model, log: NativeLog) -> Iterator[Context]:
    """With logits of a token for each of the PARAMS."""
    made = Context(model, log, cells=256, sequences=8, batch=64, micro_batch=64, threads=1, threads_batch=1)
    batch = Batch(64)
    for number in range(len(PARAMS)):
        batch.add(number, 0, [1, 300 + number], output_last=True)
    assert made.decode(batch) == 0
    yield made
    made.close()


def jobs(model: Model) -> list[SequenceJob]:
    return [
        SequenceJob(
            priority=1, arrival=n, prompt=2, tokens=[1, 300 + n], sampler=Sampler(model, params, [1, 300 + n]), max_tokens=4,
            mailbox=Mailbox(), output=2 * n + 1, logprobs=3 if n % 2 else None,
        )
        for n, params in enumerate(PARAMS)
    ]  # fmt: skip


@pytest.mark.parametrize("threads", [2, 4, 16])
def test_threads_choose_what_one_chooses(context: Context, model: Model, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "WORTH", 0)
    alone, together = jobs(model), jobs(model)
    choosers = Choosers(threads)
    for _ in range(5):  # draws go on from where the generator is
        expected = [choice(context, job) for job in alone]
        found = choosers.choose(context, together, model.n_vocab)
        assert [found[id(job)] for job in together] == expected
    choosers.close()
    for job in alone + together:
        job.sampler.close()


def test_little_work_is_not_shared(context: Context, model: Model) -> None:
    for choosers, count in ((Choosers(4), 1), (Choosers(1), len(PARAMS)), (Choosers(4), len(PARAMS))):
        made = jobs(model)
        assert choosers.choose(context, made[:count], model.n_vocab) == {}
        choosers.close()
        for job in made:
            job.sampler.close()


def test_the_largest_logit_is_what_the_chain_of_a_greedy_request_takes(context: Context, model: Model) -> None:
    for number in range(len(PARAMS)):
        greedy = Sampler(model, SamplingParams(temperature=0), [])
        chain = llama_cpp.llama_sampler_sample(greedy._chain, context.handle, 2 * number + 1)
        assert greedy.sample(context, 2 * number + 1) == chain
        greedy.close()


def test_how_many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(6)))
    assert [thread_count(None, "cpu"), thread_count(None, "cuda:0"), thread_count(2, "cpu")] == [1, 4, 2]
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    assert thread_count(None, "cuda:0") == 1
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(96)))
    assert thread_count(None, "cuda:0") == choosing.MOST_THREADS
