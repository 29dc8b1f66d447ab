"""`gatehouse halt`, `gatehouse unhalt` and `gatehouse halts`: the kill switch."""

from __future__ import annotations

from typing import Annotated

import typer

from admin.cli.client import LONG, name
from admin.cli.session import DryRun, Session, connected

COLUMNS = ("target", "source", "since", "actor", "reason")
Target = Annotated[
    str, typer.Argument(metavar="TARGET", help="key/ID, agent/ID, user/NAME, user/NAME@TENANT, tenant/ID, model/NAME or all.")
]
Wait = Annotated[float, typer.Option("--wait", help="Most seconds to wait until it is in force in every worker.", min=0, max=60)]


@connected
def halt(
    session: Session,
    target: Target,
    why: Annotated[str, typer.Option("--why", help="The reason, for other operators and the audit log; callers never see it.")],
    wait: Wait = 5.0,
    dry_run: DryRun = False,
) -> None:
    """Stops a target on every replica at once, cancelling its requests under way, until `unhalt`."""
    with session.client() as client:
        params = {"dry_run": "true"} if dry_run else {"wait": f"{wait:g}"}
        answer = client.json("POST", "/halts", params=params, json={"target": target, "reason": why}, timeout=LONG)
    _show(session, answer)


@connected
def unhalt(session: Session, target: Target, dry_run: DryRun = False) -> None:
    """Lifts a halt."""
    with session.client() as client:
        answer = client.json("DELETE", f"/halts/{name(target)}", params={"dry_run": "true"} if dry_run else {})
    _show(session, answer)


@connected
def halts(session: Session) -> None:
    """Lists the halts in force."""
    with session.client() as client:
        session.out.rows(client.get("/halts")["items"], COLUMNS)


def _show(session: Session, answer: dict[str, object]) -> None:
    items = answer.get("items")
    if session.out.for_people and isinstance(items, list):
        session.out.rows(items, COLUMNS)
    else:
        session.out.one(answer)
