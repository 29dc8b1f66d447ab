"""`gatehouse limits`: what limits there are, who has used how much of them, and changes to them."""

from __future__ import annotations

import math
from typing import Annotated, Any

import typer

from admin.cli import completion, usage
from admin.cli.client import ApiError, Client, name
from admin.cli.errors import UsageError
from admin.cli.keys import duration
from admin.cli.session import DryRun, Session, connected

group = typer.Typer(no_args_is_help=True, help="Limits and budgets: show usage, change, reset.")
COLUMNS = ("limit", "scope", "amount", "most", "used", "left", "in_hand", "resets_in", "binds")
Limit = Annotated[str, typer.Argument(metavar="NAME", help="A limit.", autocompletion=completion.limits)]
Rate = Annotated[str | None, typer.Option(help="RATE/PERIOD, such as 100/1m.")]


@group.command("list")
@connected
def index(session: Session) -> None:
    """Lists all limits, those of the configuration file first."""
    with session.client() as client:
        found = client.items("/limits", limit=1000)
    session.out.rows(found, ("name", "per", "requests", "tokens", "concurrent", "budget", "enforce", "source"))


@group.command("show")
@connected
def show(
    session: Session,
    who: Annotated[str, typer.Argument(metavar="PRINCIPAL", help="A key's id, or user/NAME@TENANT.")],
    model: Annotated[str, typer.Option("--model", help="The requested model.", autocompletion=completion.models)] = "",
    operation: Annotated[str, typer.Option("--operation", help="The operation.")] = "chat",
) -> None:
    """Shows every limit that applies to a caller, how much of it is used, and which one binds."""
    with session.client() as client:
        found = client.post("/limits:applying", {"model": model, "operation": operation, **_caller(who)})["items"]
    _rows(session, found)


@group.command("state")
@connected
def state(session: Session, limit: Limit) -> None:
    """Shows who has used how much of a limit."""
    with session.client() as client:
        found = client.items(f"/limits/{name(limit)}/state", limit=1000)
    _rows(session, found)


@group.command("set")
@connected
def change(
    session: Session,
    limit: Limit,
    requests: Rate = None,
    tokens: Rate = None,
    concurrent: Annotated[int | None, typer.Option(help="Requests under way at once.", min=1)] = None,
    budget: Annotated[float | None, typer.Option(help="The budget's amount.")] = None,
    enforce: Annotated[
        bool | None, typer.Option("--enforce/--no-enforce", help="Whether the limit refuses requests or only counts.")
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Changes a limit of the store at once. Usage so far still counts."""
    changes: dict[str, Any] = {"concurrent": concurrent, "enforce": enforce}
    with session.client() as client:
        now = client.get(f"/limits/{name(limit)}")
        for what, text in (("requests", requests), ("tokens", tokens)):
            if text is not None:
                changes[what] = rate_of(text, what)
        if budget is not None:
            if not math.isfinite(budget):
                raise UsageError(f"--budget: {budget} is not an amount; write a number, such as 500")
            if not now.get("budget"):
                raise UsageError(f"the limit {limit!r} has no budget to change")
            changes["budget"] = {**now["budget"], "amount": budget}
        changes = {key: value for key, value in changes.items() if value is not None}
        if not changes:
            raise UsageError("nothing to change: give --requests, --tokens, --concurrent, --budget or --enforce")
        session.out.one(client.patch(f"/limits/{name(limit)}", changes, dry_run=dry_run))


@group.command("reset")
@connected
def reset(
    session: Session,
    limit: Limit,
    principal: Annotated[
        str | None, typer.Option("--principal", help="Only this bucket: a key's id, or a scope as `state` shows it.")
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Sets the usage of a limit to zero, for one caller or for all. The audit log records it."""
    with session.client() as client:
        scope = None if principal is None else _scope(client, limit, principal)
        session.out.one(client.post(f"/limits/{name(limit)}/reset", {"scope": scope}, dry_run=dry_run))


def _caller(who: str) -> dict[str, Any]:
    kind, slash, rest = who.partition("/")
    if slash and kind == "user":
        user, at, tenant = rest.rpartition("@")
        if not at or not user or not tenant:
            raise UsageError("write user/NAME@TENANT")
        return {"principal": {"tenant": tenant, "id": user, "user": user}}
    return {"key": rest if slash and kind == "key" else who}


def _scope(client: Client, limit: str, principal: str) -> str:
    """The bucket of a limit that a principal means: a scope, or what a key or a user has."""
    if principal.startswith("#") or ("/" in principal and not principal.startswith(("key/", "user/"))):
        return principal
    try:
        found = client.post("/limits:applying", _caller(principal))["items"]
    except ApiError as error:
        if error.status != 404:
            raise
        return principal  # no key has this id: it is a tenant, a model or the like
    scopes = [str(one["scope"]) for one in found if one["limit"] == limit]
    if not scopes:
        raise UsageError(f"the limit {limit!r} does not apply to {principal!r}; `gatehouse limits state {limit}` shows its buckets")
    return scopes[0]


def rate_of(text: str, what: str) -> dict[str, Any]:
    rate, slash, per = text.partition("/")
    try:
        number = float(rate)
        if not math.isfinite(number):
            raise ValueError(rate)
        return {"rate": number, "per": duration(per)} if slash else {"rate": number}
    except ValueError:
        raise UsageError(f"--{what}: {text!r} is not a rate; write RATE/PERIOD, such as 100/1m") from None


def _rows(session: Session, found: list[dict[str, Any]]) -> None:
    if not session.out.for_people:
        session.out.data(found)
        return
    rows = []
    for one in found:
        shared = {"limit": one["limit"], "scope": one["scope"] or "-", "binds": "yes" if one["binds"] else ""}
        for amount in one["amounts"]:
            rows.append({**shared, **amount, "resets_in": span(amount.get("resets_in"))})
        for amount in ("concurrent", "queued"):
            if most := one.get(amount):
                left = max(0, most - one["in_use"])
                rows.append({**shared, "amount": amount, "most": most, "used": one["in_use"], "left": left})
    session.out.rows(rows, COLUMNS)


def span(seconds: float | None) -> str:
    """A time for people, in its two largest units: `2d18h`, `18h10m`, `5m3s`, `0.497s`."""
    if seconds is None:
        return ""
    if seconds < 60:
        return f"{seconds:g}s"
    rest = round(seconds)
    parts = []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        many, rest = divmod(rest, size)
        parts.append(f"{many}{unit}" if many else "")
    first = next(number for number, part in enumerate(parts) if part)
    return "".join(parts[first : first + 2])


group.command("reconcile")(usage.reconcile)
