"""Headers of safetensors files that lie."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engines.convert.folder import Folder, Refused
from engines.convert.safetensors import tensors
from engines.convert.weights import blocks
from tests.unit.engines.convert.folders import raw


def entry(start: int, stop: int, shape: Any = None, dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": [(stop - start) // 4] if shape is None else shape, "data_offsets": [start, stop]}


def read(folder: Path, content: bytes, name: str = "model.safetensors") -> Any:
    (folder / name).write_bytes(content)
    return tensors(Folder(folder))


def test_what_is_as_it_says_is_read(tmp_path: Path) -> None:
    found = read(tmp_path, raw({"b": entry(8, 16), "a": entry(0, 8), "none": entry(16, 16, [0])}, b"\0\0\x80\x3f" * 4))
    assert [block.tolist() for block in blocks(found["a"], "a", "F32")] == [[1.0, 1.0]] and found["none"].elements == 0


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is not a safetensors file"),
        ((1 << 63).to_bytes(8, "little") + b"{}", "claims a header of 9223372036854775808 bytes"),
        ((2 << 30).to_bytes(8, "little") + b"{}", "claims a header of 2147483648 bytes"),
        (raw(b"[" * 100_000), "is not JSON"),
        (raw(b"{\xff}"), "is not JSON"),
        (raw(b"[]  "), "not an object"),
        (raw(b'{"a": {"dtype": "F32", "dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}'), "names something twice"),
        (raw(b'{"a": ' + json.dumps(entry(0, 4)).encode() + b', "a": ' + json.dumps(entry(4, 8)).encode() + b"}", b"\0" * 8), "twice"),
        (raw({"a": entry(0, 8), "b": entry(4, 12)}, b"\0" * 12), "begins at byte 4 of the tensors; 8 was expected"),
        (raw({"a": entry(0, 8), "b": entry(0, 8)}, b"\0" * 8), "begins at byte 0"),
        (raw({"a": entry(4, 8)}, b"\0" * 8), "begins at byte 4"),
        (raw({"a": entry(0, 8)}, b"\0" * 12), "its end"),
        (raw({"a": entry(0, 1 << 40, [1 << 38])}, b"\0" * 8), "its end"),
        (raw({"a": entry(-4, 0, [1])}, b"\0" * 8), "not natural numbers"),
        (raw({"a": entry(8, 0, [-2])}, b"\0" * 8), "not natural numbers"),
        (raw({"a": entry(0, 8, [2.0])}, b"\0" * 8), "not natural numbers"),
        (raw({"a": entry(0, 8, [True, 2])}, b"\0" * 8), "not natural numbers"),
        (raw({"a": entry(0, 8, [1 << 40, 1 << 40])}, b"\0" * 8), "which is not its shape"),
        (raw({"a": entry(0, 8, [1] * 9 + [2])}, b"\0" * 8), "shape or offsets"),
        (raw({"a": entry(0, 8, [3])}, b"\0" * 8), "8 bytes, which is not its shape"),
        (raw({"a": entry(0, 8, [2], "Q4_K")}, b"\0" * 8), "type 'Q4_K'"),
        (raw({"a": entry(0, 8, [2], {"x": 1})}, b"\0" * 8), "F32, F16 and BF16"),
        (raw({"a": {"dtype": "F32", "shape": [2]}}, b"\0" * 8), "not described"),
        (raw({"a": 7}, b"\0" * 8), "not described"),
    ],
)
def test_a_header_that_lies_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    with pytest.raises(Refused) as caught:
        read(tmp_path, content)
    assert said in str(caught.value) and str(tmp_path) not in str(caught.value)


@pytest.mark.parametrize(
    ("places", "said"),
    [
        ({"a": "x.safetensors", "b": "y.safetensors"}, "y.safetensors, which model.safetensors.index.json names, is missing"),
        ({"a": "x.safetensors", "b": "x.safetensors"}, "x.safetensors lacks the tensor 'b'"),
        ({"b": "x.safetensors"}, "has the tensor 'a'"),
        ({"a": "../x.safetensors"}, "a file is named"),
        ({"a": "/etc/x.safetensors"}, "a file is named"),
        ({"a": "pytorch_model.bin"}, "no weight_map"),
        ({"a": 1}, "no weight_map"),
        ([], "no weight_map"),
    ],
)
def test_an_index_that_lies_is_refused(tmp_path: Path, places: Any, said: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    with pytest.raises(Refused) as caught:
        read(tmp_path, raw({"a": entry(0, 8)}, b"\0" * 8), "x.safetensors")
    assert said in str(caught.value)
