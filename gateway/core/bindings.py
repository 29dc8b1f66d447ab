"""Bindings as the store keeps them, and as it kept them before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

ANY_TENANT: Final = "*"


def current(body: Mapping[str, Any]) -> dict[str, Any]:
    """The body of a binding in today's form. The former one had a `principal`, the id of one credential of `tenant`, instead of `subjects`.

    What is in neither form is returned as it is.
    """
    if "principal" not in body or "subjects" in body:
        return dict(body)
    kept = {name: value for name, value in body.items() if name != "principal"}
    return {**kept, "subjects": [f"principal/{body['principal']}"]}


def tenant_of(body: Mapping[str, Any]) -> str:
    """The tenant that a binding belongs to: the one to whose callers it is confined, else "" (the installation)."""
    tenant = str(body.get("tenant", ANY_TENANT))
    return "" if "*" in tenant else tenant
