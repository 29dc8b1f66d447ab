"""What is changed in llama.cpp before it is built (scripts/patches) must not change what it computes."""

import random
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest
from numpy.typing import NDArray

from engines.llamacpp.native import PORTION, Batch, Context, Model, NativeLog
from loadtests.llamacpp.random_gguf import F32, Shape, metadata, write

OFF, ON = 0, 1  # llama.cpp's numbers for flash attention
SEQUENCES = 4
# One thread: two that wait for each other spin, and take twenty times as long on a busy machine.


@pytest.fixture(scope="module")
def log() -> NativeLog:
    return NativeLog()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, log: NativeLog) -> Iterator[Model]:
    path = write(tmp_path_factory.mktemp("model") / "m.gguf", Shape(layers=2, width=128, heads=4, kv_heads=2, feed_forward=64))
    model = Model(str(path), log, gpu_layers=0, use_mmap=True, use_mlock=False)
    yield model
    model.close()


def scattered(model: Model, log: NativeLog, flash: int) -> list[NDArray[numpy.float32]]:
    """Logits of steps whose sequences lie between each other in the KV memory, with holes: several rows in a step, then a single one."""
    context = Context(model, log, cells=2048, sequences=SEQUENCES, batch=64, micro_batch=64, threads=1, threads_batch=1, flash=flash)
    batch, generator, found = Batch(64), random.Random(7), []
    lengths = [0] * SEQUENCES
    try:
        for step in range(60):
            batch.clear()
            outputs = []
            for seq in generator.sample(range(SEQUENCES), generator.randint(1, SEQUENCES)) if step < 58 else [0]:
                count = generator.choice((1, 1, 2, 9, 16)) if step < 58 else 1
                outputs.append(batch.add(seq, lengths[seq], [generator.randrange(1, 255) for _ in range(count)], output_last=True))
                lengths[seq] += count
            assert context.decode(batch) == 0
            found += [context.logits(output).copy() for output in outputs]
            if step % 15 == 14:  # a sequence forgets its end: cells in the middle are free, and used again
                lengths[1] //= 2
                assert context.trim(1, lengths[1])
    finally:
        context.close()
    assert sum(lengths) > 400  # beyond what one tile of the kernel holds
    return found


def test_flash_attention_computes_what_attention_without_it_does(model: Model, log: NativeLog) -> None:
    with_it, without = scattered(model, log, ON), scattered(model, log, OFF)
    assert len(with_it) == len(without) > 100
    for one, other in zip(with_it, without, strict=True):
        assert numpy.abs(one - other).max() <= 0.05 * numpy.abs(other).max()


def test_a_sequence_computes_the_same_alone_and_between_others(model: Model, log: NativeLog) -> None:
    tokens = [random.Random(3).randrange(1, 255) for _ in range(600)]
    last = {}
    for others in (0, 2):
        context = Context(model, log, cells=4096, sequences=SEQUENCES, batch=64, micro_batch=64, threads=1, threads_batch=1, flash=ON)
        batch = Batch(64)
        for position in range(0, 600, 4):
            batch.clear()
            for seq in range(1, 1 + others):
                batch.add(seq, position, tokens[position : position + 4][::-1], output_last=False)
            output = batch.add(0, position, tokens[position : position + 4], output_last=True)
            assert context.decode(batch) == 0
        last[others] = context.logits(output).copy()
        context.close()
    numpy.testing.assert_allclose(last[2], last[0], rtol=0.01, atol=0.01 * float(numpy.abs(last[0]).max()))


def test_more_tokens_than_a_portion_are_the_texts(model: Model) -> None:
    text = "ab é " * PORTION
    tokens = model.tokenize(text, add_special=False, parse_special=False)
    assert len(tokens) > 2 * PORTION and len(tokens) % PORTION
    assert model.detokenize(tokens) == text


def test_every_change_says_why_and_names_one_file_of_llama_cpp() -> None:
    changes = sorted((Path(__file__).resolve().parents[4] / "scripts/patches").glob("*.patch"))
    assert changes
    for change in changes:
        reason, _, body = change.read_text().partition("--- a/")
        assert len(reason.split()) > 20 and body.startswith(("vendor/llama.cpp/", "CMakeLists.txt"))


def test_a_rerankers_vector_is_as_long_as_its_classes(tmp_path: Path, log: NativeLog) -> None:
    """llama.cpp gives one number a class; more would be whatever lies behind them on the heap."""
    shape = Shape(layers=1, width=64)
    path = write(tmp_path / "rank.gguf", shape, kind=F32, values=metadata(shape, llama__pooling_type=4))
    model = Model(str(path), log, gpu_layers=0, use_mmap=True, use_mlock=False)
    context = Context(model, log, cells=64, sequences=1, batch=64, micro_batch=64, threads=1, threads_batch=1, embeddings=True)
    batch = Batch(64)
    last = batch.add(0, 0, [5, 6, 7], output_last=True)
    batch.output[: batch.count] = 1
    try:
        assert context.decode(batch) == 0
        assert context.embedding_of(0, last).shape == (1,)
    finally:
        context.close()
        model.close()


@pytest.mark.parametrize("unified", [True, False])
def test_a_copied_beginning_is_as_good_as_one_that_was_read(tmp_path: Path, log: NativeLog, unified: bool) -> None:
    """Also when the source has gone on after it, in memory that is shared or each sequence's own."""
    path = write(tmp_path / "m.gguf", Shape())
    model = Model(str(path), log, gpu_layers=0, use_mmap=True, use_mlock=False)
    context = Context(
        model, log, cells=1024, sequences=4, batch=64, micro_batch=64, threads=1, threads_batch=1, unified=unified, outputs=4
    )  # fmt: skip
    batch = Batch(64)

    def read(seq: int, at: int, tokens: list[int]) -> NDArray[numpy.float32]:
        batch.clear()
        last = batch.add(seq, at, tokens, output_last=True)
        assert context.decode(batch) == 0
        return context.logits(last).copy()

    prompt = [1, *range(270, 300)]
    try:
        wanted = read(0, 0, [*prompt, 305])
        read(1, 0, prompt)
        read(1, len(prompt), [310, 311, 312])
        context.copy(1, 2, len(prompt))
        numpy.testing.assert_allclose(read(2, len(prompt), [305]), wanted, atol=1e-3)
        assert numpy.isfinite(read(1, len(prompt) + 3, [313])).all(), "the source goes on"
        assert context.trim(2, 5) and context.trim(0, 0)
    finally:
        context.close()
        model.close()
