"""`gatehouse prices`: what models cost."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from admin.cli import completion
from admin.cli.client import Client, name
from admin.cli.errors import CommandError, UsageError
from admin.cli.session import DryRun, Session, connected

group = typer.Typer(no_args_is_help=True, help="Prices: what models cost.")
RATES: Final = ("prompt", "completion", "cached", "reasoning", "image", "audio", "audio_completion", "request")
PUBLIC: Final = {
    "input_cost_per_token": "prompt",
    "output_cost_per_token": "completion",
    "cache_read_input_token_cost": "cached",
    "output_cost_per_reasoning_token": "reasoning",
    "input_cost_per_audio_token": "audio",
    "output_cost_per_audio_token": "audio_completion",
    "input_cost_per_image_token": "image",
    "input_cost_per_request": "request",
}
"""The fields of the public table `model_prices_and_context_window.json`, in USD for one token."""


@group.command("list")
@connected
def index(session: Session) -> None:
    """Lists all prices, those of the configuration file first. `prices models` shows what models cost."""
    with session.client() as client:
        session.out.rows(
            client.items("/prices", limit=1000),
            ("name", "model", *RATES[:4], "request", "per", "currency", "from", "until", "table", "source", "reference"),
        )


@group.command("models")
@connected
def of_models(session: Session) -> None:
    """Shows what each model costs now, in its currency for a million tokens, including rates of the public table."""
    with session.client() as client:
        session.out.rows(client.get("/prices:models")["items"], ("model", *RATES[:4], "request", "currency", "basis", "version"))


@group.command("set")
@connected
def put(
    session: Session,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model, or a pattern.", autocompletion=completion.models)],
    prompt: Annotated[float | None, typer.Option("--prompt", help="For prompt tokens.", min=0)] = None,
    completion_rate: Annotated[float | None, typer.Option("--completion", help="For generated tokens.", min=0)] = None,
    cached: Annotated[float | None, typer.Option("--cached", help="For prompt tokens that the engine had cached.", min=0)] = None,
    reasoning: Annotated[float | None, typer.Option("--reasoning", help="For reasoning tokens.", min=0)] = None,
    request: Annotated[float | None, typer.Option("--request", help="For each request.", min=0)] = None,
    per: Annotated[str, typer.Option("--per", help="How many tokens a price is for: 1, 1K or 1M.")] = "1M",
    currency: Annotated[str, typer.Option("--currency", help="Three letters.")] = "usd",
    since: Annotated[str | None, typer.Option("--from", help="The first day (UTC), or a time.")] = None,
    until: Annotated[str | None, typer.Option("--until", help="Valid before this day or time.")] = None,
    named: Annotated[str | None, typer.Option("--name", help="Default: the model, and the day from which it is valid.")] = None,
    dry_run: DryRun = False,
) -> None:
    """Creates a price in the store, or replaces the one of that name."""
    rates = {"prompt": prompt, "completion": completion_rate, "cached": cached, "reasoning": reasoning, "request": request}
    body = {"model": model, **rates, "per": per, "currency": currency, "from": since, "until": until}
    body["name"] = named or named_after(model, since)
    with session.client() as client:
        session.out.one(store(client, {key: value for key, value in body.items() if value is not None}, dry_run))


@group.command("delete")
@connected
def delete(session: Session, price: Annotated[str, typer.Argument(metavar="NAME", help="The price.")], dry_run: DryRun = False) -> None:
    """Deletes a price of the store."""
    with session.client() as client:
        session.out.one(client.delete(f"/prices/{name(price)}", dry_run=dry_run))


@group.command("import")
@connected
def load(
    session: Session,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A table in the format of LiteLLM's model_prices_and_context_window.json.")],
    models: Annotated[list[str], typer.Option("--model", help="MODEL, or MODEL=NAME if the table has another name. Repeat it.")],
    since: Annotated[str | None, typer.Option("--from", help="Valid from this day on.")] = None,
    source: Annotated[str, typer.Option("--source", help="Where and when you got the table; stored with the prices.")] = "",
    dry_run: DryRun = False,
) -> None:
    """Imports prices of hosted models from a downloaded public table, for the models that you name."""
    try:
        table = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise CommandError(f"{file} cannot be read: {error}") from None
    if not isinstance(table, dict):
        raise CommandError(f"{file} is not a table of models")
    wanted = [imported(table, one, since, source or file.name) for one in models]
    with session.client() as client:
        done = [store(client, body, dry_run) for body in wanted]
    session.out.rows([one.get("result", one) for one in done], ("name", "model", *RATES[:4], "per", "currency"))


def imported(table: dict[str, Any], wanted: str, since: str | None, source: str) -> dict[str, Any]:
    """The price of `MODEL` or `MODEL=NAME`. Raises UsageError."""
    model, _, listed = wanted.partition("=")
    entry = table.get(listed or model)
    if not isinstance(entry, dict):
        raise UsageError(f"the table has no model {listed or model!r}")
    rates = {ours: entry[theirs] for theirs, ours in PUBLIC.items() if isinstance(entry.get(theirs), int | float)}
    if not rates:
        raise UsageError(f"the table has no price for {listed or model!r}")
    body = {"name": named_after(model, since), "model": model, **rates, "per": "1", "currency": "usd", "reference": source}
    return body if since is None else {**body, "from": since}


def named_after(model: str, since: str | None) -> str:
    """A name for a price: `demo-all-2026-01-01` for `demo-*` from that day on."""
    return re.sub(r"[^A-Za-z0-9._/-]", "-", model.replace("*", "all") + (f"-{since}" if since else "")).lstrip("-._/") or "all"


def store(client: Client, body: dict[str, Any], dry_run: bool) -> dict[str, Any]:
    """Creates or replaces it."""
    known = any(one["name"] == body["name"] and one["source"] == "store" for one in client.items("/prices", limit=1000))
    params = {"dry_run": "true"} if dry_run else {}
    if known:
        return dict(client.json("PUT", f"/prices/{name(body['name'])}", json=body, params=params))
    return dict(client.json("POST", "/prices", json=body, params=params))
