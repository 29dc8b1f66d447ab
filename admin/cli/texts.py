"""`gatehouse audit keys|capture|reveal|shred`: texts in the audit log, their keys, and who may read them."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from admin.cli.client import LONG, name
from admin.cli.errors import CommandError
from admin.cli.keys import duration
from admin.cli.output import clean, moment
from admin.cli.session import DryRun, Session, connected

KEY_COLUMNS = ("tenant", "version", "state", "id", "master", "created_at", "ended_at")
CAPTURE_COLUMNS = ("key", "tenant", "until", "actor", "reason")
REVEAL_COLUMNS = ("id", "state", "tenant", "request_id", "asked_by", "reason", "decided_by", "expires_at")
Why = Annotated[str, typer.Option("--why", help="The reason, for the audit log.")]
Tenant = Annotated[str | None, typer.Option("--tenant", help="Only this tenant's.")]
Id = Annotated[str, typer.Argument(metavar="ID", help="The id that `ask` printed.")]

keys_group = typer.Typer(help="Keys: those that verify checkpoints, and those that encrypt texts.")
reveal_group = typer.Typer(no_args_is_help=True, help="Texts in the audit log: ask for them, approve, fetch them once.")


@keys_group.callback(invoke_without_command=True)
@connected
def keys(session: Session, context: typer.Context) -> None:
    """Shows the public keys that checkpoints are verified with; keep one away from the gateway's machine."""
    if context.invoked_subcommand is not None:
        return
    with session.client() as client:
        found = client.get("/audit/keys")["items"]
    if not session.out.for_people:
        session.out.data(found)
        return
    for key in found:
        since = f", since {moment(key['since'])}" if key.get("since") else ""
        session.out.remark(f"{key['id']} ({key['algorithm']}{since}{', signs now' if key.get('current') else ''})")
        sys.stdout.write(key["pem"])


@keys_group.command("list")
@connected
def list_keys(session: Session, tenant: Tenant = None) -> None:
    """Lists the data keys that encrypt texts, without the keys themselves."""
    with session.client() as client:
        session.out.rows(client.get("/audit/data-keys", **({} if tenant is None else {"tenant": tenant}))["items"], KEY_COLUMNS)


@keys_group.command("rotate")
@connected
def rotate(
    session: Session,
    tenant: Tenant = None,
    master: Annotated[bool, typer.Option("--master", help="Wrap the data keys of a former master key with the current one.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Creates new data keys; older ones still decrypt what they encrypted."""
    body: dict[str, Any] = {"master": master, **({} if tenant is None else {"tenant": tenant})}
    with session.client() as client:
        params = {"dry_run": "true"} if dry_run else {}
        answer = client.json("POST", "/audit/data-keys/rotate", params=params, json=body, timeout=LONG)
    session.out.rows((answer["result"] if dry_run else answer)["items"], KEY_COLUMNS)


@connected
def capture(
    session: Session,
    id: Annotated[str, typer.Argument(metavar="KEY", help="The id of an API key.")],
    why: Why,
    last: Annotated[str, typer.Option("--for", help="How long, at most 1h.")] = "10m",
    end: Annotated[bool, typer.Option("--end", help="End the capture early.")] = False,
    wait: Annotated[float, typer.Option("--wait", help="Seconds to wait until it is in force in every worker.", min=0, max=60)] = 5.0,
    dry_run: DryRun = False,
) -> None:
    """Keeps one key's prompts and answers for a while, encrypted, on every replica."""
    params = {"dry_run": "true"} if dry_run else {"wait": f"{wait:g}"}
    with session.client() as client:
        if end:
            answer = client.json("DELETE", f"/captures/{name(id)}", params=params, timeout=LONG)
        else:
            body = {"key": id, "seconds": duration(last), "reason": why}
            answer = client.json("POST", "/captures", params=params, json=body, timeout=LONG)
    session.out.one(answer)


@connected
def captures(session: Session) -> None:
    """Lists the keys whose texts are being kept."""
    with session.client() as client:
        session.out.rows(client.items("/captures", limit=1000), CAPTURE_COLUMNS)


@reveal_group.command("ask")
@connected
def ask(
    session: Session,
    request_id: Annotated[str, typer.Argument(metavar="REQUEST", help="The request's id, as in x-request-id.")],
    why: Why,
    tenant: Annotated[str | None, typer.Option("--tenant", help="The tenant, if several have requests of this id.")] = None,
    dry_run: DryRun = False,
) -> None:
    """Asks for the texts of a request. Once another person has approved, `fetch` them."""
    body: dict[str, Any] = {"request_id": request_id, "reason": why, **({} if tenant is None else {"tenant": tenant})}
    with session.client() as client:
        answer = client.json("POST", "/audit/reveals", params={"dry_run": "true"} if dry_run else {}, json=body, timeout=LONG)
    session.out.one(answer)


@reveal_group.command("list")
@connected
def reveals(session: Session) -> None:
    """Lists the requests for texts."""
    with session.client() as client:
        session.out.rows(list(client.items("/audit/reveals")), REVEAL_COLUMNS)


@reveal_group.command("approve")
@connected
def approve(session: Session, id: Id, why: Why, dry_run: DryRun = False) -> None:
    """Approves another person's request."""
    _decide(session, id, "approve", why, dry_run)


@reveal_group.command("deny")
@connected
def deny(session: Session, id: Id, why: Why, dry_run: DryRun = False) -> None:
    """Denies a request for texts."""
    _decide(session, id, "deny", why, dry_run)


def _decide(session: Session, id: str, verb: str, why: str, dry_run: bool) -> None:
    with session.client() as client:
        params = {"dry_run": "true"} if dry_run else {}
        session.out.one(client.json("POST", f"/audit/reveals/{name(id)}/{verb}", params=params, json={"reason": why}))


@reveal_group.command("fetch")
@connected
def fetch(session: Session, id: Id) -> None:
    """Prints the approved texts: once, and only for the person who asked."""
    with session.client() as client:
        found = client.json("POST", f"/audit/reveals/{name(id)}/fetch", timeout=LONG)
    if not session.out.for_people:
        session.out.data(found)
        return
    for one in found["texts"]:
        what = "prompt" if one["kind"] == "intent" else "answer"
        session.out.remark(
            f"{what}, {one['time']}: {one['state']}{' (cut)' if (one['text'] or {}).get('cut') else ''} {one['why']}".rstrip()
        )
        text = one["text"] or {}
        for place, part in [("", text.get("body", "")), *text.get("texts", {}).items()]:
            if part:
                typer.echo(f"{place}: {clean(part)}" if place else clean(part))


@connected
def shred(
    session: Session,
    tenant: Annotated[str, typer.Argument(metavar="TENANT", help="The tenant.")],
    why: Why,
    confirm: Annotated[
        str | None,
        typer.Option("--confirm", help="The digest that a call without it shows; default: asks for the tenant's name."),
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Destroys a tenant's data keys for good: nobody can ever read its texts again. The log can still be verified and proven."""
    with session.client() as client:
        plan = client.get("/audit/data-keys/shred", tenant=tenant)
        if dry_run:
            session.out.one(plan)
            return
        if plan["held"]:
            raise CommandError(f"the tenant is under a legal hold: {plan['held']}")
        if confirm is None:
            session.out.remark(
                f"this destroys {len(plan['keys'])} data keys of {tenant}: {', '.join(plan['keys'][:8])}. It cannot be undone"
            )
            if not sys.stdin.isatty():
                raise CommandError(f"to confirm, call it again with --confirm {plan['digest']}")
            if typer.prompt("To confirm, write the tenant's name", err=True) != tenant:
                raise CommandError("not confirmed: nothing was destroyed")
            confirm = plan["digest"]
        body = {"tenant": tenant, "reason": why, "confirm": confirm}
        session.out.one(client.json("POST", "/audit/data-keys/shred", json=body, timeout=LONG))


def add(group: typer.Typer) -> None:
    """Adds the commands to `gatehouse audit`."""
    group.add_typer(keys_group, name="keys")
    group.add_typer(reveal_group, name="reveal")
    group.command("capture")(capture)
    group.command("captures")(captures)
    group.command("shred")(shred)
