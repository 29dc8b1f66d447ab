"""The configuration in force, as administrators see and replace it."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from admin import values
from admin.resources import config

BEFORE = {"models": [{"name": "a", "pool": ["x"]}], "limits": []}
AFTER = {"models": [{"name": "a", "pool": ["y"]}], "limits": []}


class Applier:
    """Replaces BEFORE by AFTER. described: the threads in which somebody has looked."""

    version = 1

    def __init__(self) -> None:
        self.described: list[threading.Thread] = []
        self._now = BEFORE

    def current(self) -> dict[str, Any]:
        self.described.append(threading.current_thread())
        return self._now

    async def apply(self, text: str, *, dry_run: bool, **more: Any) -> dict[str, Any]:
        if not dry_run:
            self._now, self.version = AFTER, 2
        return {"version": self.version, "changed": ["models.a"], "applied": not dry_run, **({"would": AFTER} if dry_run else {})}

    async def reload(self, actor: str) -> dict[str, Any]:
        return await self.apply("", dry_run=False)


@pytest.mark.parametrize("what", ["show", "apply", "dry run", "reload"])
async def test_a_large_configuration_is_described_and_compared_in_threads(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[threading.Thread] = []
    diff = values.diff

    def noted(*both: Any) -> list[dict[str, Any]]:
        compared.append(threading.current_thread())
        return diff(*both)

    monkeypatch.setattr(values, "diff", noted)
    applier = Applier()
    call: Any = SimpleNamespace(
        ports=SimpleNamespace(config=applier), raw=b"", actor="ann", dry_run=what == "dry run", expected=lambda: None, diff=None
    )
    answer = await {"show": config.show, "reload": config.reload}.get(what, config.apply)(call)
    assert threading.main_thread() not in [*applier.described, *compared] and applier.described
    if what == "show":
        assert answer.value.config == BEFORE
    elif what == "dry run":
        assert answer.value["diff"] == [{"path": "models.a.pool", "from": ["x"], "to": ["y"]}] and call.diff is None
    else:
        assert [one["path"] for one in call.diff] == ["models"] and answer.version == "2"
