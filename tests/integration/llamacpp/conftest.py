"""Real (tiny, random) GGUF models, and sidecars that serve them."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from loadtests.llamacpp.random_gguf import F32, metadata, write
from tests.integration.llamacpp.process import SHAPE, TOOLS_TEMPLATE, Sidecar


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models")
    write(directory / "tiny.gguf", SHAPE, scale=4.0)
    write(directory / "long.gguf", SHAPE, scale=4.0, values=metadata(SHAPE, llama__context_length=32768))
    write(directory / "tools.gguf", SHAPE, scale=4.0, values=metadata(SHAPE, template=TOOLS_TEMPLATE))
    write(directory / "plain.gguf", SHAPE, values=metadata(SHAPE, template=None))
    write(directory / "raising.gguf", SHAPE, values=metadata(SHAPE, template="{{ raise_exception('roles must alternate') }}"))
    write(directory / "embed.gguf", SHAPE, kind=F32, values=metadata(SHAPE, llama__pooling_type=1))
    write(directory / "rerank.gguf", SHAPE, kind=F32, values=metadata(SHAPE, llama__pooling_type=4))
    return directory


@pytest.fixture
def start(models: Path) -> Iterator[Callable[..., Sidecar]]:
    started: list[Sidecar] = []
    with tempfile.TemporaryDirectory(prefix="gh") as path:

        def make(model: str, **settings: Any) -> Sidecar:
            started.append(Sidecar(Path(path), models / model, **settings))
            return started[-1]

        yield make
        for sidecar in started:
            sidecar.close()


@pytest.fixture(scope="module")
def tiny(models: Path) -> Iterator[Sidecar]:
    with tempfile.TemporaryDirectory(prefix="gh") as path:
        sidecar = Sidecar(Path(path), models / "tiny.gguf")
        assert sidecar.wait("ready", "failed")["state"] == "ready"
        yield sidecar
        sidecar.close()
