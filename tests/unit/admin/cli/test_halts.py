"""`halt` and `unhalt`: what an operator reads about a halt that is not in force everywhere, or not of what was meant."""

from __future__ import annotations

import httpx
import pytest
from typer.testing import CliRunner

from admin.cli.client import Client
from admin.cli.session import Session
from gateway.app.main import app

MADE = {"target": "key/ci", "reason": "a leak", "actor": "acme/root", "since": None, "source": "store"}


def halted(
    monkeypatch: pytest.MonkeyPatch,
    *,
    in_force: str = "true",
    source: str = "store",
    key: int | Exception = 200,
    words: tuple[str, ...] = (),
) -> str:
    """What `halt` prints. key: how the gateway answers when it is asked for the key."""

    def gateway(request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            return httpx.Response(201, json={"items": [{**MADE, "source": source}]}, headers={"x-gatehouse-in-force": in_force})
        assert request.url.path == "/admin/v1/keys/ci"
        if isinstance(key, Exception):
            raise key
        return httpx.Response(key, json={"detail": "no"})

    monkeypatch.setattr(Session, "client", lambda self: Client("http://x", "k", httpx.MockTransport(gateway)))
    result = CliRunner().invoke(app, ["halt", "key/ci", "--why", "a leak", "--url", "http://x", "--key", "k", *words])
    assert result.exit_code == 0, result.output
    return " ".join((result.stdout + result.stderr).split())


def test_a_halt_that_is_in_force_everywhere_needs_no_remark(monkeypatch: pytest.MonkeyPatch) -> None:
    assert halted(monkeypatch).endswith("key/ci store - acme/root a leak")


def test_workers_that_lag_and_replicas_that_were_not_told_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "was not in force in every worker within 2 s" in halted(monkeypatch, in_force="false", words=("--wait", "2"))
    assert "on this replica alone" in halted(monkeypatch, source="file")


def test_a_key_that_nobody_knows_may_be_misspelt(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "No key is known here by this name." in halted(monkeypatch, key=404)


@pytest.mark.parametrize("answer", [403, 503, httpx.ReadTimeout("late")])
def test_the_halt_is_made_whatever_the_question_after_the_key_ends_in(monkeypatch: pytest.MonkeyPatch, answer: int | Exception) -> None:
    assert "known" not in halted(monkeypatch, key=answer)
