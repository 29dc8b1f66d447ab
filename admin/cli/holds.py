"""`gatehouse audit hold`, `audit release` and `audit holds`: legal holds."""

from __future__ import annotations

from typing import Annotated

import typer

from admin.cli import completion
from admin.cli.client import LONG, name
from admin.cli.session import DryRun, Session, connected

COLUMNS = ("tenant", "since", "actor", "everywhere", "why")
RELEASED = ("tenant", "since", "released", "actor", "why")
Held = Annotated[str, typer.Argument(metavar="TENANT", help="The tenant.", autocompletion=completion.tenants)]


@connected
def hold(
    session: Session,
    tenant: Held,
    why: Annotated[str, typer.Option("--why", help="Who ordered it, and for what; recorded.")],
    dry_run: DryRun = False,
) -> None:
    """Keeps all segments of the audit log that have records of a tenant, until `release`."""
    with session.client() as client:
        params = {"dry_run": "true"} if dry_run else {}
        _show(session, client.json("POST", "/audit/holds", params=params, json={"tenant": tenant, "why": why}, timeout=LONG))


@connected
def release(
    session: Session,
    tenant: Held,
    why: Annotated[str, typer.Option("--why", help="Who allowed it; recorded.")],
    dry_run: DryRun = False,
) -> None:
    """Lifts a legal hold."""
    with session.client() as client:
        params = {"why": why, **({"dry_run": "true"} if dry_run else {})}
        _show(session, client.json("DELETE", f"/audit/holds/{name(tenant)}", params=params, timeout=LONG), RELEASED)


@connected
def holds(session: Session) -> None:
    """Lists the tenants under a legal hold."""
    with session.client() as client:
        session.out.rows(client.items("/audit/holds", limit=1000), COLUMNS)


def _show(session: Session, answer: dict[str, object], columns: tuple[str, ...] = COLUMNS) -> None:
    items = answer.get("items")
    if session.out.for_people and isinstance(items, list):
        session.out.rows(items, columns)
    else:
        session.out.one(answer)
