"""Tokens: special ones, cutting, padding, buckets, and the probe that decides about batching."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, pre_tokenizers, processors

from engines.onnx.embeddings import Embedder, find_output
from engines.onnx.options import OnnxOptions
from engines.onnx.session import Session, load_session
from engines.onnx.text import LONGEST, Grouping, TextReader, Tokens, choose_grouping, frame_of
from engines.onnx.texttask import inputs_of
from engines.sidecar.loading import LoadError
from engines.sidecar.shell import ApiError
from gateway.core.specs import SidecarSpec
from tests.unit.engines.onnx import models


def open_folder(folder: Path) -> Session:
    spec = SidecarSpec(name="e", runtime="onnx", model=str(folder), socket="unused", state_dir=str(folder))
    return load_session(spec, folder / "model.onnx", OnnxOptions(cache=False)).session


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return models.embedding_folder(tmp_path)


@pytest.fixture
def reader(folder: Path) -> TextReader:
    return TextReader(folder / "tokenizer.json", open_folder(folder), models.MAX_LENGTH)


def test_reading(reader: TextReader) -> None:
    assert reader.read("a cat", False, "input").ids.tolist() == [2, 4, 15, 3]
    assert reader.read("zebra", False, "input").ids.tolist() == [2, 1, 3]
    assert reader.vocabulary == len(models.WORDS)


def test_cutting_keeps_the_special_tokens_and_counts(reader: TextReader) -> None:
    found = reader.read(" ".join(["cat"] * 50), True, "input")
    assert found.ids.tolist() == [2, *[15] * 14, 3]
    assert found.dropped == 36
    assert reader.read(" ".join(["cat"] * 14), True, "input").dropped == 0
    with pytest.raises(ApiError) as caught:
        reader.read(" ".join(["cat"] * 15), False, "input[3]")
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "input[3]")
    assert "at most 14 tokens, received 15" in caught.value.message


PROCESSORS = (
    processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    ),
    processors.RobertaProcessing(("[SEP]", 3), ("[CLS]", 2)),
    processors.TemplateProcessing(single="$A", pair="$A [SEP] $B:1", special_tokens=[("[SEP]", 3)]),
)  # fmt: skip


@pytest.mark.parametrize("processor", PROCESSORS)
def test_what_is_cut_is_framed_as_the_tokenizer_frames_it(folder: Path, processor: Any) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.post_processor = processor
    single, pair = frame_of(tokenizer, False), frame_of(tokenizer, True)
    assert single is not None and pair is not None
    one, two = (tokenizer.encode(text, add_special_tokens=False) for text in ("a cat in it", "cat a"))
    alone, both = tokenizer.post_process(one, None, True), tokenizer.post_process(one, two, True)
    assert single.around(one.ids, []) == (alone.ids, alone.type_ids)
    assert pair.around(one.ids, two.ids) == (both.ids, both.type_ids)


def test_two_long_texts_are_cut_without_framing_what_is_cut_off(folder: Path) -> None:
    """The tokenizers package would, in all combinations: 100 s and 18 GB for these."""
    reader = TextReader(folder / "tokenizer.json", open_folder(folder), models.MAX_LENGTH)
    query, document = reader.encode("cat " * 16_000), "a " * 16_000
    found = reader.pair(query, document, True, "documents[0]")
    assert found.ids.tolist() == [15] * 8 + [4] * 8
    read = len(query) + len(reader.beginning(document, "documents[0]")[0])
    assert read < 32_000 and found.dropped == read - (models.MAX_LENGTH - reader.tokenizer.num_special_tokens_to_add(True))


def test_a_tokenizer_that_repeats_a_text_cuts_none(tmp_path: Path, folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.post_processor = processors.TemplateProcessing(single="$A $A", pair="$B $A", special_tokens=[])
    tokenizer.save(str(tmp_path / "odd.json"))
    reader = TextReader(tmp_path / "odd.json", open_folder(folder), models.MAX_LENGTH)
    for read in (lambda: reader.read("cat " * 50, True, "input"), lambda: reader.pair(reader.encode("a"), "cat " * 50, True, "input")):
        with pytest.raises(ApiError, match="at most 16 tokens"):
            read()


def test_token_arrays_are_used_as_they_are(reader: TextReader) -> None:
    assert reader.take([4, 15], False, "input").ids.tolist() == [4, 15]
    cut = reader.take([4] * 20, True, "input")
    assert (len(cut.ids), cut.dropped) == (16, 4)
    for wrong in ([17], [-1], [4, 2**70], []):
        with pytest.raises(ApiError) as caught:
            reader.take(wrong, True, "input[1]")
        assert caught.value.param == "input[1]"


def test_padding(reader: TextReader) -> None:
    feeds, mask = reader.feeds([reader.read("a", True, "x"), reader.read("a cat in it", True, "x")])
    assert feeds["input_ids"].tolist() == [[2, 4, 3, 0, 0, 0], [2, 4, 15, 13, 14, 3]]
    assert feeds["attention_mask"].tolist() == [[1, 1, 1, 0, 0, 0], [1] * 6]
    assert mask.sum() == 9
    assert set(feeds) == {"input_ids", "attention_mask"}


def test_unusable_tokenizers(tmp_path: Path, folder: Path) -> None:
    session = open_folder(folder)
    (tmp_path / "broken.json").write_text("{}")
    with pytest.raises(LoadError) as caught:
        TextReader(tmp_path / "broken.json", session, 16)
    assert caught.value.code == "model_invalid"
    with pytest.raises(LoadError, match="special tokens"):
        TextReader(folder / "tokenizer.json", session, 2)
    models.save(models.affine(), tmp_path / "other" / "model.onnx")
    with pytest.raises(LoadError, match="not a text model"):
        TextReader(folder / "tokenizer.json", open_folder(tmp_path / "other"), 16)


def test_buckets() -> None:
    grouping = Grouping("padded", 32, 1024)

    def tokens(length: int) -> Tokens:
        return Tokens(np.zeros(length, np.int64), None, 0)

    keys = {length: grouping.unit(tokens(length)).key for length in (1, 8, 9, 16, 100, 9000)}
    assert keys[1] == keys[8] != keys[9] == keys[16]
    assert [keys[length].capacity for length in (1, 100, 9000)] == [32, 8, 1]
    assert Grouping("exact", 32, 1024).unit(tokens(7)).key != Grouping("exact", 32, 1024).unit(tokens(8)).key
    assert Grouping("off", 1, 1024).unit(tokens(7)).key.capacity == 1


def test_the_probe(tmp_path: Path) -> None:
    def choose(run: Any, reader: TextReader) -> str:
        return choose_grouping(run, reader, 32, 1024, 1e-5).mode

    def embedder(folder: Path) -> tuple[Embedder, TextReader]:
        session = open_folder(folder)
        reader = TextReader(folder / "tokenizer.json", session, 16)
        output = find_output(session, None)
        assert output is not None
        return Embedder(session, reader, output, "mean", True), reader

    independent, reader = embedder(models.embedding_folder(tmp_path))
    assert choose(independent.run, reader) == "padded"

    dependent, reader = embedder(models.embedding_folder(tmp_path, dependent=True))
    assert choose(dependent.run, reader) == "off"

    def hates_padding(batch: Sequence[Tokens]) -> list[Any]:
        width = max(len(tokens.ids) for tokens in batch)
        return [np.array([float(tokens.ids.sum() + width)]) for tokens in batch]

    assert choose(hates_padding, reader) == "exact"


def test_inputs_of_a_request() -> None:
    assert inputs_of("a") == ["a"]
    assert inputs_of(["a", "b"]) == ["a", "b"]
    assert inputs_of([1, 2]) == [[1, 2]]
    assert inputs_of([[1], [2]]) == [[1], [2]]


@pytest.mark.parametrize("wrong", ["", [], [""], ["a", ""], [[]], ["a", [1]], ["a", 1], [[1], "a"], [1, "a"], ["x"] * 2049])
def test_inputs_that_cannot_be(wrong: Any) -> None:
    with pytest.raises(ApiError) as caught:
        inputs_of(wrong)
    assert (caught.value.status, caught.value.param) == (400, "input")
    assert "expected" in caught.value.message


class Counting:
    """A tokenizer that notes how many characters it was given."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer, self.seen = tokenizer, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tokenizer, name)

    def encode(self, text: str, **options: Any) -> Any:
        self.seen += len(text)
        return self.tokenizer.encode(text, **options)

    def encode_batch(self, texts: list[str], **options: Any) -> Any:
        self.seen += sum(map(len, texts))
        return self.tokenizer.encode_batch(texts, **options)


@pytest.fixture
def counting(reader: TextReader, monkeypatch: pytest.MonkeyPatch) -> Counting:
    made = Counting(reader.tokenizer)
    monkeypatch.setattr(reader, "tokenizer", made)
    return made


def test_of_a_text_that_will_be_cut_only_the_beginning_is_tokenized(reader: TextReader, counting: Counting) -> None:
    text = "cat a " * 500_000
    found = reader.read(text, True, "input")
    assert found.ids.tolist() == reader.read(text[:600], True, "input").ids.tolist() and found.dropped > 0
    assert reader.pair(reader.encode("cat"), text, True, "documents[0]").dropped > 0
    assert reader.pair(reader.beginning(text, "query")[0], "cat", True, "documents[0]").dropped > 0
    with pytest.raises(ApiError, match=r"input: expected at most 14 tokens, received at least [0-9]+$"):
        reader.read(text, False, "input")
    assert counting.seen < 50_000


@pytest.mark.parametrize("text", ["hello world the gateway ", "日本語", "a", ",", "1", "Ünïcödé\u0301 ", " \n\t", "\U0001f600"])
@pytest.mark.parametrize("unit", [True, False])
def test_a_beginning_has_the_tokens_of_the_whole(folder: Path, text: str, unit: bool) -> None:
    """With a tokenizer of pieces of words, and with one that takes a text for one word."""
    reader = TextReader(Path("engines/demo/artefacts/demo-embed/tokenizer.json"), open_folder(folder), 128)
    if unit:
        reader.tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    whole = reader.encode(text * (20_000 // len(text)))
    found, exact = reader.beginning(text * (20_000 // len(text)), "input")
    assert found.ids[:128] == whole.ids[:128] and exact == (len(found) == len(whole))
    assert exact or len(found) < len(whole)


@pytest.mark.parametrize("begin", [" ", "a" * 300 + "\n", "\u200b"])
def test_a_beginning_of_few_tokens_is_not_all_that_is_read(reader: TextReader, counting: Counting, begin: str) -> None:
    """Blanks have no tokens, and an unknown word one however long it is."""
    text = begin * 200_000 if len(begin) == 1 else begin.strip() * 500
    found = reader.read(f"{text} a cat", False, "input")
    assert found.ids.tolist()[-3:] == [4, 15, 3] and found.dropped == 0


def test_the_whole_of_a_text_is_bounded(reader: TextReader) -> None:
    assert reader.whole("a" * LONGEST, "prompt") == "a" * LONGEST
    for text in ("a" * (LONGEST + 1), "日" * (LONGEST // 2)):
        with pytest.raises(ApiError) as caught:
            reader.whole(text, "prompt")
        assert caught.value.param == "prompt" and caught.value.message.startswith(f"prompt: expected at most {LONGEST} bytes, received ")


@pytest.mark.parametrize("unit", [" ", "a"])
def test_a_long_text_of_few_tokens_is_refused(reader: TextReader, counting: Counting, unit: str) -> None:
    """Else all of it is tokenized, and some more, to find none: seconds and gigabytes for tens of megabytes."""
    with pytest.raises(ApiError, match=rf"documents\[0\]: its first {LONGEST} characters have only [01] tokens") as refused:
        reader.pair(reader.encode("cat"), unit * (LONGEST + 1), True, "documents[0]")
    assert refused.value.param == "documents[0]" and counting.seen < 2 * LONGEST
