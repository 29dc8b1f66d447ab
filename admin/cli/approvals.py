"""`gatehouse approvals`: tool calls that wait for a decision."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import typer

from admin.cli.client import Client, name
from admin.cli.session import DryRun, Session, connected

group = typer.Typer(no_args_is_help=True, help="Tool calls that wait for a decision: list, show, approve, deny.")
COLUMNS = ("id", "state", "tool", "requester", "model", "expires_at", "arguments_sha256")
Id = Annotated[str, typer.Argument(metavar="ID", help="The approval's id.")]
Why = Annotated[str, typer.Option("--why", help="The reason, for the audit log.")]
Digest = Annotated[
    str | None, typer.Option("--sha256", help="SHA-256 of the arguments that you have seen; default: those shown before you decide.")
]


@group.command("list")
@connected
def index(
    session: Session,
    state: Annotated[
        Literal["pending", "approved", "denied", "expired", "used", "all"], typer.Option("--state", help="Only those in this state.")
    ] = "pending",
    tenant: Annotated[str | None, typer.Option("--tenant", help="Only those of this tenant.")] = None,
) -> None:
    """Lists approvals, the oldest first."""
    params = {**({} if state == "all" else {"state": state}), **({} if tenant is None else {"tenant": tenant})}
    with session.client() as client:
        session.out.rows([_row(one) for one in client.items("/approvals", **params)], COLUMNS)


@group.command()
@connected
def show(session: Session, id: Id) -> None:
    """Shows an approval with its complete calls. The audit log records that you have seen them."""
    with session.client() as client:
        _show(session, client.get(f"/approvals/{name(id)}"))


@group.command()
@connected
def approve(session: Session, id: Id, why: Why, sha256: Digest = None, dry_run: DryRun = False) -> None:
    """Approves the calls: the requester gets the kept answer, once."""
    _decide(session, id, "approve", why, sha256, dry_run)


@group.command()
@connected
def deny(session: Session, id: Id, why: Why, sha256: Digest = None, dry_run: DryRun = False) -> None:
    """Denies the calls and erases the kept answer."""
    _decide(session, id, "deny", why, sha256, dry_run)


def _decide(session: Session, id: str, verb: str, why: str, sha256: str | None, dry_run: bool) -> None:
    with session.client() as client:
        seen = sha256 or _seen(session, client, id)
        params = {"dry_run": "true"} if dry_run else {}
        body = {"reason": why, "arguments_sha256": seen}
        answer = client.json("POST", f"/approvals/{name(id)}/{verb}", params=params, json=body)
    _show(session, answer)


def _seen(session: Session, client: Client, id: str) -> str:
    """Shows what is decided about; the hash of it, so that the decision is about nothing else."""
    found = client.get(f"/approvals/{name(id)}")
    if session.out.for_people:
        for call in found.get("calls") or ():
            typer.echo(f"{call['tool']} ({call['reversibility']}): {_canonical(call)}", err=True)
    return str(found["arguments_sha256"])


def _row(one: dict[str, Any]) -> dict[str, Any]:
    who = one["requester"]
    return {**one, "requester": f"{who['tenant']}/{who['id']}"}


def _canonical(call: dict[str, Any]) -> str:
    """The arguments as JSON of ASCII: nothing in them can pass for another field, hide, or turn the line around."""
    return json.dumps(call["arguments"], ensure_ascii=True)


def _show(session: Session, answer: dict[str, Any]) -> None:
    if session.out.for_people and "requester" in answer:
        answer = _row(answer)
        if calls := answer.get("calls"):
            answer["calls"] = [{**call, "arguments": _canonical(call)} for call in calls]
    session.out.one(answer)
