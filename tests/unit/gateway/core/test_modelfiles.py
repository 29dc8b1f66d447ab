"""Names of model files: what is taken can neither leave its folder nor hide, and parts of split models are found by their names."""

from __future__ import annotations

import posixpath

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.core.errors import RequestError
from gateway.core.modelfiles import FOLDER_DEPTH, kind_of, member_problem, split_name, split_of

HOSTILE = st.text(alphabet=st.sampled_from([*"ab.-_/\\: \n\0", "\N{FULLWIDTH FULL STOP}", "\N{DIVISION SLASH}", "é"]), max_size=40)


@given(st.one_of(HOSTILE, st.text(max_size=200)))
@example("..")
@example("a/../b.gguf")
@example(".hidden.gguf")
@example("a.gguf\n")
def test_a_name_that_is_taken_is_one_plain_segment(name: str) -> None:
    try:
        kind = kind_of(name)
    except RequestError as error:
        assert error.param == "name"
        return
    assert "/" not in name and "\\" not in name and not name.startswith(".") and name.isascii() and name.isprintable() and len(name) <= 120
    assert kind == ("file" if name.endswith((".gguf", ".onnx")) else "folder")


@given(HOSTILE.map(lambda text: f"{text}.json"))
@example("../x.json")
@example("/etc/x.json")
@example("a//b.json")
@example("a/./b.json")
def test_a_member_that_is_taken_stays_in_its_folder(path: str) -> None:
    if member_problem(path) is None:
        assert posixpath.normpath(f"/root/{path}") == f"/root/{path}"
        assert path.count("/") < FOLDER_DEPTH and not any(part.startswith(".") for part in path.split("/"))


@pytest.mark.parametrize(
    "name", ["model.onnx", "onnx/model.onnx_data", "1_Pooling/config.json", "LICENSE", "vocab.txt", "model.safetensors"]
)
def test_what_a_model_needs_is_taken(name: str) -> None:
    assert member_problem(name) is None


@pytest.mark.parametrize("name", ["setup.py", "weights.pkl", "pytorch_model.bin", "x.so", "noext", "a/b/c/d/e.json", "con fig.json"])
def test_what_no_model_needs_is_refused(name: str) -> None:
    assert member_problem(name)


@given(st.from_regex(r"[a-z-]{1,20}", fullmatch=True), st.integers(1, 99_999), st.integers(1, 99_999))
def test_parts_of_split_models(stem: str, part: int, count: int) -> None:
    assert split_of(split_name(stem, part, count)) == ((stem, part, count) if part <= count else None)
    assert split_of(f"{stem}.gguf") is None
