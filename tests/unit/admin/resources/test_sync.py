"""What a dump has of the store: settings in the form of today, and only what somebody has decided."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from admin.permissions import Access
from admin.resource import Collection
from admin.resources.bindings import BINDINGS
from admin.resources.planned_store import PlannedStore
from admin.resources.sync import COLLECTIONS, KINDS, Item, _spare_the_caller, counts, decided, examine, write
from admin.resources.tenants import TENANTS
from admin.resources.users import USERS
from gateway.config.additions import KINDS as CONFIGURED
from gateway.core.errors import AlreadyExists, GatehouseError, NotFound, VersionMismatch
from gateway.core.storage import Resource
from gateway.core.types import Principal
from gateway.store import tables

ROOT = Path(__file__).resolve().parents[4]


@pytest.mark.parametrize(
    ("collection", "body", "wanted"),
    [
        (TENANTS, {"models": ["m"]}, {"name": "n", "models": ["m"], "networks": [], "display_name": ""}),
        (BINDINGS, {"role": "r", "principal": "ci", "tenant": "acme"}, {"role": "r", "subjects": ["principal/ci"], "effect": "allow"}),
        (USERS, {"source": "oidc"}, {"name": "n@t", "groups": [], "roles": []}),
        (TENANTS, {"models": 5, "from": "a later version"}, {"name": "n", "models": 5}),
    ],
)
def test_a_body_of_another_version_is_shown_in_the_form_of_today(collection: Collection[Any], body: Any, wanted: dict[str, Any]) -> None:
    whole = decided(collection, str(wanted.get("name", "n")), body)
    found = {name: list(value) if isinstance(value, tuple) else value for name, value in whole.items()}
    assert {name: found[name] for name in wanted} == wanted and "source" not in found
    assert decided(collection, whole["name"], found) == whole


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"source": "oidc"}, False),
        ({"source": "oidc", "groups": [], "description": ""}, False),
        ({"source": "oidc", "groups": ["staff"]}, True),
        ({"source": "local"}, True),
        ({}, True),
    ],
)
def test_a_user_whom_only_a_login_has_made_is_not_decided(body: dict[str, Any], expected: bool) -> None:
    assert counts(USERS, Resource("users", "ann@acme", "acme", 1, body, 0.0, 0.0, "")) is expected


def test_every_kind_that_is_configured_in_the_store_is_in_a_dump() -> None:
    assert set(KINDS) == {*CONFIGURED, "tenants", "groups", "users", "keys"}
    assert [one.kind for one in COLLECTIONS] == list(KINDS[:-1])


LEFT_OUT = {
    "former_secrets": "former secrets of keys",
    "job_schedules": "job schedules",
    "machines": "joined machines",
    "suspensions": "suspensions",
    "halts": "halts",
    "audit_holds": "legal holds",
    "captures": "debug captures",
    "reveals": "reveals",
    "withdrawals": "withdrawn trials",
    "cache_purges": "purges of caches",
    "revocations": "revocations of tokens",
    "token_keys": "signing keys",
    "approvals": "approvals",
    "logins": "logins",
    **dict.fromkeys(("usage", "usage_daily", "usage_positions", "usage_sessions", "usage_engines"), "usage"),
    "limit_windows": "budgets",
    "deliveries": "webhook deliveries",
    **dict.fromkeys(("files", "batches", "batch_lines"), "clients' files and batches"),
    "jobs": "jobs",
    "kept_answers": "kept responses",
    **dict.fromkeys(("shared_models", "directory_models", "model_copies", "model_uses"), "registry of model files"),
    "configurations": "history of configurations",
    **dict.fromkeys(("replicas", "leases"), "replicas and leases"),
    "idempotency": "idempotency keys",
    **dict.fromkeys(("audit_keys", "audit-keys"), "data keys of the audit log"),
}
"""What is in the store and not in a dump, by its table or kind: the words with which docs/cli.md says so."""


def test_what_is_in_the_store_is_in_a_dump_or_said_to_be_left_out() -> None:
    page = (ROOT / "docs/cli.md").read_text().partition("- **Not in a dump**")[2].partition("\n## ")[0]
    said = {re.sub(r"^(and |the )+", "", part.strip()) for part in re.split(r"[,;:().]", " ".join(page.split()))}
    assert [words for words in LEFT_OUT.values() if words not in said] == []
    sources = [path.read_text() for folder in ("gateway", "admin") for path in sorted((ROOT / folder).rglob("*.py"))]
    kinds = {kind for text in sources for kind in re.findall(r'^KIND: Final(?:\[str\])? = "([^"]+)"', text, re.MULTILINE)}
    assert kinds > {"halts", "machines", "configurations"}
    inside = {"resources", "keys", "changes", "counters", "facts", "gone"}  # what dumps are made of, and how the store keeps its own order
    assert (kinds | set(tables.metadata.tables)) - set(KINDS) - inside == set(LEFT_OUT)


@pytest.mark.parametrize("error", [NotFound("There is no tenant 'x'."), AlreadyExists("The tenant 'x' already exists.")])
async def test_what_was_otherwise_when_it_was_read_is_said_to_be_somebody_elses_change(error: GatehouseError) -> None:
    async def write_all(*given: Any, **more: Any) -> None:
        raise error

    call: Any = SimpleNamespace(store=SimpleNamespace(write_all=write_all), actor="ann", dry_run=False)
    before = Resource("tenants", "x", "", 3, {}, 0.0, 0.0, "")
    gone: Any = SimpleNamespace(kind="tenants", name="x", before=before, key=None, kept=None, collection=None)
    with pytest.raises(VersionMismatch, match=re.escape(error.message)):
        await write(call, [gone])


@pytest.mark.parametrize("after", [None, {"roles": ["admin"]}, {"groups": ["ops"]}], ids=["deleted", "out of a group", "without a role"])
async def test_nobody_deletes_themselves_or_takes_their_own_groups_and_roles(after: dict[str, Any] | None) -> None:
    """The file may have been written where nobody knows who syncs it."""
    before = Resource("users", "ann@acme", "acme", 3, {"groups": ["ops"], "roles": ["admin"]}, 0.0, 0.0, "")
    action = "deleted" if after is None else "replaced"
    item = Item("users", before.name, action, [], before, collection=USERS, kept=after, settings=None)

    def call(principal: Principal) -> Any:
        return SimpleNamespace(access=Access(principal, ()), require=lambda *permission: None)

    for itself in (Principal("ann", "acme", "oidc", user="ann"), Principal("key-1", "acme", "api_key", user="ann", personal=True)):
        with pytest.raises(GatehouseError, match="This is yourself") as refused:
            await examine(call(itself), PlannedStore({}), item)
        assert (refused.value.status, refused.value.code) == (409, "own_rights")
    for other in (
        Principal("ben", "acme", "oidc", user="ben"),
        Principal("ann", "initech", "oidc", user="ann"),
        Principal("ops", "acme", "api_key", user="ann"),
    ):
        _spare_the_caller(call(other), item, before)
    item.kept = {"groups": ["ops", "more"], "roles": ["admin"], "description": "more than before"}
    _spare_the_caller(call(Principal("ann", "acme", "oidc", user="ann")), item, before)
