"""What every engine runtime keeps to: its row in engines.runtimes, and the sidecar's contract (engines/sidecar/shell.py)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engines.demo import genai
from engines.host.catalogue.inspection import Inspection
from engines.host.catalogue.scan import Place, scan
from engines.host.supervisor import Supervisor
from engines.host.warmup import request_for
from engines.runtimes import RUNTIMES
from gateway.core.errors import EngineChangeFailed
from gateway.core.specs import EngineSpec
from gateway.transport.ask import Reply, ask
from gateway.transport.pool import EndpointClient
from loadtests.llamacpp.random_gguf import Shape, write
from tests.unit.engines.host.traffic import Traffic
from tests.unit.engines.onnx.models import affine, save
from tests.unit.engines.test_confinement import landlock

SMALL = Shape(layers=1, width=32, heads=2, kv_heads=1, feed_forward=32)
MODELS: dict[str, Callable[[Path], Path]] = {
    "llama.cpp": lambda folder: write(folder / "m.gguf", SMALL),
    "genai": lambda folder: genai.write(folder / "m"),
    "onnx": lambda folder: save(affine(), folder / "m" / "model.onnx").parent,
}
"""By runtime: makes a small model in a folder, and returns its path."""


def test_every_runtime_is_held_to_this_contract() -> None:
    """`command` runs servers of others, which have no model here: tests/e2e/test_command.py holds it to the same."""
    assert {*MODELS, "command"} == {row.name for row in RUNTIMES}


@pytest.fixture(params=MODELS)
def runtime(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def supervisor(short_path: Path) -> AsyncIterator[Supervisor]:
    made = Supervisor(short_path / "state", Traffic(), lambda *event: None)
    yield made
    await made.aclose()


def spec(runtime: str, model: Path, **settings: Any) -> EngineSpec:
    return EngineSpec(name="e", runtime=runtime, model=str(model), context=256, slots=2, threads=1, **settings)


async def asked(socket: str, method: str, path: str, body: bytes = b"") -> Reply:
    client = EndpointClient(socket, max_idle=1)
    try:
        async with asyncio.timeout(60):
            return await ask(client, method, path, {"content-type": "application/json"} if body else {}, body)
    finally:
        await client.aclose()


def test_its_models_are_found_and_described(tmp_path: Path, runtime: str) -> None:
    MODELS[runtime](tmp_path)
    (found,) = scan((Place(tmp_path, "directory"),)).models
    assert found.runtime == runtime
    with Inspection(lambda: True, [tmp_path]) as inspection:
        facts = inspection.look(found.path, RUNTIMES[runtime])
        assert facts.problem is None and facts.task is not None
        for file in found.files:
            file.path.write_bytes(b"noise")
        assert inspection.look(found.path, RUNTIMES[runtime]).problem


async def test_its_sidecar_loads_answers_and_drains(tmp_path: Path, short_path: Path, supervisor: Supervisor, runtime: str) -> None:
    wanted = spec(runtime, MODELS[runtime](tmp_path))
    await supervisor.apply((wanted,), wait=True)
    (engine,) = supervisor.engines()
    assert (engine["state"], engine["runtime"], engine["device"]) == ("ready", runtime, "cpu")
    (socket,) = (short_path / "state" / "run").glob("*/s.sock")
    assert socket.stat().st_mode & 0o777 == 0o600
    method, path, body = request_for(RUNTIMES[runtime], wanted, engine)
    assert (await asked(f"unix:{socket}", method, path, b"" if body is None else msgspec.json.encode(body))).head.status == 200
    assert (await asked(f"unix:{socket}", "GET", "/metrics")).body.startswith(b"# TYPE gatehouse_sidecar_")
    assert (await asked(f"unix:{socket}", "GET", "/none")).head.status == 404
    await supervisor.unload("e")
    assert not socket.exists() and supervisor.engines()[0]["state"] == "stopped"


async def test_its_sidecar_knows_nothing_of_the_gateways_secrets(
    tmp_path: Path, supervisor: Supervisor, runtime: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UPSTREAM_API_KEY", "planted-secret")
    await supervisor.apply((spec(runtime, MODELS[runtime](tmp_path)),), wait=True)
    (engine,) = supervisor.engines()
    assert b"planted-secret" not in Path(f"/proc/{engine['pid']}/environ").read_bytes()
    assert (engine["confinement"]["no_new_privs"], engine["confinement"]["landlock"]) == (True, landlock())
    assert "NoNewPrivs:\t1" in Path(f"/proc/{engine['pid']}/status").read_text()


async def test_it_refuses_a_file_that_is_no_model(tmp_path: Path, supervisor: Supervisor, runtime: str) -> None:
    model = MODELS[runtime](tmp_path)
    for file in model.rglob("*") if model.is_dir() else (model,):
        file.write_bytes(b"noise")
    with pytest.raises(EngineChangeFailed, match=r"noise|magic|GGUF|ONNX|protobuf|not a|not JSON|truncated"):
        await supervisor.apply((spec(runtime, model),), wait=True)


def test_its_options_are_checked_by_its_schema(runtime: str) -> None:
    assert "max_body_bytes" in RUNTIMES[runtime].settings.__struct_fields__, "the shell's own option"
