"""Which models may be loaded and may arrive: signed ones, whole, by a key of the configuration."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engines.host.catalogue import trust as module
from engines.host.catalogue.checksums import SETTLED, Checksums, Stopped
from engines.host.catalogue.shelf import file_at
from engines.host.catalogue.trust import Trust, Untrusted
from gateway.core.specs.fleet import ModelSignaturesSpec
from tests.modelsigning import KEY, OTHER, pem, sign, signature


class World:
    """A folder model, a GGUF file and a split one, all signed, and one key."""

    def __init__(self, root: Path) -> None:
        self.root, self.models = root, root / "models"
        self.folder, self.file = self.models / "onnx-model", self.models / "chat.gguf"
        (self.folder / "onnx").mkdir(parents=True)
        (self.folder / "config.json").write_text("{}")
        (self.folder / "onnx" / "model.onnx").write_bytes(b"graph" * 100)
        self.file.write_bytes(b"GGUF" * 100)
        self.parts = [self.models / f"big-{n:05d}-of-00002.gguf" for n in (1, 2)]
        for number, part in enumerate(self.parts):
            part.write_bytes(b"%d" % number * 100)
        for model in (self.folder, self.file, *self.parts):
            sign(model)
        (root / "vendor.pem").write_bytes(pem())
        self.settings = ModelSignaturesSpec(keys=(str(root / "vendor.pem"),), required=True)
        self.checksums = Checksums(root / "sums.json")
        self.trust = Trust(lambda: self.settings, self.checksums)

    def load(self, model: Path | str | None, **options: Any) -> module.Seal | None:
        return self.trust.loading(None if model is None else str(model), options, lambda: True)

    def refused(self, model: Path | str | None, **options: Any) -> str:
        with pytest.raises(Untrusted) as caught:
            self.load(model, **options)
        return str(caught.value)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_what_is_signed_is_loaded(world: World) -> None:
    for model in (world.folder, world.folder / "onnx" / "model.onnx", world.file, world.parts[0]):
        seal = world.load(model)
        assert seal is not None and seal.whole()
    link = world.root / "link"
    link.symlink_to(world.folder)
    assert world.load(link) is not None
    inside = world.folder / "w.gguf"
    inside.write_bytes(b"w")
    sign(world.folder)
    assert world.load(inside) is not None
    (world.folder / "README").write_text("not signed, and nothing that an engine of this file reads")
    assert world.load(inside) is not None and "README is there and was not signed" in world.refused(world.folder)


CHANGES: dict[str, tuple[Callable[[World], Any], str, str]] = {
    "altered": (lambda w: w.file.write_bytes(b"GGUX" * 100), "chat.gguf", "chat.gguf is not what was signed"),
    "unsigned": (lambda w: (w.models / "chat.gguf.sig").unlink(), "chat.gguf", "no signature (chat.gguf.sig beside it)"),
    "of another model": (lambda w: shutil.copy(f"{w.parts[0]}.sig", f"{w.file}.sig"), "chat.gguf", "is not what was signed"),
    "of another key": (lambda w: sign(w.file, OTHER), "chat.gguf", "made with another key"),
    "none": (lambda w: (w.models / "chat.gguf.sig").write_text("{}"), "chat.gguf", "not a bundle"),
    "a link": (lambda w: linked(w.models / "chat.gguf.sig"), "chat.gguf", "cannot be read"),
    "a second part altered": (lambda w: w.parts[1].write_bytes(b"x"), "big-00001-of-00002.gguf", "00002-of-00002.gguf is not what"),
    "a second part by a link": (lambda w: linked(w.parts[1]), "big-00001-of-00002.gguf", "is a link"),
    "one more file": (lambda w: (w.folder / "tokenizer.json").write_text("{}"), "onnx-model", "tokenizer.json is there and was not"),
    "one file less": (lambda w: (w.folder / "config.json").unlink(), "onnx-model", "config.json was signed and is not there"),
    "a subset": (lambda w: subset(w), "onnx-model", "config.json is there and was not signed"),
    "a file that is a link": (lambda w: linked(w.folder / "config.json"), "onnx-model", "config.json is a link"),
    "a graph with a neighbour": (lambda w: (w.folder / "onnx" / "w.data").touch(), "onnx-model/onnx/model.onnx", "onnx/w.data is there"),
    "a graph signed by itself": (lambda w: alone(w), "onnx-model/onnx/model.onnx", "model.sig in a folder with all it needs"),
    "a key taken away": (lambda w: (w.root / "vendor.pem").unlink(), "chat.gguf", "a key cannot be used"),
    "a key exchanged": (lambda w: (w.root / "vendor.pem").write_bytes(pem(OTHER)), "chat.gguf", "made with another key"),
}


def linked(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


def subset(world: World) -> None:
    kept = (world.folder / "config.json").read_text()
    (world.folder / "config.json").unlink()
    sign(world.folder)
    (world.folder / "config.json").write_text(kept)


def alone(world: World) -> None:
    (world.folder / "model.sig").unlink()
    sign(world.folder / "onnx" / "model.onnx")


@pytest.mark.parametrize(("change", "model", "why"), CHANGES.values(), ids=CHANGES)
def test_what_is_not_signed_as_it_is_is_refused(world: World, change: Callable[[World], Any], model: str, why: str) -> None:
    world.load(world.models / model)
    change(world)
    said = world.refused(world.models / model)
    assert why in said
    assert "cannot be read" in said or "vendor.pem" in said, "the key that was expected"


def test_files_that_options_name_are_verified_too(world: World) -> None:
    adapter, options = world.models / "law.gguf", {"adapters": [{"name": "law", "file": "law.gguf"}]}
    adapter.write_bytes(b"lora")
    assert "'law.gguf'" in world.refused(world.file, **options)
    assert "'law.gguf'" in world.refused(world.file, speculation={"draft": {"file": "law.gguf"}})
    sign(adapter)
    assert world.load(world.file, **options) is not None


def test_what_is_no_file_here_is_refused_where_signatures_are_required(world: World) -> None:
    assert "is no file of this machine" in world.refused("org/name")
    assert "is no file of this machine" in world.refused(None)
    world.settings = ModelSignaturesSpec(keys=world.settings.keys)
    assert world.load("org/name") is None


def test_without_required_only_what_is_unsigned_passes(world: World) -> None:
    world.settings = ModelSignaturesSpec(keys=world.settings.keys)
    (world.models / "chat.gguf.sig").unlink()
    assert world.load(world.file) is None
    (world.folder / "config.json").write_text("[]")
    assert "config.json is not what was signed" in world.refused(world.folder)
    world.settings = ModelSignaturesSpec()
    assert world.load(world.folder) is None


def test_one_of_several_keys_is_enough(world: World) -> None:
    (world.root / "other.pem").write_bytes(pem(OTHER))
    world.settings = ModelSignaturesSpec(keys=(str(world.root / "other.pem"), *world.settings.keys), required=True)
    assert world.load(world.file) is not None
    sign(world.file, OTHER)
    assert world.load(world.file) is not None


def test_a_checksum_is_computed_once_and_again_for_what_only_seems_the_same(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[str] = []
    real = module.digest

    def counted(path: Path, go_on: Callable[[], bool]) -> str:
        computed.append(path.name)
        return real(path, go_on)

    monkeypatch.setattr(module, "digest", counted)
    monkeypatch.setattr("engines.host.catalogue.checksums.time.time_ns", lambda: file_at(world.file).changed + 10 * SETTLED)
    world.load(world.file)
    world.load(world.file)
    assert computed == ["chat.gguf"]
    before = world.file.stat()
    with world.file.open("r+b") as file:
        file.write(b"EVIL")
    os.utime(world.file, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = world.file.stat()
    assert (after.st_size, after.st_mtime_ns, after.st_ino) == (before.st_size, before.st_mtime_ns, before.st_ino)
    assert "is not what was signed" in world.refused(world.file)


def test_a_checksum_of_what_has_just_been_written_is_not_certain(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    file = file_at(world.file)
    monkeypatch.setattr("engines.host.catalogue.checksums.time.time_ns", lambda: file.changed + SETTLED // 2)
    world.checksums.put([(file, "0" * 64)])
    fresh = world.checksums.certain(file)
    assert fresh is None and world.checksums.get(file) == "0" * 64


SWAPS: dict[str, Callable[[World], Any]] = {
    "written": lambda w: (w.folder / "config.json").write_text("[]"),
    "exchanged and put back": lambda w: there_and_back(w.folder / "config.json"),
    "the folder exchanged and put back": lambda w: there_and_back(w.folder),
    "one more file for a while": lambda w: ((w.folder / "onnx" / "more").touch(), (w.folder / "onnx" / "more").unlink()),
    "gone": lambda w: shutil.rmtree(w.folder),
}


def there_and_back(path: Path) -> None:
    path.rename(path.with_name("away"))
    path.with_name("away").rename(path)


@pytest.mark.parametrize("swap", SWAPS.values(), ids=SWAPS)
def test_what_changes_between_its_verification_and_the_end_of_its_load_is_noticed(world: World, swap: Callable[[World], Any]) -> None:
    old = os.stat(world.folder).st_mtime_ns - 10**9
    for path in (*world.folder.rglob("*"), world.folder):
        os.utime(path, ns=(old, old))
    seal = world.load(world.folder)
    assert seal is not None and seal.whole()
    until_the_clock_of_files_ticks(world.root)
    swap(world)
    assert not seal.whole()


def until_the_clock_of_files_ticks(root: Path) -> None:
    probe = root / "tick"
    probe.touch()
    begin = probe.stat().st_ctime_ns
    for _ in range(10_000_000):
        probe.touch()
        if probe.stat().st_ctime_ns != begin:
            return


def test_a_model_that_arrives_is_verified_before_it_is_installed(world: World, tmp_path: Path) -> None:
    def arrives(path: Path, given: str | None = None) -> None:
        world.trust.arriving(path.name, path, None if given is None else given.encode(), lambda: True)

    arrives(world.folder)
    arrives(world.file, signature(world.file))
    for path, given, why in (
        (world.file, None, "has no signature"),
        (world.file, signature(world.parts[0]), "chat.gguf is not what was signed"),
        (world.file, signature(world.file, OTHER), "made with another key"),
        (world.folder / "onnx" / "model.onnx", signature(world.folder / "onnx" / "model.onnx", KEY), "in a folder with all it needs"),
    ):
        with pytest.raises(Untrusted, match=why):
            arrives(path, given)
    (world.folder / "more.json").touch()
    with pytest.raises(Untrusted, match=r"more.json is there and was not signed"):
        arrives(world.folder)


def test_an_engine_that_is_stopped_meanwhile_ends_the_verification(world: World) -> None:
    with pytest.raises(Stopped):
        world.trust.loading(str(world.file), {}, lambda: False)
