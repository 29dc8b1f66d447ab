"""How `gatehouse upgrade` waits: what the gateway says of the upgrade decides, and what never ends is not waited for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from admin.cli import upgrade
from admin.cli.client import ApiError
from admin.cli.errors import CommandError


class Said:
    """A session with a gateway that answers so, one after the other."""

    def __init__(self, *answers: dict[str, Any] | CommandError) -> None:
        self.answers = list(answers)

    @contextmanager
    def client(self) -> Iterator[Said]:
        yield self

    def get(self, path: str) -> dict[str, Any]:
        assert path == "/upgrade"
        answer = self.answers.pop(0)
        if isinstance(answer, CommandError):
            raise answer
        return answer


def state(name: str, upgrades: int, **more: str) -> dict[str, Any]:
    return {"state": name, "upgrades": upgrades, **more}


def finished(*answers: dict[str, Any] | CommandError, seconds: float = 60.0) -> Any:
    return upgrade._finished(Said(*answers), 0, seconds)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upgrade, "LOOK_SECONDS", 0.0)


def test_it_waits_until_all_workers_are_new() -> None:
    done = state("idle", 1)
    assert finished(state("handing over", 0), CommandError("refused"), state("renewing", 1), done) is done


def test_a_gateway_that_was_started_again_is_not_waited_for() -> None:
    with pytest.raises(CommandError, match="the gateway was started again"):
        finished(state("handing over", 0), CommandError("refused"), state("idle", 0))


def test_workers_that_do_not_start_are_not_waited_for() -> None:
    with pytest.raises(CommandError, match="the old workers go on, because the new program's do not start: exit code 3"):
        finished(state("renewing", 1), state("renewing", 1, stuck="exit code 3"))


def test_what_takes_too_long_says_what_was_seen_last() -> None:
    with pytest.raises(CommandError, match="the new program does not answer: refused"):
        finished(CommandError("refused"), seconds=-1.0)
    with pytest.raises(CommandError, match="were not replaced within"):
        finished(state("renewing", 1), seconds=-1.0)
    with pytest.raises(ApiError, match="no right"):
        finished(ApiError(403, "no right"))
