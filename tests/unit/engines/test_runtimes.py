"""The table of runtimes: what loading it costs, and that its rows name what exists."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys

import pytest

from engines.runtimes import RUNTIMES, Layers, RuntimeRow, runtime_of_file
from gateway.core.modelfiles import FILE_SUFFIXES, FOLDER_SUFFIXES

HEAVY = ("llama_cpp", "onnxruntime", "onnxruntime_genai", "numpy", "tokenizers", "jinja2", "uvicorn", "uvloop")


def test_the_gateway_reads_the_table_without_loading_a_runtime() -> None:
    script = f"import sys, engines.runtimes; print([name for name in {HEAVY!r} if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


@pytest.mark.parametrize("row", RUNTIMES, ids=lambda row: row.name)
def test_what_a_row_names_exists(row: RuntimeRow) -> None:
    assert importlib.util.find_spec(f"{row.module}.__main__") is not None
    module, _, function = row.inspect.partition(":")
    assert bool(row.inspect) == bool(row.suffixes or row.folder_files)
    assert not row.inspect or callable(getattr(importlib.import_module(module), function))
    assert not isinstance(row.memory, Layers) or importlib.util.find_spec(row.memory.reader) is not None


def test_every_model_that_is_one_file_may_be_uploaded() -> None:
    assert {suffix for row in RUNTIMES for suffix in row.suffixes} == set(FILE_SUFFIXES)
    assert all(suffix in FOLDER_SUFFIXES for row in RUNTIMES if row.folder_files for suffix in row.suffixes)


@pytest.mark.parametrize(("name", "runtime"), [("a.gguf", "llama.cpp"), ("a.onnx", "onnx"), ("a.bin", None), ("gguf", None)])
def test_a_files_name_tells_its_runtime(name: str, runtime: str | None) -> None:
    found = runtime_of_file(name, RUNTIMES)
    assert (None if found is None else found.name) == runtime
