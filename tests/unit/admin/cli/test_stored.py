"""`--wait`: what counts as in force, and what as still under way."""

from __future__ import annotations

import time
from typing import Any

import httpx
import pytest

from admin.cli import stored
from admin.cli.client import Client
from admin.cli.errors import CommandError
from admin.cli.output import Format, Output
from admin.cli.profile import Profile
from admin.cli.session import Session

STARTING = {"in_force": True, "failed": False, "state": "starting", "pid": None}
READY = {"in_force": True, "failed": False, "state": "ready", "pid": 7}


def waited(monkeypatch: pytest.MonkeyPatch, *answers: dict[str, Any]) -> dict[str, Any]:
    """What waiting ends with when the gateway answers this, one after the other; all of it must be asked for."""
    left = list(answers)
    monkeypatch.setattr(stored, "POLL_SECONDS", 0.0)
    with Client("http://x", "k", httpx.MockTransport(lambda request: httpx.Response(200, json=left.pop(0)))) as client:
        found = stored._waited(Session(Profile("http://x", "k"), Output(Format.json)), client, "engines", "s", time.monotonic() + 60)
    assert not left
    return found


def test_an_engine_is_waited_for_until_it_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    loading = {**STARTING, "state": "loading", "pid": 7}
    assert waited(monkeypatch, {**STARTING, "in_force": False}, STARTING, loading, READY) == READY


@pytest.mark.parametrize("state", ["failed", "draining", "stopped"])
def test_a_process_that_could_not_start_is_not_in_force_while_that_is_not_reported_yet(monkeypatch: pytest.MonkeyPatch, state: str) -> None:
    reported = {"in_force": False, "failed": True, "state": "stopped", "reason": "sha256 is 1, expected 0"}
    with pytest.raises(CommandError, match="engines/s is not in force: sha256 is 1"):
        waited(monkeypatch, STARTING, {**STARTING, "state": state}, reported)


def test_one_that_was_starting_and_has_ended_is_not_in_force_while_that_is_not_reported_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = {"in_force": True, "failed": False, "state": "stopped", "reason": None}
    with pytest.raises(CommandError, match="engines/s is not in force: sha256 is 1"):
        waited(monkeypatch, STARTING, ended, ended, {**ended, "in_force": False, "failed": True, "reason": "sha256 is 1"})


def test_one_that_was_starting_and_has_been_unloaded_since_is_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = {"in_force": True, "failed": False, "state": "stopped", "reason": None}
    assert waited(monkeypatch, STARTING, *[ended] * stored.UNSURE) == ended


@pytest.mark.parametrize("found", [{"state": "stopped", "reason": "not loaded yet"}, {"state": "unhealthy"}, {"state": "draining"}, {}])
def test_what_runs_no_process_is_in_force_as_it_is(monkeypatch: pytest.MonkeyPatch, found: dict[str, Any]) -> None:
    shown = {"in_force": True, "failed": False, **found}
    assert waited(monkeypatch, shown) == shown
