"""Uploads on disk: whatever is written, refused, cut or restarted, the offset is what is there, and the checksum is of what was sent."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engines.host.catalogue.checksums import Checksums, Stopped, digest
from engines.host.catalogue.quarantine import CONTENT, DATA, RECORD, REPLACED, Quarantine, Upload
from engines.host.catalogue.shelf import file_at
from gateway.core.modelfiles import UploadSettings

SIZE = 3000
PROMISE = UploadSettings(name="m.gguf", size=SIZE, sha256="0" * 64)


class Uploading(RuleBasedStateMachine):
    """An upload against a list of bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.quarantine = Quarantine(self.root / "quarantine")
        self.upload: Upload = self.quarantine.begin(PROMISE, "a/b", 1.0)
        self.expected = bytearray()

    @rule(data=st.binary(min_size=1, max_size=700))
    def write(self, data: bytes) -> None:
        data = data[: self.upload.missing]
        if data:
            self.upload.write(data, 2.0)
            self.expected += data

    @rule(data=st.binary(min_size=1, max_size=700), after=st.integers(0, 2))
    def write_on_a_full_disk(self, data: bytes, after: int) -> None:
        real, calls = os.pwrite, 0

        def full(descriptor: int, part: Any, at: int) -> int:
            nonlocal calls
            calls += 1
            if calls > after:
                raise OSError(errno.ENOSPC, "full")
            return real(descriptor, part[: max(1, len(part) // 2)], at)

        data = data[: self.upload.missing]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "pwrite", full)
            try:
                self.upload.write(data, 2.0)
            except OSError:
                return
        self.expected += data

    @rule()
    def restart(self) -> None:
        (self.upload,) = Quarantine(self.root / "quarantine").recover(self.root / "models")

    @precondition(lambda self: self.upload.offset)
    @rule()
    def look_and_put_back(self) -> None:
        assert self.upload.take().read_bytes() == self.expected
        self.upload.give_back()

    @precondition(lambda self: self.upload.offset)
    @rule()
    def end_while_it_is_looked_at(self) -> None:
        self.upload.take()
        self.restart()

    @invariant()
    def what_is_there_is_what_was_sent(self) -> None:
        assert self.upload.offset == len(self.expected)
        assert (self.upload.folder / DATA).read_bytes() == self.expected
        assert self.upload.sha256(lambda: True) == hashlib.sha256(self.expected).hexdigest()

    def teardown(self) -> None:
        shutil.rmtree(self.root)


Uploading.TestCase.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)
test_an_upload_keeps_what_it_has = Uploading.TestCase


def test_what_a_crash_left_is_cleaned(tmp_path: Path) -> None:
    quarantine = Quarantine(tmp_path / "quarantine")
    whole, no_record, damaged, longer, installed = (quarantine.begin(PROMISE, "a/b", 1.0) for _ in range(5))
    whole.write(b"x", 2.0)
    (no_record.folder / RECORD).unlink()
    (damaged.folder / RECORD).write_text("{")
    (longer.folder / DATA).write_bytes(b"x" * (SIZE + 1))
    (installed.folder / DATA).unlink()
    (tmp_path / "quarantine" / "removed-1").mkdir()
    (tmp_path / "quarantine" / "stray").touch()
    found = quarantine.recover(tmp_path / "models")
    assert [(u.id, u.offset, u.promise.actor) for u in found] == [(whole.id, 1, "a/b")]
    assert [p.name for p in (tmp_path / "quarantine").iterdir()] == [whole.id]
    assert not any(p.stat().st_mode & 0o077 for p in (tmp_path / "quarantine").rglob("*"))


def test_a_model_that_was_being_replaced_is_put_back(tmp_path: Path) -> None:
    quarantine, models = Quarantine(tmp_path / "quarantine"), tmp_path / "models"
    models.mkdir()
    upload = quarantine.begin(UploadSettings(name="folder", size=1, sha256="0" * 64), "a/b", 1.0)
    (upload.folder / REPLACED).mkdir()
    (upload.folder / REPLACED / "model.onnx").write_text("old")
    (upload.folder / CONTENT).mkdir()
    quarantine.recover(models)
    assert (models / "folder" / "model.onnx").read_text() == "old"


def test_checksums_are_remembered_until_the_file_changes(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"abc")
    sums = Checksums(tmp_path / "sums.json")
    assert sums.get(file_at(path)) is None
    sums.put([(file_at(path), digest(path, lambda: True))])
    again = Checksums(tmp_path / "sums.json")
    assert again.get(file_at(path)) == hashlib.sha256(b"abc").hexdigest()
    path.write_bytes(b"abcd")
    assert again.get(file_at(path)) is None
    (tmp_path / "sums.json").write_text("[]")
    assert Checksums(tmp_path / "sums.json").get(file_at(path)) is None
    with pytest.raises(Stopped):
        digest(path, lambda: False)


def test_what_a_job_made_and_could_not_place_is_not_left_as_an_upload(tmp_path: Path) -> None:
    registry, made = tmp_path / "models", tmp_path / "made"
    registry.mkdir()
    made.write_bytes(b"12345")
    settings = UploadSettings(name="m.gguf", size=5, sha256="0" * 64, replace=True)
    first = Quarantine(tmp_path / "quarantine")
    upload = first.adopt(made, settings, "acme/root", 1.0)
    kept = first.begin(settings, "acme/root", 1.0)
    (upload.folder / REPLACED).write_bytes(b"the one before")
    found = Quarantine(tmp_path / "quarantine").recover(registry)
    assert [one.id for one in found] == [kept.id] and not upload.folder.exists() and not made.exists()
    assert (registry / "m.gguf").read_bytes() == b"the one before"
