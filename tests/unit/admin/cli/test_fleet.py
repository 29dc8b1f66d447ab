"""`models load`, `unload`, `reload`: what is sent, and how far it is meanwhile."""

from __future__ import annotations

import io
import threading
from typing import Any

import httpx
import pytest
from rich.console import Console

from admin.cli import fleet
from admin.cli.client import ApiError, Client
from admin.cli.output import Format, Output
from admin.cli.profile import Profile
from admin.cli.session import Session

ROLLOUT = {
    "phase": "shifting", "version": "2", "from_version": "1", "share": 0.1, "step": 1, "steps": 2, "requests": 7, "failures": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("engine", "text"),
    [
        ({"engine": "a", "state": "ready"}, "a(ready)"),
        ({"engine": "a", "state": "ready", "rollout": None}, "a(ready)"),
        ({"engine": "a", "state": "ready", "rollout": {**ROLLOUT, "phase": "loading"}}, "a(ready, 1 -> 2 loading)"),
        ({"engine": "a", "state": "ready", "rollout": ROLLOUT}, "a(ready, 1 -> 2 step 1/2 10%, 7 requests, 1 failed)"),
    ],
)
def test_an_engine_as_people_read_it(engine: dict[str, Any], text: str) -> None:
    assert fleet.member(engine) == text


class Gateway:
    """Answers the POST when the pool has been looked at twice."""

    def __init__(self, status: int = 200) -> None:
        self.status, self.asked = status, list[str]()
        self._seen = threading.Semaphore(0)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            self._seen.release()
            return httpx.Response(200, json={"pool": [{"engine": "a\x1b[2J", "state": "ready", "rollout": ROLLOUT}]})
        self.asked.append(str(request.url).removeprefix("http://x/admin/v1"))
        for _ in range(2):
            assert self._seen.acquire(timeout=60)
        if self.status != 200:
            return httpx.Response(self.status, json={"detail": "rolled back: it failed"})
        return httpx.Response(200, json={"engines": [{"engine": "a", "state": "ready", "version": "2"}]})


def session(monkeypatch: pytest.MonkeyPatch, gateway: Gateway) -> tuple[Session, io.StringIO]:
    """A session at a terminal, and what the terminal shows."""
    made, shown = Session(Profile("http://x", "k"), Output(Format.json)), io.StringIO()
    made.out.remarks = Console(file=shown, force_terminal=True, width=200)
    monkeypatch.setattr(Session, "client", lambda self: Client("http://x", "k", httpx.MockTransport(gateway)))
    monkeypatch.setattr(fleet, "WAIT_SECONDS", 0.01)
    return made, shown


def test_a_reload_shows_how_far_it_is(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    gateway = Gateway()
    made, shown = session(monkeypatch, gateway)
    fleet._act(made, "m/x", "reload", False, stop_first=True, force=False)
    assert gateway.asked == ["/models/m%2Fx/reload?stop_first=true"]
    assert "1 -> 2 step 1/2 10%, 7 requests, 1 failed" in shown.getvalue() and "\x1b[2J" not in shown.getvalue()
    assert '"version": "2"' in capsys.readouterr().out


def test_what_went_wrong_is_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = Gateway(502)
    made, _ = session(monkeypatch, gateway)
    with pytest.raises(ApiError, match="rolled back: it failed"):
        fleet._act(made, "m", "unload", False, force=True)
    assert gateway.asked == ["/models/m/unload?force=true"]
