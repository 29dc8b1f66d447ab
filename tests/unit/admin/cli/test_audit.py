"""`gatehouse audit verify` says what it did not verify."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from admin.cli import audit


@pytest.mark.parametrize(("checkpoint", "proof"), [(7, "checkpoint 7 proves"), (None, "the first checkpoint after it proves")])
def test_what_was_not_verified_is_named(tmp_path: Path, checkpoint: int | None, proof: str) -> None:
    asked: list[int] = []

    def verify(directory: Path, public_key: Path, first_segment: int) -> dict[str, Any]:
        asked.append(first_segment)
        skipped = {"segment": 3, "line": 120, "hash": "ab" * 32, "checkpoint": checkpoint}
        return {"ok": True, "first_problem": None, "writers": [{"writer": "0", "skipped": skipped, "journal": None}]}

    arguments = ["verify", "--dir", str(tmp_path), "--public-key", str(tmp_path), "--from-segment", "4", "--output", "table"]
    done = CliRunner().invoke(audit.make(verify), arguments, env={"XDG_CONFIG_HOME": str(tmp_path), "COLUMNS": "400"})
    assert (done.exit_code, asked) == (0, [4]), done.output
    assert f"not verified: segments 1 to 3 (lines 1 to 120). They must end with the hash {'ab' * 32}, which {proof}" in done.stderr
