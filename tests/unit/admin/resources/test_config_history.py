"""Going back, and what others write meanwhile."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from admin.resources import config_history, sync
from admin.resources.bindings import BINDINGS
from gateway.core.errors import VersionMismatch

ROLE = {"permissions": ["admin:audit:read"]}


class Store:
    """Its newest entry is `heads[0]`, later `heads[1]`, ..."""

    def __init__(self, *heads: int) -> None:
        self.heads = list(heads)

    async def configurations(self, *, limit: int = 1, cursor: str | None = None) -> Any:
        head = self.heads.pop(0) if len(self.heads) > 1 else self.heads[0]
        return SimpleNamespace(items=[SimpleNamespace(number=head)], cursor=None)


async def rolled_back(monkeypatch: pytest.MonkeyPatch, *heads: int) -> tuple[int, list[str]]:
    """Goes back from entry 11, by which the role `r` was changed, once it is deleted. What nobody may change until it is written."""
    written: list[Any] = []

    async def after(call: Any, number: int, head: int) -> Any:
        return {("roles", "r"): ROLE, ("users", "ann@acme"): None}

    async def held(call: Any, kinds: Any) -> Any:
        return sync.Held({kind: {} for kind in kinds}, {}, 5)

    async def examine(call: Any, then: Any, item: Any) -> None:
        """It may be so."""

    async def write(call: Any, items: Any, restores: int, since: Any = None) -> None:
        written.append(since)

    monkeypatch.setattr(config_history, "_after", after)
    for name, made in (("held", held), ("examine", examine), ("write", write), ("planned", lambda found, items: iter(()))):
        monkeypatch.setattr(sync, name, made)
    monkeypatch.setattr(sync, "filed", lambda call, kind: frozenset())
    call: Any = SimpleNamespace(store=Store(*heads), require=lambda permission: None, diff=[], dry_run=False)
    row: Any = SimpleNamespace(number=10)
    answer = await config_history._of_store(call, row, 11)
    assert answer.value["changed"] == ["roles/r"]
    (since,) = written
    return since  # type: ignore[no-any-return]


async def test_what_is_deleted_while_it_is_read_is_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(VersionMismatch, match="The newest entry is 12 by now") as refused:
        await rolled_back(monkeypatch, 12)
    assert refused.value.current == 12


async def test_nothing_of_its_kinds_may_change_until_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await rolled_back(monkeypatch, 11) == (5, ["roles"])


def test_a_binding_of_the_former_form_is_brought_back_in_the_form_of_today(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync, "filed", lambda call, kind: frozenset())
    call: Any = SimpleNamespace()
    item = config_history._item(call, BINDINGS, "b", {"role": "r", "principal": "ci", "tenant": "acme"}, None)
    assert item is not None and item.kept is not None, "it was there then"
    assert (item.action, item.kept["subjects"], item.settings.subjects) == ("created", ["principal/ci"], ("principal/ci",))
    assert "principal" not in item.kept
