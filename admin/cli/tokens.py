"""`gatehouse tokens`: revoking tokens, and the keys that the gateway's own are signed with."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from admin.cli.client import LONG, name
from admin.cli.errors import UsageError
from admin.cli.session import DryRun, Session, connected

group = typer.Typer(help="Tokens: revoke them, and rotate the signing keys of gateway tokens.", no_args_is_help=True)
_COLUMNS = ("id", "type", "issuer", "value", "before", "expires_at", "created_by", "reason")
_KEYS = ("id", "state", "signs_from", "created_at")
Wait = Annotated[float, typer.Option("--wait", help="Maximum seconds to wait until it is in force in every worker.", min=0, max=60)]


@group.command("revoke")
@connected
def revoke(
    session: Session,
    id: Annotated[str | None, typer.Option("--id", help="The `jti` of one token.")] = None,
    subject: Annotated[str | None, typer.Option("--subject", help="All tokens issued to this subject until now.")] = None,
    issuer: Annotated[
        str | None, typer.Option("--issuer", help="The issuer, as `iss` in the token; alone: all tokens that it issued until now.")
    ] = None,
    everything: Annotated[bool, typer.Option("--everything", help="All tokens of all issuers, issued until now.")] = False,
    before: Annotated[str | None, typer.Option("--before", help="Up to this time (RFC 3339) instead of now.")] = None,
    why: Annotated[str, typer.Option("--why", help="The reason, for other operators and the audit log.")] = "",
    wait: Wait = 5.0,
    dry_run: DryRun = False,
) -> None:
    """Refuses tokens on every replica from now on, and gateway tokens issued for them."""
    if sum(given is not None for given in (id, subject)) > 1 or (everything and (id or subject or issuer)):
        raise UsageError("say one of --id, --subject, --issuer alone, and --everything")
    if (id or subject) and not issuer:
        raise UsageError("say whose it is with --issuer")
    if not (id or subject or issuer or everything):
        raise UsageError("say what to revoke: --id, --subject, --issuer or --everything")
    kind = "all" if everything else "token" if id else "subject" if subject else "issuer"
    body: dict[str, Any] = {"type": kind, "issuer": issuer or "", "value": id or subject or "", "reason": why}
    if before is not None:
        body["before"] = before
    with session.client() as client:
        params = {"dry_run": "true"} if dry_run else {"wait": f"{wait:g}"}
        session.out.one(client.json("POST", "/revocations", params=params, json=body, timeout=LONG))


@group.command("revocations")
@connected
def revocations(session: Session) -> None:
    """Lists the revocations in force."""
    with session.client() as client:
        session.out.rows(client.items("/revocations", limit=1000), _COLUMNS)


@group.command("restore")
@connected
def restore(session: Session, id: Annotated[str, typer.Argument(help="The revocation's id.")], dry_run: DryRun = False) -> None:
    """Lifts a revocation."""
    with session.client() as client:
        session.out.one(client.json("DELETE", f"/revocations/{name(id)}", params={"dry_run": "true"} if dry_run else {}))


@group.command("keys")
@connected
def keys(session: Session) -> None:
    """Lists the signing keys of gateway tokens."""
    with session.client() as client:
        session.out.rows(client.get("/token-keys")["items"], _KEYS)


@group.command("rotate")
@connected
def rotate(
    session: Session,
    after: Annotated[float, typer.Option("--after", help="Seconds until the new key signs.", min=0, max=86400)] = 300.0,
    dry_run: DryRun = False,
) -> None:
    """Creates a new signing key. Tokens of the current key stay valid."""
    with session.client() as client:
        params = {"after": f"{after:g}", **({"dry_run": "true"} if dry_run else {})}
        _show(session, client.json("POST", "/token-keys", params=params, timeout=LONG))


@group.command("withdraw")
@connected
def withdraw(session: Session, id: Annotated[str, typer.Argument(help="The key's id.")], dry_run: DryRun = False) -> None:
    """Refuses all tokens of a signing key at once, for example because the key has leaked."""
    with session.client() as client:
        params = {"dry_run": "true"} if dry_run else {"wait": "5"}
        _show(session, client.json("DELETE", f"/token-keys/{name(id)}", params=params, timeout=LONG))


def _show(session: Session, answer: dict[str, Any]) -> None:
    if session.out.for_people and "items" in answer:
        session.out.rows(answer["items"], _KEYS)
    else:
        session.out.one(answer)
