"""`gatehouse keys`: API keys of the store."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import typer

from admin.cli import completion
from admin.cli.client import name
from admin.cli.errors import UsageError
from admin.cli.kits import KITS, kit, model_for
from admin.cli.session import DryRun, IfVersion, Session, changed, connected

group = typer.Typer(no_args_is_help=True, help="API keys: create, rotate, suspend, revoke.")
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_COLUMNS: Final = ("id", "tenant", "state", "source", "prefix", "models", "roles", "expires", "last_used")
_CLEARED: Final = ("models", "operations", "cidrs", "limits", "roles", "expires", "priority", "description")
KeyId = Annotated[str, typer.Argument(metavar="ID", help="The key's id.", autocompletion=completion.keys)]
StoredKeyId = Annotated[str, typer.Argument(metavar="ID", help="The key's id.", autocompletion=completion.stored_keys)]


def duration(text: str) -> float:
    """`90s`, `15m`, `24h`, `30d`, `2w` or seconds. Raises UsageError."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw]?)", text.strip())
    if found is None:
        raise UsageError(f"{text!r} is not a duration: write 90s, 15m, 24h, 30d or 2w")
    return float(found[1]) * _UNITS[found[2] or "s"]


def expiry(text: str, now: float) -> float:
    """A date (`2027-01-31`, with or without a time; UTC) or a duration from now, as seconds since the epoch. Raises UsageError."""
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        try:
            return now + duration(text)
        except UsageError:
            raise UsageError(f"{text!r} is neither a date such as 2027-01-31 nor a duration such as 24h or 30d") from None
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


@group.command("create")
@connected
def create(
    session: Session,
    tenant: Annotated[str, typer.Option("--tenant", help="The key's tenant.", autocompletion=completion.tenants)],
    models: Annotated[
        list[str] | None, typer.Option("--model", help="A pattern of models it may use; repeat it.", autocompletion=completion.models)
    ] = None,
    operations: Annotated[
        list[str] | None, typer.Option("--operation", help="An operation it may call; default: all.", autocompletion=completion.operations)
    ] = None,
    cidrs: Annotated[list[str] | None, typer.Option("--cidr", help="A network it may be used from; default: any.")] = None,
    limits: Annotated[
        list[str] | None, typer.Option("--limit", help="A limit for this key alone.", autocompletion=completion.limits)
    ] = None,
    roles: Annotated[list[str] | None, typer.Option("--role", help="A role for the admin API.", autocompletion=completion.roles)] = None,
    expires: Annotated[str | None, typer.Option("--expires", help="A date, or a duration such as 90d.")] = None,
    priority: Annotated[
        str, typer.Option("--priority", help="interactive, standard or batch.", autocompletion=completion.priorities)
    ] = "standard",
    description: Annotated[str, typer.Option("--description", help="What it is for.")] = "",
    id: Annotated[str | None, typer.Option("--id", help="A name for it; default: generated.")] = None,
    dry_run: DryRun = False,
) -> None:
    """Creates a key. It is printed once and cannot be shown again."""
    body: dict[str, Any] = {
        "tenant": tenant,
        "models": models or [],
        "operations": operations or [],
        "cidrs": cidrs or [],
        "limits": limits or [],
        "roles": roles or [],
        "priority": priority,
        "description": description,
    }
    if expires is not None:
        body["expires"] = expiry(expires, time.time())
    if id is not None:
        body["id"] = id
    with session.client() as client:
        show_once(session, client.post("/keys", body, dry_run=dry_run))


def show_once(session: Session, answer: dict[str, Any]) -> None:
    """Prints a new key's record, and its secret by itself."""
    for warning in answer.get("result", answer).get("warnings", ()):
        session.out.remark(f"warning: {warning}")
    if session.out.for_people and answer.get("secret"):
        session.out.one({key: value for key, value in answer.items() if key not in ("secret", "warnings")})
        session.out.remark("The key, shown this once:")
        session.out.console.print(answer["secret"], markup=False)
        return
    session.out.one(answer)


@group.command("list")
@connected
def index(
    session: Session,
    tenant: Annotated[str | None, typer.Option("--tenant", help="Only those of a tenant.", autocompletion=completion.tenants)] = None,
    state: Annotated[
        str | None,
        typer.Option(
            "--state",
            help="active, rotated, expired or revoked.",
            autocompletion=completion.one_of("active", "rotated", "expired", "revoked"),
        ),
    ] = None,
    prefix: Annotated[str | None, typer.Option("--prefix", help="Only ids with this prefix.")] = None,
) -> None:
    """Lists keys, those of the configuration file first."""
    with session.client() as client:
        session.out.rows(client.items("/keys", tenant=tenant, state=state, prefix=prefix, limit=1000), _COLUMNS)


@group.command("show")
@connected
def show(
    session: Session,
    id: KeyId,
    for_client: Annotated[
        str | None,
        typer.Option("--client", help=f"Prints settings for a client: {', '.join(KITS)}.", autocompletion=completion.one_of(*KITS)),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", help="With --client: the model; default: the first that it may use.", autocompletion=completion.models),
    ] = None,
    gateway_url: Annotated[
        str | None, typer.Option("--gateway-url", help="With --client: the data listener; default: ask the gateway.")
    ] = None,
) -> None:
    """Shows a key's record, never the key itself; or settings for a client that uses it."""
    if for_client is not None and for_client not in KITS:
        raise UsageError(f"there are no settings for {for_client!r}; there are for {', '.join(KITS)}")
    with session.client() as client:
        found = client.get(f"/keys/{name(id)}")
        if for_client is None:
            session.out.one(found)
            return
        url = gateway_url or session.profile.gateway_url or str(client.get("/status")["gateway_url"])
        chosen = model or model_for(found, [str(each["name"]) for each in client.items("/models", limit=1000)])
    session.out.console.print(kit(for_client, url.rstrip("/"), chosen), markup=False, soft_wrap=True, end="")


@group.command("update")
@connected
def update(
    session: Session,
    id: StoredKeyId,
    models: Annotated[
        list[str] | None,
        typer.Option("--model", help="The patterns of models it may use, all of them; repeat it.", autocompletion=completion.models),
    ] = None,
    operations: Annotated[
        list[str] | None, typer.Option("--operation", help="The operations it may call.", autocompletion=completion.operations)
    ] = None,
    cidrs: Annotated[list[str] | None, typer.Option("--cidr", help="The networks it may be used from.")] = None,
    limits: Annotated[
        list[str] | None, typer.Option("--limit", help="The limits for this key alone.", autocompletion=completion.limits)
    ] = None,
    roles: Annotated[list[str] | None, typer.Option("--role", help="Its roles for the admin API.", autocompletion=completion.roles)] = None,
    expires: Annotated[str | None, typer.Option("--expires", help="A date, or a duration from now such as 90d.")] = None,
    priority: Annotated[
        str | None, typer.Option("--priority", help="interactive, standard or batch.", autocompletion=completion.priorities)
    ] = None,
    description: Annotated[str | None, typer.Option("--description", help="What it is for.")] = None,
    clear: Annotated[
        list[str] | None,
        typer.Option(
            "--clear",
            help="A setting to reset to its default, named as in `show`.",
            autocompletion=completion.one_of(*_CLEARED),
        ),
    ] = None,
    if_version: IfVersion = None,
    dry_run: DryRun = False,
) -> None:
    """Changes what a key may do. Settings not named stay; a list replaces the previous list. The secret stays the same."""
    given: dict[str, Any] = {
        "models": models,
        "operations": operations,
        "cidrs": cidrs,
        "limits": limits,
        "roles": roles,
        "expires": None if expires is None else expiry(expires, time.time()),
        "priority": priority,
        "description": description,
    }
    changes = changed(given, clear or ())
    with session.client() as client:
        session.out.one(client.patch(f"/keys/{name(id)}", changes, version=if_version, dry_run=dry_run))


@group.command("rotate")
@connected
def rotate(
    session: Session,
    id: StoredKeyId,
    overlap: Annotated[str, typer.Option("--overlap", help="How long the old secret stays valid; 0s ends it at once.")] = "24h",
    dry_run: DryRun = False,
) -> None:
    """Gives a key a new secret. Its id and settings stay, as do its limits, bindings and usage."""
    with session.client() as client:
        show_once(session, client.post(f"/keys/{name(id)}/rotate", {"overlap": duration(overlap)}, dry_run=dry_run))


@group.command("revoke")
@connected
def revoke(session: Session, id: StoredKeyId, dry_run: DryRun = False) -> None:
    """Refuses a key from now on."""
    with session.client() as client:
        session.out.one(client.post(f"/keys/{name(id)}/revoke", dry_run=dry_run))


@group.command("delete")
@connected
def delete(session: Session, id: StoredKeyId, dry_run: DryRun = False) -> None:
    """Deletes a key and its record; its usage stays. To refuse a key and keep its record, revoke it."""
    with session.client() as client:
        session.out.one(client.delete(f"/keys/{name(id)}", dry_run=dry_run))
