"""The file of a machine: its engines, and nothing that the gateway decides."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.app.configuration.plugins import OURS
from gateway.config.machine import load_machine
from gateway.core.errors import ConfigError

CHAT = "{name: chat, runtime: llama.cpp, model: m.gguf%s}"


def read(tmp_path: Path, text: str) -> tuple[str, ...]:
    file = tmp_path / "machine.yaml"
    file.write_text(text)
    return tuple(engine.name for engine in load_machine(file, {}, OURS.schemas()).loaded.spec.engines)


def test_a_file_with_engines(tmp_path: Path) -> None:
    assert read(tmp_path, f"version: 1\nstate_dir: /tmp/x\nengines: [{CHAT % ''}]\n") == ("chat",)


def test_a_file_of_a_machine_that_waits_for_what_gateways_place(tmp_path: Path) -> None:
    file = tmp_path / "machine.yaml"
    file.write_text("version: 1\naccepts: {memory_bytes: 1073741824, disk_bytes: 2147483648}\n")
    accepts = load_machine(file, {}, OURS.schemas()).accepts
    assert accepts is not None
    assert (accepts.disk_bytes, accepts.devices, accepts.runtimes) == (2147483648, ("cpu",), ("llama.cpp", "onnx"))
    assert read(tmp_path, f"version: 1\nengines: [{CHAT % ''}]\n") == ("chat",)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("engines: []", "engines"),
        ("engines: [{name: a, runtime: external, url: 'http://10.0.0.1'}]", "engines[0].runtime"),
        ("engines: [{name: a, runtime: command, api_key: '0123456789abcdef', options: {command: [/s, '${port}']}}]", "engines[0].api_key"),
        (f"engines: [{CHAT % ', clearance: [secret]'}]", "engines[0].clearance"),
        (f"engines: [{CHAT % ', scale: {max: 2}'}]", "engines[0].scale"),
        (f"engines: [{CHAT % ', lifecycle: {load: lazy}'}]", "engines[0].lifecycle"),
        (f"engines: [{CHAT % ''}, {CHAT % ''}]", "engines[1].name"),
        (f"engines: [{CHAT % ''}]\nmodels: []", "models"),
        ("accepts: {memory_bytes: 1073741824}", "disk_bytes"),
        ("accepts: {memory_bytes: 1073741824, disk_bytes: 1073741824, runtimes: [command]}", "accepts.runtimes[0]"),
        ("accepts: {memory_bytes: 1073741824, disk_bytes: 1073741824, devices: [cuda]}", "accepts.devices[0]"),
        (f"engines: [{CHAT % ''}]\nidentity: {{}}", "identity"),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, path: str) -> None:
    with pytest.raises(ConfigError) as error:
        read(tmp_path, f"version: 1\n{text}\n")
    assert path in str(error.value)
