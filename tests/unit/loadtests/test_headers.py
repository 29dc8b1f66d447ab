"""The program that looks for headers which end llama.cpp: what it writes is what our reader reads, and its changes are repeatable."""

from __future__ import annotations

import random
from pathlib import Path

from engines.llamacpp.cursor import GgufError
from engines.llamacpp.gguf import describe, read
from loadtests.llamacpp.headers import SHAPE, architectures, further_keys, library
from loadtests.llamacpp.hostile import F32, Header, Value, changed, value_of
from loadtests.llamacpp.random_gguf import metadata, tensors


def whole() -> Header:
    """A header of the architecture llama."""
    values = {key: value_of(value) for key, value in metadata(SHAPE).items()}
    return Header(values, {name: (tuple(reversed(dims)), 0) for name, dims in tensors(SHAPE)})


def test_a_written_header_is_read(tmp_path: Path) -> None:
    header = whole()
    header.write(path := tmp_path / "m.gguf")
    found = describe(read(path))
    assert (found.architecture, found.layers, found.width, found.context) == ("llama", SHAPE.layers, SHAPE.width, SHAPE.context)
    header.values["llama.attention.layer_norm_rms_epsilon"] = Value(F32, float("nan"))
    header.write(path)
    assert "layer_norm_rms_epsilon is nan" in refusal(path)


def refusal(path: Path) -> str:
    """Why our reader refuses a file; empty if it takes it."""
    try:
        describe(read(path))
    except GgufError as error:
        return str(error)
    return ""


def test_our_reader_takes_or_refuses_whatever_is_changed(tmp_path: Path) -> None:
    base, keys, path = whole(), further_keys(library()), tmp_path / "m.gguf"
    refused = 0
    for seed in range(150):
        made, said = changed(base, keys, random.Random(seed))
        assert said == changed(base, keys, random.Random(seed))[1]
        made.write(path)
        refused += bool(refusal(path))
    assert 0 < refused < 150


def test_the_architectures_of_the_library() -> None:
    assert {"llama", "bert", "gemma2", "mamba"} <= set(architectures(library()))
