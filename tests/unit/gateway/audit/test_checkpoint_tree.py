"""Checkpoints sign those before them: two of one history are shown to be so, offline, and nothing else is."""

from __future__ import annotations

import json
import runpy
from copy import deepcopy
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.audit import checkpoint_tree
from gateway.audit.checkpoint_tree import prove_consistency, tree_over
from gateway.audit.crypto import PUBLIC_KEY
from gateway.audit.merkle import leaf_hash, root_of
from gateway.audit.verify import verify_log
from gateway.core.errors import AuditUnproven

SCRIPT = Path(__file__).parents[4] / "scripts" / "verify-proof"


def judged(bench: Any, found: dict[str, Any], tmp_path: Path, *more: Path) -> int:
    file = tmp_path / "consistency.json"
    file.write_text(json.dumps(found))
    arguments = ["verify-proof", str(bench.state_dir / "keys" / PUBLIC_KEY), str(file), *map(str, more)]
    return int(runpy.run_path(str(SCRIPT))["main"](arguments))


def test_each_pair_of_checkpoints_is_consistent(log_bench: Any, tmp_path: Path) -> None:
    log_bench.log(batches=9)
    for first in range(1, 10):
        for second in range(first + 1, 11):
            found = prove_consistency(log_bench.directory, log_bench.signer.verifier, "0", first, second)
            assert judged(log_bench, found, tmp_path) == 0
    newest = prove_consistency(log_bench.directory, log_bench.signer.verifier, "0", 2)
    assert newest["second"]["number"] == 10 and judged(log_bench, newest, tmp_path, log_bench.directory / "checkpoints-0.jsonl") == 0


@pytest.mark.parametrize("field", ["first", "second", "first_line", "consistency", "inclusion"])
def test_a_changed_proof_is_refused(log_bench: Any, tmp_path: Path, field: str, capsys: pytest.CaptureFixture[str]) -> None:
    log_bench.log(batches=9)
    found = prove_consistency(log_bench.directory, log_bench.signer.verifier, "0", 3, 8)
    other = prove_consistency(log_bench.directory, log_bench.signer.verifier, "0", 4, 9)
    changed = deepcopy(found)
    changed[field] = other[field]
    assert judged(log_bench, changed, tmp_path) == 1
    assert "not proven" in capsys.readouterr().err


def test_a_history_that_was_begun_anew_is_not_consistent_with_what_was_kept(log_bench: Any, tmp_path: Path) -> None:
    """With the key, somebody writes another log: whoever kept a checkpoint of the first one can tell."""
    log_bench.log(batches=3)
    kept = tmp_path / "kept.jsonl"
    kept.write_bytes((log_bench.directory / "checkpoints-0.jsonl").read_bytes())
    for path in log_bench.directory.iterdir():
        path.unlink()
    log_bench.clock.advance(60)
    log_bench.log(batches=5)
    found = prove_consistency(log_bench.directory, log_bench.signer.verifier, "0", 2, 5)
    assert judged(log_bench, found, tmp_path) == 0
    assert judged(log_bench, found, tmp_path, kept) == 1


def test_the_tree_goes_on_over_starts(log_bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_tree, "PEAKS_EVERY", 4)
    for _ in range(3):
        log_bench.log(batches=4)
    path = log_bench.directory / "checkpoints-0.jsonl"
    lines = path.read_bytes().splitlines()
    records = [msgspec.json.decode(line) for line in lines]
    for number, record in enumerate(records):
        assert record["root"] == root_of([leaf_hash(line) for line in lines[:number]]).hex()
        assert bool(record.get("peaks")) == (number > 0 and number % 4 == 0)
    monkeypatch.setattr(checkpoint_tree, "_RECENT", sum(len(line) + 1 for line in lines[-6:]))
    tree = tree_over(path)
    assert tree is not None and tree.root == root_of([leaf_hash(line) for line in lines])
    assert verify_log(log_bench.directory, log_bench.signer.verifier).ok


def test_checkpoints_that_were_replaced_are_found(log_bench: Any) -> None:
    """A genuine checkpoint of the same number, of another history, in the place of one: those after it signed the other one."""
    log_bench.log(batches=4)
    path = log_bench.directory / "checkpoints-0.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    record = checkpoint_tree.read_checkpoint(lines[1])
    assert record is not None
    lines[1] = msgspec.json.encode(log_bench.signer.sign(msgspec.structs.replace(record, time=1.0))) + b"\n"
    path.write_bytes(b"".join(lines))
    report = verify_log(log_bench.directory, log_bench.signer.verifier)
    assert [(problem.line, problem.reason) for problem in report.problems][:1] == [
        (3, "the checkpoints before this one are not those that it signed")
    ]
    with pytest.raises(AuditUnproven, match="not those that it signed"):
        prove_consistency(log_bench.directory, log_bench.signer.verifier, "0", 1, 4)


@pytest.mark.parametrize(("first", "second"), [(0, 2), (2, 2), (3, 2), (1, 99)])
def test_what_cannot_be_shown_is_refused(log_bench: Any, first: int, second: int) -> None:
    log_bench.log(batches=3)
    with pytest.raises(AuditUnproven, match="has the checkpoints 1 to 4"):
        prove_consistency(log_bench.directory, log_bench.signer.verifier, "0", first, second)
    with pytest.raises(AuditUnproven, match="no checkpoints"):
        prove_consistency(log_bench.directory, log_bench.signer.verifier, "none", 1)
