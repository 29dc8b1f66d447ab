"""The scan over hostile trees: bounded, nothing outside its places, every model once."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.host.catalogue import scan as scanning
from engines.host.catalogue.scan import Found, Place, Scan, scan


def place(root: Path, source: scanning.Source = "registry") -> Place:
    return Place(root.resolve(), source)


def put(path: Path, text: str = "x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def names(found: Scan) -> list[str]:
    return [model.name for model in found.models]


def only(root: Path) -> Found:
    found = scan((place(root),))
    assert len(found.models) == 1, names(found)
    return found.models[0]


def test_files_folders_and_what_is_neither(tmp_path: Path) -> None:
    for name in ("b.gguf", "a.onnx", "sub/c.gguf", "embed/model.onnx", "embed/tokenizer.json", "hub/onnx/model.onnx", "hub/config.json",
                 "one/net.onnx", "two/x.onnx", "two/y.onnx", "triton/1/model.onnx", "notes.txt",
                 "text/model.onnx", "text/genai_config.json",
                 ".hidden.gguf", ".git/z.gguf"):  # fmt: skip
        put(tmp_path / name)
    found = scan((place(tmp_path),))
    assert names(found) == ["a.onnx", "b.gguf", "embed", "hub", "one", "sub/c.gguf", "text", "triton", "two/x.onnx", "two/y.onnx"]
    by_name = {model.name: model for model in found.models}
    assert by_name["hub"].folder and by_name["hub"].files[0].path.name == "model.onnx" and len(by_name["hub"].files) == 2
    assert (
        by_name["b.gguf"].runtime == "llama.cpp"
        and by_name["a.onnx"].runtime == "onnx"
        and by_name["text"].runtime == "genai"
        and by_name["embed"].size == 2
    )


def test_a_split_model_is_one(tmp_path: Path) -> None:
    for part in (1, 2, 3):
        put(tmp_path / f"m-0000{part}-of-00003.gguf", "x" * part)
    model = only(tmp_path)
    assert (model.name, model.size, model.missing, len(model.files)) == ("m-00001-of-00003.gguf", 6, (), 3)
    (tmp_path / "m-00001-of-00003.gguf").unlink()
    assert only(tmp_path).missing == (1,) and only(tmp_path).name == "m-00001-of-00003.gguf"
    put(tmp_path / "n-00001-of-99999.gguf")
    assert len(scan((place(tmp_path),)).models[1].missing) == 20


def test_links_out_of_the_place_are_left_out(tmp_path: Path) -> None:
    outside, root = tmp_path / "outside", tmp_path / "root"
    put(outside / "secret.gguf")
    put(outside / "model" / "model.onnx")
    put(root / "in.gguf")
    put(root / "trick" / "tokenizer.json")
    (root / "file.gguf").symlink_to(outside / "secret.gguf")
    (root / "folder").symlink_to(outside, target_is_directory=True)
    (root / "trick" / "model.onnx").symlink_to(outside / "model" / "model.onnx")
    (root / "near.gguf").symlink_to(root / "in.gguf")
    (root / "dangling.gguf").symlink_to(root / "nothing")
    (root / "self.gguf").symlink_to(root / "self.gguf")
    found = scan((place(root),))
    assert names(found) == ["in.gguf", "near.gguf"]
    assert {remark.split(" ")[0] for remark in found.remarks} == {"file.gguf", "folder", "trick/model.onnx"}


def test_links_in_circles_end(tmp_path: Path) -> None:
    put(tmp_path / "a" / "m.gguf")
    (tmp_path / "a" / "up").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "a" / "here").symlink_to(tmp_path / "a", target_is_directory=True)
    (tmp_path / "b").symlink_to(tmp_path / "a", target_is_directory=True)
    assert names(scan((place(tmp_path),))) == ["a/m.gguf", "b/m.gguf"]


def test_special_files_and_odd_names_are_left_out(short_path: Path) -> None:
    os.mkfifo(short_path / "pipe.gguf")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(short_path / "sock.gguf"))
    put(short_path / "new\nline.gguf")
    Path(os.fsdecode(os.fsencode(short_path) + b"/\xff\xfe.gguf")).touch()
    put(short_path / "good.gguf")
    (short_path / "folder.gguf").mkdir()
    assert names(scan((place(short_path),))) == ["good.gguf"]


def test_depth_entries_and_models_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "/".join("abcdefghij") / "deep.gguf")
    found = scan((place(tmp_path),))
    assert not found.models and "too deep" in found.remarks[0]
    wide = tmp_path / "wide"
    for number in range(60):
        put(wide / f"{number:02d}.gguf")
    monkeypatch.setattr(scanning, "MAX_MODELS", 10)
    found = scan((place(wide),))
    assert len(found.models) == 10 and "left out" in found.remarks[-1]
    monkeypatch.setattr(scanning, "MAX_MODELS", 1000)
    monkeypatch.setattr(scanning, "MAX_ENTRIES", 20)
    found = scan((place(wide),))
    assert len(found.models) <= 20 and found.entries == 20 and "left out" in found.remarks[-1]


def test_the_first_place_counts(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        put(tmp_path / folder / "m.gguf", folder)
    found = scan((place(tmp_path / "two"), place(tmp_path / "one", "directory"), place(tmp_path / "absent", "bundled")))
    assert [model.path for model in found.models] == [(tmp_path / "two" / "m.gguf").resolve()]
    assert "more than once" in found.remarks[0]


def test_the_version_changes_with_the_file(tmp_path: Path) -> None:
    path = put(tmp_path / "m.gguf", "a")
    before = only(tmp_path).version
    assert only(tmp_path).version == before
    path.write_text("bb")
    assert only(tmp_path).version != before


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.lists(st.sampled_from(["a", "b", "model.onnx", "onnx", "..x"]), min_size=1, max_size=4), st.integers(0, 3)),
        max_size=12,
    )
)
def test_any_tree_is_scanned_and_nothing_outside_is_named(
    tmp_path_factory: pytest.TempPathFactory, entries: list[tuple[list[str], int]]
) -> None:
    root = tmp_path_factory.mktemp("tree") / "root"
    outside = put(root.parent / "outside" / "x.gguf")
    root.mkdir()
    for parts, kind in entries:
        path = root.joinpath(*parts)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if kind == 0:
                path.with_suffix(".gguf").touch()
            elif kind == 1:
                path.with_suffix(".onnx").touch()
            elif kind == 2:
                path.symlink_to(outside.parent, target_is_directory=True)
            else:
                path.symlink_to(root, target_is_directory=True)
        except OSError:
            continue
    found = scan((place(root),))
    assert len(set(names(found))) == len(found.models)
    for model in found.models:
        assert all(file.path.resolve().is_relative_to(root.resolve()) for file in model.files)
