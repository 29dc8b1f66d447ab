"""Where an engine's model file is looked for, and what an engine of the store may name."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from gateway.app.engines.model_files import DEMO_MODELS, find, resolve
from gateway.core.errors import ConfigError
from gateway.core.specs import ConfigSpec, EngineSpec, ModelSignaturesSpec
from gateway.core.specs.fleet import ModelSharingSpec
from tests.modelsigning import pem


def spec_with(tmp_path: Path, model: str | None, runtime: str = "llama.cpp") -> ConfigSpec:
    engine = msgspec.convert({"name": "e", "runtime": runtime, "model": model}, EngineSpec)
    return ConfigSpec(version=1, state_dir=str(tmp_path / "state"), engines=(engine,))


def test_a_models_file_is_looked_for_beside_the_configuration_first(tmp_path: Path) -> None:
    (tmp_path / "state" / "models").mkdir(parents=True)
    (tmp_path / "state" / "models" / "x.gguf").touch()
    assert resolve(spec_with(tmp_path, "x.gguf"), tmp_path).engines[0].model == str(tmp_path / "state" / "models" / "x.gguf")
    (tmp_path / "x.gguf").touch()
    assert resolve(spec_with(tmp_path, "x.gguf"), tmp_path).engines[0].model == str(tmp_path / "x.gguf")


def test_demo_models_are_found(tmp_path: Path) -> None:
    name = next(DEMO_MODELS.iterdir()).name
    assert resolve(spec_with(tmp_path, name), tmp_path).engines[0].model == str((DEMO_MODELS / name).resolve())


def test_configured_directories_come_after_the_registry_and_before_the_demo_models(tmp_path: Path) -> None:
    demo = next(DEMO_MODELS.iterdir()).name
    for folder, name in (("state/models", "x.gguf"), ("shared", "x.gguf"), ("shared", "y.gguf"), ("shared", demo)):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / name).touch()
    for name, folder in (("x.gguf", "state/models"), ("y.gguf", "shared"), (demo, "shared")):
        spec = msgspec.structs.replace(spec_with(tmp_path, name), model_dirs=("shared",))
        assert resolve(spec, tmp_path).engines[0].model == str(tmp_path / folder / name)


def test_a_directory_that_replicas_share_takes_the_registrys_place(tmp_path: Path) -> None:
    for folder in ("state/models", "ours"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "x.gguf").touch()
    spec = msgspec.structs.replace(spec_with(tmp_path, "x.gguf"), model_sharing=ModelSharingSpec(directory="ours"))
    assert resolve(spec, tmp_path).engines[0].model == str(tmp_path / "ours" / "x.gguf")
    (tmp_path / "ours" / "x.gguf").rename(tmp_path / "ours" / ".hidden.gguf")
    with pytest.raises(ConfigError, match=r"x\.gguf"):
        resolve(spec, tmp_path)
    with pytest.raises(ConfigError, match="names a path"):
        find(".hidden.gguf", [tmp_path / "ours"])
    with pytest.raises(ConfigError, match="there is no directory") as caught:
        resolve(ConfigSpec(version=1, model_sharing=ModelSharingSpec(directory="nowhere")), tmp_path)
    assert caught.value.path == "model_sharing.directory"


def test_a_directory_of_models_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(ConfigSpec(version=1, model_dirs=("nowhere",)), tmp_path)
    assert caught.value.path == "model_dirs[0]" and "nowhere" in caught.value.message


def test_a_model_that_is_nowhere(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(spec_with(tmp_path, "none.gguf"), tmp_path)
    assert caught.value.path == "engines[0].model"
    assert "none.gguf" in caught.value.message


def test_external_engines_have_no_file(tmp_path: Path) -> None:
    spec = spec_with(tmp_path, None, "external")
    assert resolve(spec, tmp_path).engines == spec.engines


# --- engines of the store name models of the registry


@pytest.fixture
def shelves(tmp_path: Path) -> list[Path]:
    places = [tmp_path / "state" / "models", tmp_path / "bundled"]
    for place in places:
        place.mkdir(parents=True)
    (places[0] / "a.gguf").touch()
    (places[1] / "folder").mkdir()
    (places[1] / "folder" / "model.onnx").touch()
    (tmp_path / "secret.gguf").touch()
    (places[0] / "link.gguf").symlink_to(tmp_path / "secret.gguf")
    return places


def test_models_are_found_by_name(shelves: list[Path]) -> None:
    assert find("a.gguf", shelves) == shelves[0] / "a.gguf"
    assert find("folder", shelves) == find("folder/", shelves) == shelves[1] / "folder"
    assert find("folder/model.onnx", shelves) == shelves[1] / "folder" / "model.onnx"


@pytest.mark.parametrize(
    "name",
    [
        "/etc/passwd",
        "../../secret.gguf",
        "folder/../../../secret.gguf",
        "./a.gguf",
        "..",
        ".",
        "",
        "/",
        "a//b",
        "~/x",
        "..\\x",
        "x\0y",
        "link.gguf",
    ],
)
def test_nothing_else_is_found(shelves: list[Path], name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        find(name, shelves)
    assert caught.value.path == "model"


@pytest.mark.parametrize(
    ("keys", "path", "why"),
    [
        ((), "model_signatures.keys", "is empty, and signatures are required"),
        (("vendor.pem", "absent.pem"), "model_signatures.keys[1]", "No such file"),
        (("vendor.pem", "none.pem"), "model_signatures.keys[1]", "not a public key in PEM"),
    ],
)
def test_the_keys_of_signers_are_read_when_the_configuration_is(tmp_path: Path, keys: tuple[str, ...], path: str, why: str) -> None:
    (tmp_path / "vendor.pem").write_bytes(pem())
    (tmp_path / "none.pem").write_text("none")
    spec = ConfigSpec(version=1, model_signatures=ModelSignaturesSpec(keys=keys, required=True))
    with pytest.raises(ConfigError) as caught:
        resolve(spec, tmp_path)
    assert caught.value.path == path and why in caught.value.message
    resolve(ConfigSpec(version=1, model_signatures=ModelSignaturesSpec(keys=("vendor.pem",), required=True)), tmp_path)
