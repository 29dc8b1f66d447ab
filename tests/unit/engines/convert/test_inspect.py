"""What the catalogue tells of a folder of safetensors, and what it says is wrong with one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from engines.convert.inspect import facts
from tests.unit.engines.convert.folders import SMALL, folder, raw, weights

CONFIG = {**SMALL, "architectures": ["LlamaForCausalLM"]}


def test_a_folder_says_what_it_is(tmp_path: Path) -> None:
    tensors = weights(CONFIG, "<u2")
    found = facts(folder(tmp_path / "m", CONFIG, tensors))
    assert found.problem is None and found.parameters == sum(value.size for value in tensors.values())
    assert (found.architecture, found.quantisation, found.context, found.layers, found.vocabulary) == (
        "LlamaForCausalLM", "BF16", 256, 2, 12,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("config.json", None, "there is no config.json"),
        ("config.json", b"[1]", "config.json is not an object of JSON"),
        ("config.json", b"[" * 100_000, "config.json is not an object of JSON"),
        ("model.safetensors", b"x" * 40, "model.safetensors claims a header of"),
        ("model.safetensors", raw({"a": {"dtype": "F32", "shape": [2], "data_offsets": [8, 16]}}, bytes(16)), "begins at byte 8"),
        ("model.safetensors.index.json", {"weight_map": {"a": "../x.safetensors"}}, "a file is named '../x.safetensors'"),
        (
            "model.safetensors.index.json",
            {"weight_map": {"a": "there.safetensors"}},
            "which model.safetensors.index.json names,",
        ),
        ("tokenizer.json", b"no", "tokenizer.json is not an object of JSON"),
    ],
)
def test_what_is_broken_is_told(tmp_path: Path, name: str, content: object, problem: str) -> None:
    made = folder(tmp_path / "m", CONFIG, weights(CONFIG), None if name == "model.safetensors" else {name: content})
    if isinstance(content, bytes):
        (made / name).write_bytes(content)
    assert problem in (facts(made).problem or "")


def test_odd_values_are_left_out(tmp_path: Path) -> None:
    odd = {"architectures": [["x"]], "max_position_embeddings": True, "num_hidden_layers": -1, "vocab_size": 1 << 80}
    found = facts(folder(tmp_path / "m", odd, weights(CONFIG)))
    assert (found.problem, found.architecture, found.context, found.layers, found.vocabulary) == (None, None, None, None, None)


def test_it_needs_no_numpy() -> None:
    """The inspector has little memory, and confines itself before it imports a reader."""
    code = "import sys, engines.convert.inspect; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[4], check=False).returncode == 0
