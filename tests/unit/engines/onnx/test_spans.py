"""Names and places out of a token classifier: words, labels, windows that overlap, offsets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from engines.onnx.spans import Span, spans_of, split_label
from engines.onnx.text import LONGEST, LongText, TextReader
from engines.sidecar.shell import ApiError

LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
KINDS = [split_label(label) for label in LABELS]
WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "Ann", "Lee", "##na", "lives", "in", "New", "York", ".", "😀")


class Port:
    def __init__(self, name: str) -> None:
        self.name, self.datatype = name, "INT64"


class Graph:
    inputs = (Port("input_ids"), Port("attention_mask"), Port("token_type_ids"))


def reader(folder: Path, most: int) -> TextReader:
    made = Tokenizer(models.WordPiece({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=False)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    made.save(str(folder / "tokenizer.json"))
    return TextReader(folder / "tokenizer.json", Graph(), most)  # type: ignore[arg-type]


def shares(read: LongText, labels: dict[str, str], text: str) -> list[np.ndarray]:
    """Each window's probabilities: 0.9 for the label of each word in `labels`, else O."""
    found = []
    for start, window in zip(read.starts, read.windows, strict=True):
        rows = np.full((len(window.ids), len(LABELS)), 0.025, np.float32)
        for place in range(len(window.ids)):
            own = start + place - read.before
            left, right = read.offsets[own] if 0 <= own < len(read.offsets) else (0, 0)
            rows[place, LABELS.index(labels.get(text[left:right], "O"))] = 0.9
        found.append(rows)
    return found


def found(folder: Path, text: str, labels: dict[str, str], most: int = 64) -> list[Span]:
    read = reader(folder, most).windows(text)
    assert all(len(window.ids) <= most for window in read.windows)
    return spans_of(text, read, read.joined(shares(read, labels, text)), KINDS)


def test_words_of_one_kind_are_one_entity_and_a_new_beginning_is_another(tmp_path: Path) -> None:
    text = "😀 Ann Lee lives in New York."
    spans = found(tmp_path, text, {"Ann": "B-PER", "Lee": "I-PER", "New": "B-LOC", "York": "I-LOC"})
    assert [(span.entity, text[span.start : span.end], round(span.score, 1)) for span in spans] == [
        ("PER", "Ann Lee", 0.9),
        ("LOC", "New York", 0.9),
    ]
    two = found(tmp_path, "Ann Lee", {"Ann": "B-PER", "Lee": "B-PER"})
    assert [(span.start, span.end) for span in two] == [(0, 3), (4, 7)]


def test_a_word_has_the_label_of_its_first_token(tmp_path: Path) -> None:
    (span,) = found(tmp_path, "Annna lives", {"Ann": "I-PER"})
    assert (span.start, span.end) == (0, 5)


@pytest.mark.parametrize("most", [6, 7, 10, 16, 33])
def test_long_texts_are_read_whole_with_right_offsets(tmp_path: Path, most: int) -> None:
    text = "Lee lives in New York. " * 20 + "Ann"
    spans = found(tmp_path, text, {"Ann": "B-PER", "New": "B-LOC", "York": "I-LOC"}, most)
    assert [text[span.start : span.end] for span in spans] == ["New York"] * 20 + ["Ann"]
    assert [span.start for span in spans[:-1]] == [13 + 23 * number for number in range(20)]


def test_texts_are_bounded_together_before_they_are_read(tmp_path: Path) -> None:
    made = reader(tmp_path, 16)
    assert len(made.all_windows(["Ann", "é" * 1000], "input")) == 2
    for texts in (["a" * (LONGEST + 2)], ["a" * (LONGEST // 2), "é" * (LONGEST // 4 + 1)]):
        with pytest.raises(ApiError, match=rf"input: expected at most {LONGEST} bytes, received {LONGEST + 2}"):
            made.all_windows(texts, "input")


def test_texts_without_tokens_have_no_windows(tmp_path: Path) -> None:
    assert reader(tmp_path, 16).windows("  ").windows == []


@pytest.mark.parametrize(
    ("label", "kind", "begins"),
    [
        ("O", "", False),
        ("B-PER", "PER", True),
        ("I-PER", "PER", False),
        ("S-ORG", "ORG", True),
        ("E-ORG", "ORG", False),
        ("PER", "PER", False),
        ("B-A-B", "A-B", True),
    ],
)
def test_labels(label: str, kind: str, begins: bool) -> None:
    assert split_label(label) == (kind, begins)
