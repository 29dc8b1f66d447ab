"""Signed statements about segments: one that is not genuine says nothing, and is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.audit.crypto import load_signer
from gateway.audit.statements import SEAL, TOMBSTONE, Seal, append, seals, tombstone, tombstones, tombstones_name

MADE = Seal(
    time=1.0,
    writer="gw",
    segment=1,
    first=1,
    last=9,
    bytes=100,
    sha256="ab" * 32,
    root="cd" * 32,
    previous="0" * 64,
    head="ef" * 32,
    began=1.0,
    ended=2.0,
    records={"intent": 4},
)


def test_a_tombstone_keeps_what_the_seal_said(log_bench: Any, tmp_path: Path) -> None:
    grave = tombstone(MADE, 7.0, "age", "s3://bucket/x")
    for name in ("writer", "segment", "first", "last", "root", "previous", "head", "began", "ended", "records"):
        assert getattr(grave, name) == getattr(MADE, name)
    signed = append(tmp_path / tombstones_name("gw"), TOMBSTONE, grave, log_bench.signer, 0)
    found = tombstones(tmp_path, "gw", log_bench.signer.verifier)
    assert found.found == {1: signed} and found.bad == []


@pytest.mark.parametrize(
    "change", [{"last": 10}, {"root": "00" * 32}, {"records": {}}, {"segment": 2}, {"key": "0" * 16}, {"signature": "00"}, {"ended": 3.0}]
)
def test_a_changed_one_says_nothing(log_bench: Any, tmp_path: Path, change: dict[str, Any]) -> None:
    path = tmp_path / "seals-gw.jsonl"
    signed = append(path, SEAL, MADE, log_bench.signer, 0)
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(signed, **change)) + b"\n")
    found = seals(tmp_path, "gw", log_bench.signer.verifier)
    assert found.found == {} and found.bad == [(1, "the signature is not genuine")]


def test_what_belongs_elsewhere_or_contradicts_says_nothing(log_bench: Any, tmp_path: Path) -> None:
    path = tmp_path / "seals-gw.jsonl"
    size = 0
    for one in (MADE, msgspec.structs.replace(MADE, writer="gw-1"), msgspec.structs.replace(MADE, last=10)):
        append(path, SEAL, one, log_bench.signer, size)
        size = path.stat().st_size
    with path.open("ab") as file:
        file.write(b'nothing\n{"torn')
    found = seals(tmp_path, "gw", log_bench.signer.verifier)
    assert [reason for _, reason in found.bad] == [
        "this belongs to writer gw-1",
        "segment 1 is spoken of twice",
        "this is not a signed statement about a segment",
    ]
    assert found.found[1].last == 9 and found.size == path.stat().st_size - 6


def test_a_seal_is_no_tombstone(log_bench: Any, tmp_path: Path) -> None:
    """Each kind is signed for its own purpose."""
    grave = tombstone(MADE, 7.0, "age", "")
    append(tmp_path / tombstones_name("gw"), SEAL, grave, log_bench.signer, 0)
    assert tombstones(tmp_path, "gw", log_bench.signer.verifier).bad == [(1, "the signature is not genuine")]
    other = load_signer(str(tmp_path / "other"))
    append(tmp_path / tombstones_name("gw"), TOMBSTONE, grave, other, 0)
    assert tombstones(tmp_path, "gw", log_bench.signer.verifier).found == {}
