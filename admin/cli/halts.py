"""`gatehouse halt`, `gatehouse unhalt` and `gatehouse halts`: the kill switch."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from admin.cli.client import LONG, ApiError, Client, name
from admin.cli.errors import CommandError
from admin.cli.session import DryRun, Session, connected

COLUMNS = ("target", "source", "since", "actor", "reason")
IN_FORCE: Final = "x-gatehouse-in-force"
LISTED: Final = {"key": "keys", "model": "models"}
"""Kinds of targets whose names can be checked, with their paths: users, agents and tenants may be known from tokens only."""
Target = Annotated[
    str, typer.Argument(metavar="TARGET", help="key/ID, agent/ID, user/NAME, user/NAME@TENANT, tenant/ID, model/NAME or all.")
]
Wait = Annotated[float, typer.Option("--wait", help="Maximum seconds to wait until it is in force in every worker.", min=0, max=60)]


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
        response = client.request("POST", "/halts", params=params, json={"target": target, "reason": why}, timeout=LONG)
        unknown = _unknown(client, target)
    answer = response.json()
    _show(session, answer)
    if unknown:
        session.out.remark(f"No {unknown} is known here by this name. Its halt counts all the same; if it is misspelt, lift it.")
    if not dry_run:
        if response.headers.get(IN_FORCE) == "false":
            session.out.remark(f"It was not in force in every worker within {wait:g} s: see `gatehouse workers list`.")
        if any(item["source"] == "file" for item in answer["items"]):
            session.out.remark("The store does not answer, so it is in force on this replica alone: halt it on each of the others, too.")


@connected
def unhalt(session: Session, target: Target, dry_run: DryRun = False) -> None:
    """Lifts a halt."""
    with session.client() as client:
        answer = client.json("DELETE", f"/halts/{name(target)}", params={"dry_run": "true"} if dry_run else {})
    _show(session, answer)
    if not dry_run:
        session.out.remark("Lifted.")


@connected
def halts(session: Session) -> None:
    """Lists the halts in force."""
    with session.client() as client:
        session.out.rows(client.items("/halts", limit=1000), COLUMNS)


def _unknown(client: Client, target: str) -> str:
    """The kind of a target that the gateway does not know; "" if it does, or if this caller may not ask."""
    kind, _, found = target.partition("/")
    if kind in LISTED:
        try:
            client.get(f"/{LISTED[kind]}/{name(found)}")
        except CommandError as error:  # the halt is made: whatever goes wrong here must not look as if it were not
            return kind if isinstance(error, ApiError) and error.status == 404 else ""
    return ""


def _show(session: Session, answer: dict[str, Any]) -> None:
    """answer: of a change, or of a trial of one, which for people is the same and says so."""
    trial = answer.get("result")
    page = trial if isinstance(trial, dict) else answer
    if session.out.for_people and isinstance(page.get("items"), list):
        session.out.rows(page["items"], COLUMNS)
        if page is trial:
            session.out.remark("Nothing was changed.")
    else:
        session.out.one(answer)
