"""Further rows of the store for loadtests.store.large: `policies` (guardrails, prices, models on one engine), `people` (users, groups,
logins) and `work` (clients' files, batches, jobs, deliveries of webhooks, all of them over)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, cast

import httpx
import sqlalchemy as sa

from gateway.core.batches import BatchRecord, Creator, FileRecord
from gateway.core.deliveries import Delivery
from gateway.core.jobs import JobRecord, Warm
from gateway.store import batches, jobs, tables
from loadtests.store.others import FIXED

Rows = dict[sa.Table, list[dict[str, Any]]]
Plan = list[tuple[str, Callable[[], httpx.Response], bool]]
"""(what, how, whether it changes the configuration)."""
LISTS: Final = {
    "policies": ("guardrails", "prices", "models", "prices:models", "status"),
    "people": ("users", "groups"),
    "work": ("client-files", "batches", "jobs", "webhooks:deliveries"),
}
"""Of the admin API."""


def policies(name: str, now: float) -> Rows:
    guardrail = {"type": "denylist", "tenants": [f"t{name}"], "settings": {"phrases": [f"never {name}"]}}
    price = {"model": f"m{name}", "prompt": 1.0, "completion": 2.0}
    model = {"pool": ["own"], "aliases": [f"alias-{name}"]}
    kinds = (("guardrails", f"g{name}", guardrail), ("prices", f"p{name}", price), ("models", f"m{name}", model))
    return {tables.resources: [{**FIXED, "kind": kind, "name": one, "body": body} for kind, one, body in kinds]}


def people(name: str, now: float) -> Rows:
    tenant, user, group = f"t{int(name) % 1000:06d}", f"u{name}@t{int(name) % 1000:06d}", f"g{name}@t{int(name) % 1000:06d}"
    bodies = [("users", user, {"name": user, "groups": [f"g{name}"]}), ("groups", group, {"name": group, "models": ["m"]})]
    bodies += [("tenants", tenant, {"description": "one of many"})] if int(name) < 1000 else []
    found = [{**FIXED, "kind": kind, "name": one, "body": body, "tenant": tenant} for kind, one, body in bodies]
    login = {"id": user, "method": "oidc", "issuer": "i", "groups": [f"g{name}"], "roles": [], "first": now, "last": now}
    return {tables.resources: found, tables.logins: [login]}


def work(name: str, now: float) -> Rows:
    tenant = f"t{int(name) % 1000:06d}"
    creator = Creator(id="k", tenant=tenant, kind="api_key")
    file = FileRecord(
        id=f"file-{name}", tenant=tenant, owner="k", name="n", purpose="batch", size=1, key="", created=now, expires=now + 9e6
    )
    parts = {"endpoint": "/v1/chat/completions", "input": file.id, "created": now, "expires": now + 9e6, "window": "24h"}
    batch = BatchRecord(id=f"batch_{name}", creator=creator, state="completed", **cast(Any, parts))
    job = JobRecord(id=f"job_{name}", tenant=tenant, kind="warm", state="done", task=Warm(file=file.id), creator=creator, created=now)
    told = Delivery(id=f"d{name}", webhook="w", event="e", body="{}", created=now, due=now, keep=now + 9e6, status="delivered", code=200)
    columns = [column.name for column in tables.files.columns]
    return {
        tables.files: [{column: getattr(file, column) for column in columns}],
        tables.batches: [{**batches._values(batch), "tenant": tenant, "leased": 0.0}],
        tables.jobs: [{**jobs._values(job), "leased": 0.0}],
        tables.deliveries: [{field: getattr(told, field) for field in Delivery.__struct_fields__}],
    }


KINDS: Final = {"policies": policies, "people": people, "work": work}


def written(of: str, count: int) -> Callable[[sa.Connection], None]:
    now = time.time()

    def insert(connection: sa.Connection) -> None:
        found: Rows = {}
        for number in range(count):
            for table, rows in KINDS[of](f"{number:06d}", now).items():
                found.setdefault(table, []).extend(rows)
        for table, rows in found.items():
            for start in range(0, len(rows), 10_000):
                connection.execute(sa.insert(table), rows[start : start + 10_000])

    return insert


def plan(of: str, admin: httpx.Client, count: int, turn: int) -> Plan:
    name = f"{count // 2 + turn:06d}"
    tenant = f"t{int(name) % 1000:06d}"
    changes: dict[str, Plan] = {
        "policies": [
            ("guardrail changed", lambda: admin.patch(f"/guardrails/g{name}", json={"settings": {"phrases": [f"now {turn}"]}}), True),
            ("price changed", lambda: admin.patch(f"/prices/p{name}", json={"prompt": 3.0 + turn}), True),
            ("model changed", lambda: admin.patch(f"/models/m{name}", json={"aliases": [f"other-{turn}"]}), True),
        ],
        "people": [
            ("user changed", lambda: admin.patch(f"/users/u{name}@{tenant}", json={"description": str(turn)}), False),
            ("user suspended", lambda: admin.post(f"/users/u{name}@{tenant}/suspend", json={}), False),
            ("group changed", lambda: admin.patch(f"/groups/g{name}@{tenant}", json={"description": str(turn)}), False),
            ("group deleted", lambda: admin.delete(f"/groups/g{int(name) + 7:06d}@t{(int(name) + 7) % 1000:06d}"), False),
        ],
        "work": [
            ("file deleted", lambda: admin.delete(f"/client-files/file-{name}"), False),
            ("tenant's batches", lambda: admin.get(f"/batches?tenant={tenant}"), False),
        ],
    }
    return [*changes[of], *((f"list of {one}", lambda one=one: admin.get(f"/{one}"), False) for one in LISTS[of])]
