"""Proofs of single records, checked by the script that auditors get; and what is not proven."""

from __future__ import annotations

import json
import random
import runpy
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from gateway.audit import proof
from gateway.audit.crypto import PUBLIC_KEY
from gateway.audit.proof import prove
from gateway.core.errors import AuditUnproven

SCRIPT = Path(__file__).parents[4] / "scripts" / "verify-proof"


def verified(bench: Any, found: dict[str, Any], tmp_path: Path) -> tuple[int, str]:
    file = tmp_path / "proof.json"
    file.write_text(json.dumps(found))
    done = subprocess.run([sys.executable, SCRIPT, *arguments(bench, file)], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout + done.stderr


def arguments(bench: Any, file: Path) -> list[str]:
    return [str(bench.state_dir / "keys" / PUBLIC_KEY), str(file)]


def refused(bench: Any, found: dict[str, Any], tmp_path: Path) -> bool:
    """What the script says, without a process for each try."""
    file = tmp_path / "changed.json"
    file.write_text(json.dumps(found))
    return bool(runpy.run_path(str(SCRIPT))["main"](["verify-proof", *arguments(bench, file)]) == 1)


def proofs(bench: Any, request_id: str) -> dict[str, Any]:
    return {"request_id": request_id, "proofs": prove(bench.directory, bench.signer, bench.clock, request_id)}


@pytest.fixture
def log(log_bench: Any, make: Any) -> Any:
    """Two writers with some segments each; the request r7 has its two records in the first one's."""
    for name in ("gw", "gw-1"):
        writer = log_bench.writer(writer=name, segment_bytes=3000)
        writer.open()
        for number in range(20):
            mine = number if name == "gw" else 100 + number
            writer.write([make.intent(f"r{mine}"), make.outcome(f"r{mine}", detail={"text": 'ünïcödé \x00"'})])
        writer.close()
    assert len(list(log_bench.directory.glob("audit-gw-0*.jsonl"))) > 2
    return log_bench


def test_the_records_of_a_request_are_proven(log: Any, tmp_path: Path) -> None:
    found = proofs(log, "r7")
    assert [proof["record"]["kind"] for proof in found["proofs"]] == ["intent", "outcome"]
    assert verified(log, found, tmp_path) == (0, "proven: 2 records of r7\n")
    assert proofs(log, "r")["proofs"] == [] == prove(tmp_path / "none", log.signer, log.clock, "r7")
    assert verified(log, {"request_id": "r", "proofs": []}, tmp_path)[0] == 1


def changed(value: Any, chance: random.Random) -> Any:
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        at = chance.randrange(len(value) + 1)
        return value[:at] + ("1" if value[at : at + 1] == "0" else "0") + value[at + 1 :]
    return [*value, "00" * 32] if isinstance(value, list) else {**value, "more": 1}


def test_a_proof_in_which_anything_is_changed_is_none(log: Any, tmp_path: Path) -> None:
    whole = proofs(log, "r7")
    chance = random.Random(5)
    places = [(name,) for name in ("record", "line", "leaf_hash", "leaf_index", "path")]
    places += [(part, name) for part in ("tree", "checkpoint") for name in whole["proofs"][0][part]]
    for place in places:
        found = deepcopy(whole)
        inner = found["proofs"][0] if len(place) == 1 else found["proofs"][0][place[0]]
        inner[place[-1]] = changed(inner[place[-1]], chance)
        assert refused(log, found, tmp_path), place
    other = proofs(log, "r8")
    assert refused(log, {"request_id": "r7", "proofs": other["proofs"]}, tmp_path)
    mixed = deepcopy(whole)
    mixed["proofs"][0]["tree"] = proofs(log, "r107")["proofs"][0]["tree"]
    assert refused(log, mixed, tmp_path)


def test_of_a_changed_log_nothing_is_proven(log: Any, tmp_path: Path) -> None:
    path = next(path for path in sorted(log.directory.glob("audit-gw-0*.jsonl")) if b'"r7"' in path.read_bytes())
    data = path.read_bytes()
    path.write_bytes(data.replace(b'"ok"', b'"no"', 1))
    with pytest.raises(AuditUnproven, match="nothing of a changed log is proven"):
        proofs(log, "r7")
    path.write_bytes(data)
    assert verified(log, proofs(log, "r7"), tmp_path)[0] == 0
    sorted(log.directory.glob("audit-gw-0*.jsonl"))[-1].unlink()
    assert proofs(log, "r7")["proofs"], "its own segment ends with a checkpoint"


def test_a_record_is_proven_once_a_checkpoint_covers_it(log_bench: Any, make: Any, tmp_path: Path) -> None:
    writer = log_bench.writer()
    writer.open()
    writer.write([make.intent("r1")])
    with pytest.raises(AuditUnproven):
        proofs(log_bench, "r1")
    writer.checkpoint()
    assert verified(log_bench, proofs(log_bench, "r1"), tmp_path)[0] == 0
    writer.write([make.outcome("r1")])
    with pytest.raises(AuditUnproven, match="not covered by a signed checkpoint yet"):
        proofs(log_bench, "r1")
    writer.close()


def test_many_requests_of_one_id_are_proven_with_one_reading_and_not_without_end(
    log_bench: Any, make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Callers choose ids: reusing one must not keep the gateway reading its log."""
    writer = log_bench.writer()
    writer.open()
    writer.write([make.intent("same") for _ in range(30)])
    writer.close()
    read, leaves = [], proof._leaves

    def counted(*given: Any) -> Any:
        read.append(given)
        return leaves(*given)

    monkeypatch.setattr(proof, "_leaves", counted)
    found = proofs(log_bench, "same")
    assert len(found["proofs"]) == 30 and len(read) == 1
    assert verified(log_bench, found, tmp_path)[0] == 0
    monkeypatch.setattr(proof, "MOST", 29)
    with pytest.raises(AuditUnproven, match="more than 29 records"):
        proofs(log_bench, "same")
