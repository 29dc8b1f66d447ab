"""Whatever a folder holds, its conversion ends with a file that can be read or with a reason: never otherwise."""

from __future__ import annotations

import copy
import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engines.convert import vocabulary
from engines.convert.folder import Folder, Refused, weight
from engines.convert.gguf import Writer
from engines.convert.model import convert
from tests.unit.engines.convert import folders
from tests.unit.engines.convert.folders import SMALL, Gguf
from tests.unit.engines.convert.test_vocabulary import PIECES, field

MIB = 1024 * 1024
SENTENCEPIECE = PIECES + field(2, field(3, 2)) + field(3, field(3, 1))
QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
ODD: tuple[Any, ...] = (
    None, True, 0, -1, 1, 2, 3, 12, 1 << 31, 1 << 63, -(1 << 63), 10**400, 0.5, -0.0, 1e300, 1e-320, "", "a", "ab", "abc", "<|end|>", "\0",
    "x" * 5000, "\U0001f980", "BPE", "yarn", "linear", "llama3", "ByteLevel", "Split", "Sequence", "TemplateProcessing",
    "model.safetensors", "../x.safetensors", [], {}, [[]], [{}], [None], ["a"], ["a", "b"], ["a b"],
    [1, 2], [0, 1 << 62], {"a": 1}, {"": {}}, {"id": "<|end|>"}, {"SpecialToken": {"id": []}}, {"content": 7},
    {"rope_type": ["yarn"]}, {"sliding_attention": "x"}, {"full_attention": []},
)  # fmt: skip
"""What a place of a file is changed to."""


@cache
def files(family: str) -> dict[str, Any]:
    """A folder that is converted, by name; every setting that is looked at is there."""
    given = {
        **SMALL, "architectures": [family], "rope_theta": 1e4, "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": [0],
        "rope_scaling": {
            "rope_type": "llama3" if family.startswith("Llama") else "yarn", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64, "beta_fast": 32.0,
        },
    }  # fmt: skip
    head_norms, tied = False, {}
    if family == "Gemma3ForCausalLM":
        head_norms, tied = True, {"tie_word_embeddings": True}
        given |= {
            "hidden_activation": "gelu_pytorch_tanh", "head_dim": 4, "sliding_window": 64, "rope_local_base_freq": 1e4,
            "rope_scaling": None, "rope_parameters": {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}},
        }  # fmt: skip
    tensors = folders.weights({**given, **tied}, biases=QKV if family.startswith("Qwen") else (), head_norms=head_norms)
    if family == "Gemma3ForCausalLM":
        for layer in range(given["num_hidden_layers"]):
            for name in ("pre_feedforward_layernorm", "post_feedforward_layernorm"):
                tensors[f"model.layers.{layer}.{name}.weight"] = tensors[f"model.layers.{layer}.input_layernorm.weight"]
    stored = folders.safetensors(tensors)
    size = int.from_bytes(stored[:8], "little")
    return {
        "config.json": given,
        "header": json.loads(stored[8 : 8 + size]),
        "data": stored[8 + size :],
        "tokenizer.json": {**folders.tokenizer(), "post_processor": PROCESSOR},
        "tokenizer_config.json": {
            "bos_token": "<|end|>", "eos_token": {"content": "<|end|>"}, "add_bos_token": True, "chat_template": "{{ messages }}",
            "added_tokens_decoder": {"0": {"content": "<|end|>", "special": True}}, "additional_special_tokens": ["<|end|>"],
        },
        "generation_config.json": {"top_k": 20, "top_p": 0.9, "temperature": 0.7},
        "added_tokens.json": {"f": 9},
    }  # fmt: skip


PROCESSOR = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<|end|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "<|end|>"}}, {"Sequence": {"id": "B"}}],
}
FAMILIES = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Gemma3ForCausalLM")


def places(value: Any, before: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to each value within a value."""
    found = []
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            found += [(*before, key), *places(inner, (*before, key))]
    return found


@st.composite
def harmed(draw: st.DrawFn) -> dict[str, Any]:
    """A folder with one to three places changed, removed, or put under another name."""
    made = copy.deepcopy(files(draw(st.sampled_from(FAMILIES))))
    for _ in range(draw(st.integers(1, 3))):
        *way, last = draw(st.sampled_from(places(made)))
        if not way and draw(st.booleans()):
            made.pop(last, None)
            continue
        within = made
        for key in way:
            within = within[key]
        value = draw(st.sampled_from(ODD))
        if isinstance(within, dict) and draw(st.integers(0, 5)) == 0:
            within.pop(last)
            within[str(value)[:64]] = value
        else:
            within[last] = value
    return made


def outcome(made: dict[str, Any], model: bytes | None = None, cut: int | None = None) -> str:
    """Why it is refused; "" where a file was made, which is whole."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "m"
        folder.mkdir()
        data = made.get("data", b"")
        whole = folders.raw(json.dumps(made.get("header")).encode(), data if isinstance(data, bytes) else b"")
        (folder / "model.safetensors").write_bytes(whole[:cut])
        if model is not None:
            (folder / "tokenizer.model").write_bytes(model)
        for name, value in made.items():
            if "." in name:
                (folder / name).write_text(json.dumps(value))
        target = Path(place) / "m.gguf"
        try:
            convert(folder, target, "auto", 1 << 30, lambda share: None, memory=256 * MIB)
        except Refused as error:
            assert place not in str(error) and str(error)
            return str(error)
        read = Gguf(target)
        assert read.tensors and read.values["tokenizer.ggml.tokens"]
        return ""


@pytest.mark.parametrize("family", FAMILIES)
def test_the_folder_itself_is_converted(family: str) -> None:
    assert outcome(files(family)) == ""
    assert outcome(files(family), SENTENCEPIECE) == ""


def harm(family: str, *way: str, to: Any) -> dict[str, Any]:
    made = copy.deepcopy(files(family))
    within = made
    for key in way[:-1]:
        within = within[key]
    within[way[-1]] = to
    return made


@pytest.mark.parametrize(
    ("family", "way", "to", "said"),
    [
        ("LlamaForCausalLM", ("tokenizer_config.json", "added_tokens_decoder", "0"), "x", "the added token 0 of tokenizer_config.json has"),
        ("LlamaForCausalLM", ("generation_config.json", "temperature"), 1e300, "a value does not fit GGUF"),
        ("LlamaForCausalLM", ("generation_config.json", "top_k"), 10**400, "a value does not fit GGUF"),
        ("Gemma3ForCausalLM", ("config.json", "rope_parameters", "sliding_attention"), "x", "sliding_attention that is no object"),
    ],
)
def test_values_that_once_ended_the_job(family: str, way: tuple[str, ...], to: Any, said: str) -> None:
    assert said in outcome(harm(family, *way, to=to), SENTENCEPIECE)


@settings(max_examples=100, deadline=None)
@given(harmed())
def test_values_of_any_kind_at_any_place(made: dict[str, Any]) -> None:
    outcome(made)


@settings(max_examples=60, deadline=None)
@given(harmed(), st.integers(0, len(SENTENCEPIECE)), st.binary(max_size=4), st.integers(0, 3))
@example(made=files("LlamaForCausalLM"), at=len(PIECES), put=field(3, 1), gone=0)
def test_a_harmed_model_of_sentencepiece(made: dict[str, Any], at: int, put: bytes, gone: int) -> None:
    outcome(made, SENTENCEPIECE[:at] + put + SENTENCEPIECE[at + gone :])


@settings(max_examples=60, deadline=None)
@given(st.one_of(st.binary(max_size=64), st.text(alphabet='{}[]":,\\0a ', max_size=64).map(str.encode)), st.integers(0, 200))
def test_headers_and_files_of_noise(noise: bytes, cut: int) -> None:
    made = files("LlamaForCausalLM")
    assert outcome({**made, "header": noise.decode("latin-1")})
    assert outcome(made, cut=cut)
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "config.json").write_bytes(noise)
        with pytest.raises(Refused):
            convert(Path(place), Path(place) / "o.gguf", "auto", MIB, lambda share: None)


@pytest.mark.parametrize(
    "unit", ['["ab", "c"]', '"ab c"', "[]", "{}", '{"a":{}}', "0", '"\\ud83e\\udd80"', '"a\\"\\"\\""', '{"a":[0,"b",{"c":1.5}]}']
)
def test_what_would_not_fit_into_the_memory_is_not_decoded(tmp_path: Path, unit: str) -> None:
    """As it is counted, it is at least what the decoded values take."""
    text = f'{{"model":[{",".join([unit] * 200_000)}]}}'.encode()
    (tmp_path / "tokenizer.json").write_bytes(text)
    with pytest.raises(Refused, match=r"^the values of tokenizer.json may take \d+ MiB of memory; 0 MiB are possible \(half of jobs.mem"):
        Folder(tmp_path, 65 * MIB).json("tokenizer.json")
    assert deep(json.loads(text)) <= weight(text)


def deep(value: Any) -> int:
    """Bytes of a value and all that it holds."""
    size, waiting, seen = 0, [value], set[int]()
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        size += value.__sizeof__() + 16
        waiting += [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
    return size


def test_more_tokens_than_memory(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"^the values of the vocabulary may take 15 MiB of memory; 3 MiB are possible"):
        vocabulary.write(Folder(tmp_path, 70 * MIB), {}, 100_000, Writer())
