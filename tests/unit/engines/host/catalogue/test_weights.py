"""Folders of weights by name: found without links, and nowhere else than in the directories of models."""

from __future__ import annotations

from pathlib import Path

import pytest

from engines.host.catalogue.scan import Place
from engines.host.catalogue.weights import folder
from gateway.core.errors import NotFound


def test_a_folder_is_found_by_its_name_alone(tmp_path: Path) -> None:
    places = (Place(tmp_path / "registry", "registry"), Place(tmp_path / "shared", "directory"))
    there = tmp_path / "shared" / "org" / "m"
    there.mkdir(parents=True)
    (there / "config.json").write_text("{}")
    (there / "a.safetensors").write_bytes(b"12345")
    (there / "b.safetensors").write_bytes(b"123")
    (there / "pytorch_model.bin").write_bytes(b"1234567")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "config.json").write_text("{}")
    (tmp_path / "shared" / "link").symlink_to(tmp_path / "outside")
    (tmp_path / "shared" / "inside").symlink_to(there)
    assert folder(places, "org/m") == (there, 8)
    for name in ("org", "m", "org/m/", "org//m", "/org/m", "../shared/org/m", "org/../org/m", "link", "inside", "org/m\n", ".", "", "x\0y"):
        with pytest.raises(NotFound):
            folder(places, name)
