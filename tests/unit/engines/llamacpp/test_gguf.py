"""The reader survives every file: it returns a checked header or raises GgufError, in bounded time and memory."""

import struct
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.host.placement import Metadata
from engines.llamacpp import gguf, sanity
from engines.llamacpp.cursor import GgufError
from engines.llamacpp.gguf import Gguf, describe, files_of, parse, read, read_model
from loadtests.llamacpp.random_bert import write_reranker
from loadtests.llamacpp.random_gguf import F16, F32, Shape, metadata, tensors, write, write_parts

SHAPE = Shape(layers=1, width=32, heads=2, kv_heads=1, feed_forward=32)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write(tmp_path_factory.mktemp("gguf") / "good.gguf", SHAPE).read_bytes()


def check(data: bytes) -> None:
    try:
        describe(parse(data))
    except GgufError as exc:
        assert str(exc)


EXPERTS = {"llama.expert_count": 4, "llama.expert_used_count": 2}


def made(tmp_path: Path, **changes: Any) -> Gguf:
    return read(write(tmp_path / "made.gguf", SHAPE, values=metadata(SHAPE, **changes)))


def test_a_good_file_is_described(good: bytes) -> None:
    data = describe(parse(good))
    assert data.architecture == "llama" and data.layers == 1 and data.vocabulary == 378
    assert data.quantisation == "Q8_0" and data.has_template
    assert data.parameters == SHAPE.parameters + 3 * 32
    assert data.weights == data.input_size + data.output_size + sum(data.layer_sizes)
    assert data.kv_per_token == (2 * 1 * (16 + 16),)
    assert data.pooling == 0 and data.sampling == {}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"llama.context_length": 7}, "llama.context_length is 7, not 8 to"),
        ({"llama.attention.layer_norm_rms_epsilon": -1.0}, "layer_norm_rms_epsilon is -1.0"),
        ({"llama.attention.layer_norm_rms_epsilon": float("nan")}, "layer_norm_rms_epsilon is nan"),
        ({"llama.expert_count": 4}, "llama.expert_used_count is 0, of 4 experts"),
        ({"llama.expert_count": 4, "llama.expert_used_count": 5}, "llama.expert_used_count is 5, of 4"),
        ({"llama.expert_count": 1 << 20}, "llama.expert_count is 1048576, not 0 to"),
        ({"llama.expert_group_count": 3}, "llama.expert_group_count is 3, of no experts"),
        ({"llama.block_count": 513}, "llama.block_count is 513, not 1 to 512"),
        ({**EXPERTS, "llama.expert_group_count": 4}, "llama.expert_group_count is 4, of 4 experts"),
        ({**EXPERTS, "llama.expert_group_count": 3}, "llama.expert_group_count is 3, of 4 experts"),
        ({**EXPERTS, "llama.expert_group_count": 2, "llama.expert_group_used_count": 2}, "expert_group_used_count is 2, of 2 groups"),
        ({"llama.attention.head_count": 7}, "llama.attention.head_count is 7, and does not divide llama.embedding_length, 32"),
        ({"llama.rope.dimension_count": 17}, "llama.rope.dimension_count is 17, and a head has 16 values"),
        ({"llama.rope.dimension_count_swa": 17}, "llama.rope.dimension_count_swa is 17, and a head has 16 values"),
        ({"llama.rope.dimension_count": 17, "llama.attention.key_length": 8}, "rope.dimension_count is 17, and a head has 8"),
        ({"llama.rope.scaling.type": "x"}, "llama.rope.scaling.type is 'x', not one of none, linear, yarn, longrope"),
        ({"llama.nextn_predict_layers": 3}, "nextn_predict_layers is 3, and llama.block_count 1"),
        ({"tokenizer.ggml.model": "no_vocab"}, "tokenizer.ggml.model is 'no_vocab'"),
    ],
)
def test_what_would_end_llama_cpp_is_refused_by_its_key(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    path = write(tmp_path / "made.gguf", SHAPE, values={**metadata(SHAPE), **changes})
    with pytest.raises(GgufError) as caught:
        describe(read(path))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("tensor", "kind", "words"),
    [
        ("token_embd.weight", 24, "tensor 'token_embd.weight' has a type that llama.cpp cannot compute with (24)"),
        ("blk.0.ffn_up.weight", 28, "cannot compute with (28)"),
        ("blk.0.ssm_out.weight", 26, "cannot compute with (26)"),
        ("blk.0.channel_mix_lerp_k.weight", 39, "'blk.0.channel_mix_lerp_k.weight' is no row of plain numbers: its type is 39"),
        ("blk.0.ffn_other.weight", 15, "cannot compute with (15)"),
        ("blk.0.ffn_other.weight", 26, ""),
        ("output_norm.weight", 20, "tensor 'output_norm.weight' is no row of plain numbers: its type is 20"),
        ("output_norm.weight", 30, ""),
    ],
)
def test_types_that_would_end_llama_cpp(tensor: str, kind: int, words: str) -> None:
    assert (sanity.check_types([("output.weight", 2, 2), (tensor, 1 if "norm" in tensor else 2, kind)]) or "").endswith(words or "")
    assert bool(words) == bool(sanity.check_types([(tensor, 1 if "norm" in tensor else 2, kind)]))


def test_what_is_printed_is_what_placement_reads(good: bytes) -> None:
    assert msgspec.json.decode(msgspec.json.encode(describe(parse(good))), type=Metadata).architecture == "llama"


@pytest.mark.parametrize("kind", [F32, F16])
def test_other_tensor_types(tmp_path: Path, kind: int) -> None:
    data = describe(read(write(tmp_path / "x.gguf", SHAPE, kind=kind)))
    assert data.parameters == SHAPE.parameters + 3 * 32


def test_a_file_cut_anywhere_is_truncated(good: bytes) -> None:
    end = len(good) - 31  # the last tensor's padding may be missing
    for cut in [*range(0, 64), *range(64, end, 997), end - 1]:
        with pytest.raises(GgufError, match=r"truncated|magic"):
            parse(good[:cut])


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_damaged_bytes_are_refused_or_read(good: bytes, data: st.DataObject) -> None:
    damaged = bytearray(good)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, min(len(good), 9000) - 1))
        damaged[at] = data.draw(st.integers(0, 255))
    check(bytes(damaged))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_absurd_numbers_are_refused_or_read(good: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(4, 6000))
    number = data.draw(st.sampled_from([0, 1, 2**31, 2**32 - 1, 2**60, 2**63, 2**64 - 1]))
    check(good[:at] + struct.pack("<Q", number) + good[at + 8 :])


@given(st.binary(max_size=400))
def test_noise_is_refused(data: bytes) -> None:
    with pytest.raises(GgufError):
        parse(data)


@given(st.binary(max_size=400))
def test_noise_after_a_good_start_is_refused(data: bytes) -> None:
    check(b"GGUF" + struct.pack("<IQQ", 3, 1, 2) + data)


@pytest.mark.parametrize(
    ("head", "word"),
    [
        (b"LMGG" + bytes(20), "wrong magic"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(16), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**40, 0), "tensors are more than"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**40), "key-values are more than"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**50), "a string of"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 4, 2**50), "an array of"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 9, 1), "arrays of type 9"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<I", 99), "unknown value type 99"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IB", 7, 2), "boolean"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + 2 * (struct.pack("<Q", 1) + b"k" + struct.pack("<IB", 0, 2)), "twice"),
    ],
)
def test_each_bound_is_named(head: bytes, word: str) -> None:
    with pytest.raises(GgufError, match=word):
        parse(head)


def test_strings_are_bounded_in_all_arrays_together(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = b"".join(struct.pack("<Q", 1) + key + struct.pack("<IIQ", 9, 8, 10) + bytes(80) for key in (b"a", b"b", b"c"))
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 3) + pairs
    monkeypatch.setattr(gguf, "KEPT_STRINGS", 20)
    assert [len(array.values) if array.values is not None else None for array in parse(head).pairs.values()] == [10, 10, None]
    monkeypatch.setattr(gguf, "MAX_STRINGS", 29)
    with pytest.raises(GgufError, match="30 strings in arrays are more than 29"):
        parse(head)


def tensor(name: bytes, dims: tuple[int, ...], kind: int, offset: int) -> bytes:
    return struct.pack("<Q", len(name)) + name + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


@pytest.mark.parametrize(
    ("tensors", "word"),
    [
        ([tensor(b"a", (1, 1, 1, 1, 1), 0, 0)], "5 dimensions"),
        ([tensor(b"a", (2**40, 2**40), 0, 0)], "absurd dimensions"),
        ([tensor(b"a", (0,), 0, 0)], "absurd dimensions"),
        ([tensor(b"a", (33,), 8, 0)], "not a multiple"),
        ([tensor(b"a", (32,), 77, 0)], "unknown tensor type 77"),
        ([tensor(b"a", (32,), 0, 64)], "starts at 64"),
        ([tensor(b"a", (32,), 0, 0), tensor(b"a", (32,), 0, 128)], "twice"),
        ([tensor(b"x" * 64, (32,), 0, 0)], "longer than 63"),
        ([tensor(b"a", (32,), 0, 0), tensor(b"b", (2**20,), 0, 128)], "truncated"),
    ],
)
def test_tensors_are_bounded(tensors: list[bytes], word: str) -> None:
    with pytest.raises(GgufError, match=word):
        parse(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), 0) + b"".join(tensors) + bytes(4096))


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"general__architecture": None}, "general.architecture is missing"),
        ({"llama__block_count": None}, "llama.block_count is missing"),
        ({"llama__block_count": "one"}, "llama.block_count is missing or not a whole number"),
        ({"llama__block_count": 100_000}, "llama.block_count is 100000"),
        ({"llama__attention__head_count": 0}, "head_count"),
        ({"llama__embedding_length": 2**30}, "embedding_length"),
        ({"tokenizer__ggml__tokens": None}, "tokens is missing"),
        ({"tokenizer__ggml__scores": [0.0]}, "scores does not have one value"),
        ({"tokenizer__ggml__bos_token_id": 4000}, "bos_token_id is 4000"),
        ({"general__alignment": 3}, "general.alignment"),
    ],
)
def test_keys_that_placement_needs_are_bounded(tmp_path: Path, changes: dict[str, Any], word: str) -> None:
    with pytest.raises(GgufError, match=word):
        describe(made(tmp_path, **changes))


def test_a_reranker_needs_its_head(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", SHAPE, values=metadata(SHAPE, llama__pooling_type=4))
    with pytest.raises(GgufError, match=r"llama.pooling_type is 4 \(rank\): it is a reranker, and the tensor cls.output.weight is missing"):
        describe(read(path))
    data = describe(read(write_reranker(tmp_path / "rank.gguf")))
    assert (data.pooling, data.architecture, data.context, data.feed_forward, data.heads) == (4, "bert", 256, 128, 4)


def test_the_feed_forward_of_all_experts_counts(tmp_path: Path) -> None:
    values = metadata(SHAPE, llama__expert_count=8, llama__expert_used_count=3, llama__expert_feed_forward_length=500)
    assert describe(read(write(tmp_path / "m.gguf", SHAPE, values=values))).feed_forward == 1500


def test_heads_for_each_layer(tmp_path: Path) -> None:
    assert describe(made(tmp_path, llama__attention__head_count_kv=[2])).kv_per_token == (128,)
    with pytest.raises(GgufError, match="does not fit 1 layers"):
        describe(made(tmp_path, llama__attention__head_count=[0.5]))


def test_recommended_sampling_is_read(tmp_path: Path) -> None:
    data = describe(made(tmp_path, general__sampling__temp=0.25, general__sampling__top_k=7, general__sampling__top_p="no"))
    assert data.sampling == {"temperature": 0.25, "top_k": 7}


def test_the_command_prints_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "good.gguf", SHAPE)
    assert gguf.main([str(path)]) == 0 and msgspec.json.decode(capsys.readouterr().out)["architecture"] == "llama"
    path.write_bytes(path.read_bytes()[:5000])
    assert gguf.main([str(path)]) == 1 and "truncated" in capsys.readouterr().err
    assert gguf.main([str(tmp_path / "none")]) == 1 and "No such file" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"GG", b"GGUF", b"something else"])
def test_files_shorter_than_a_header(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "short"
    path.write_bytes(content)
    with pytest.raises(GgufError, match=r"truncated|wrong magic"):
        read(path)


def test_a_model_in_parts_is_described_as_one(tmp_path: Path) -> None:
    files = write_parts(tmp_path, "m", SHAPE, 3)
    model = read_model(files[0])
    whole = describe(read(write(tmp_path / "whole.gguf", SHAPE)))
    assert files_of(files[0], model) == files
    assert model.file_size == sum(file.stat().st_size for file in files)
    parts = describe(model)
    assert (parts.weights, parts.layer_sizes, parts.output_size) == (whole.weights, whole.layer_sizes, whole.output_size)
    assert read_model(tmp_path / "whole.gguf").tensors == read(tmp_path / "whole.gguf").tensors


def test_parts_that_are_missing_damaged_or_of_another_model_are_named(tmp_path: Path) -> None:
    first, second, third = write_parts(tmp_path, "m", SHAPE, 3)

    def refused(path: Path, word: str) -> None:
        with pytest.raises(GgufError, match=word):
            read_model(path)

    refused(second, "this is part 2 of 3; the model is its first part, m-00001-of-00003.gguf")
    good = third.read_bytes()
    third.write_bytes(good[:-64])
    refused(first, "part 3 of 3, m-00003-of-00003.gguf: the file is truncated")
    third.write_bytes(second.read_bytes())
    refused(first, "m-00003-of-00003.gguf says that it is part 2 of 3, not 3 of 3")
    third.unlink()
    refused(first, "part 3 of 3 is missing: m-00003-of-00003.gguf")
    third.write_bytes(good)
    first.rename(tmp_path / "model.gguf")
    refused(tmp_path / "model.gguf", "must be named model-00001-of-00003.gguf")


@pytest.mark.parametrize(
    ("changes", "word"),
    [({"split.count": 2000}, "more than 1024"), ({"split.count": "two"}, "split.count is not a whole number"),
     ({"split.no": True}, "split.no is not a whole number"),
     ({"split.tensors.count": 99}, "tensors together, split.tensors.count is 99")],
)  # fmt: skip
def test_what_the_first_part_says_of_the_others_is_checked(tmp_path: Path, changes: dict[str, Any], word: str) -> None:
    first, *_others = write_parts(tmp_path, "m", SHAPE, 2)
    half = list(tensors(SHAPE))[: (len(list(tensors(SHAPE))) + 1) // 2]
    said = {"split.no": 0, "split.count": 2, "split.tensors.count": len(list(tensors(SHAPE))), **changes}
    write(first, SHAPE, values={**metadata(SHAPE), **said}, entries=half)
    with pytest.raises(GgufError, match=word):
        read_model(first)


def test_a_tensor_in_two_parts_is_refused(tmp_path: Path) -> None:
    first, second = write_parts(tmp_path, "m", SHAPE, 2)
    write(second, SHAPE, values={"split.no": 1, "split.count": 2}, entries=list(tensors(SHAPE))[:2])
    with pytest.raises(GgufError, match="a tensor is in several parts"):
        read_model(first)
