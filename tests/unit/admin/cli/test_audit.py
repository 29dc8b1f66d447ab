"""`gatehouse audit verify` says what it did not verify, and takes what must be there writer by writer."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import Result
from typer.testing import CliRunner

from admin.audit_scope import scope_of
from admin.cli import audit
from admin.cli.client import Client
from admin.cli.session import Session
from gateway.app.main import app
from gateway.core.audit_questions import AuditScope


def run(tmp_path: Path, writer: dict[str, Any], *options: str) -> tuple[Result, list[AuditScope]]:
    asked: list[AuditScope] = []

    def verify(directory: Path, public_key: Path, scope: AuditScope, progress: Any) -> dict[str, Any]:
        progress(1, 2)
        asked.append(scope)
        found = {"writer": "0", "signed": 9, "checkpoints": 3, "skipped": None, "journal": None, **writer}
        return {"ok": True, "first_problem": None, "writers": [found]}

    arguments = ["verify", "--dir", str(tmp_path), "--public-key", str(tmp_path), *options, "--output", "table"]
    return CliRunner().invoke(
        audit.make(verify, lambda directory, asked, records: []), arguments, env={"XDG_CONFIG_HOME": str(tmp_path), "COLUMNS": "400"}
    ), asked


@pytest.mark.parametrize(("checkpoint", "proof"), [(7, "checkpoint 7 proves"), (None, "the first checkpoint after it proves")])
def test_what_was_not_verified_is_named(tmp_path: Path, checkpoint: int | None, proof: str) -> None:
    skipped = {"segment": 3, "line": 120, "hash": "ab" * 32, "checkpoint": checkpoint}
    done, asked = run(tmp_path, {"skipped": skipped}, "--from-segment", "4")
    assert (done.exit_code, asked) == (0, [AuditScope(4)]), done.output
    assert f"not verified: segments 1 to 3 (lines 1 to 120). They must end with the hash {'ab' * 32}, which {proof}" in done.stderr


def test_an_archived_writer_is_named_with_what_its_archive_must_hold(tmp_path: Path) -> None:
    options = ("--archived", "gw-3", "--from-segment", "gw-1=4", "--from-segment", "gw=2", "--archived", "gw-4")
    done, asked = run(tmp_path, {"archived": {"number": 9, "covers": 120, "head": "cd" * 32}}, *options)
    assert (done.exit_code, asked) == (0, [AuditScope(1, {"gw-1": 4, "gw": 2}, ("gw-3", "gw-4"))]), done.output
    assert f"archived as a whole. Its checkpoint 9 must cover line 120 with the hash {'cd' * 32}" in done.stderr


@pytest.mark.parametrize(("checkpoints", "said"), [(0, True), (3, False)])
def test_a_checkpoints_file_that_is_not_there_is_told_of(tmp_path: Path, checkpoints: int, said: bool) -> None:
    done, _ = run(tmp_path, {"checkpoints": checkpoints})
    assert done.exit_code == 0 and ("writer 0: no checkpoints file is here" in done.stderr) is said


@pytest.mark.parametrize("wrong", ["x", "0", "-1", "gw=", "=3", "gw=x", "1.5", "٣", "999999999"])
def test_a_segment_that_is_none_is_refused_with_what_would_be_right(tmp_path: Path, wrong: str) -> None:
    done, asked = run(tmp_path, {}, f"--from-segment={wrong}")
    assert done.exit_code == 2 and not asked and "a number from 1 on, or WRITER=NUMBER" in done.stderr
    with pytest.raises(ValueError, match="WRITER=NUMBER"):
        scope_of(wrong, "")


def test_nothing_said_means_everything() -> None:
    assert scope_of("", "") == AuditScope()


def test_following_starts_with_the_newest_and_shows_each_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = [range(30), range(2, 32), range(1032, 2032)]

    def gateway(request: httpx.Request) -> httpx.Response:
        items = [{"seq": seq, "hash": f"h{seq}", "writer": "w"} for seq in pages.pop(0)] if pages else None
        return httpx.Response(503, json={"detail": "the end"}) if items is None else httpx.Response(200, json={"items": items})

    monkeypatch.setattr(audit, "FOLLOW_SECONDS", 0.0)
    monkeypatch.setattr(Session, "client", lambda self: Client("http://x", "k", httpx.MockTransport(gateway)))
    result = CliRunner().invoke(app, ["audit", "tail", "-n", "3", "--follow", "--url", "http://x", "--key", "k"])
    assert re.findall(r"w:(\d+) ", result.stdout)[:6] == ["27", "28", "29", "30", "31", "1032"]
    assert (result.exit_code, result.stderr.count("more than 1000 records"), result.stderr.endswith("error: the end\n")) == (1, 1, True)
