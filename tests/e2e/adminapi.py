"""A gateway with one key for each role, and clients for its admin API."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx

from tests.e2e.harness import Gatehouse, configuration, external
from tests.plain import PLAIN

ROLES = ("admin", "operator", "tenant-admin", "auditor", "viewer", "none")
KEYS = {role: f"{role}-key-0123456789abcdef0123456789abcdef" for role in ROLES}


def config(state_dir: Path, port: int, **parts: Any) -> dict[str, Any]:
    """Keys of the tenant acme with one role each (`none` has none), over one engine at `port`."""
    engines, models = [external("fake", port, slots=64)], [{"name": "m1", "pool": ["fake"]}]
    made = configuration(state_dir, **{"engines": engines, "models": models, "store": {"upstreams": ["127.0.0.0/8"]}, **parts})
    for role, key in KEYS.items():
        entry: dict[str, Any] = {"id": f"a-{role}", "key": key, "tenant": "acme", "models": ["*"]}
        made["identity"]["api_keys"]["static"].append(entry if role == "none" else {**entry, "roles": [role]})
    return made


def admin(gatehouse: Gatehouse, role: str = "admin", key: str | None = None) -> httpx.Client:
    headers = {"authorization": f"Bearer {key or KEYS[role]}"}
    return httpx.Client(base_url=f"{gatehouse.admin_url}/admin/v1", headers=headers, verify=PLAIN, trust_env=False, timeout=90)


def problem(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """The problem details of a response, checked for their shape (RFC 9457)."""
    assert response.headers["content-type"] == "application/problem+json", response.text
    found: dict[str, Any] = response.json()
    assert (response.status_code, found["status"], found["code"]) == (status, status, code), found
    assert found["type"] == f"urn:gatehouse:error:{code}" and found["title"] and found["detail"]
    assert found["instance"] == response.headers["x-request-id"]
    return found
