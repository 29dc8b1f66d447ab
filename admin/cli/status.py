"""`gatehouse status`."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Annotated, Any, Final

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from admin.cli import output
from admin.cli.client import Client
from admin.cli.errors import CommandError
from admin.cli.fleet import member
from admin.cli.session import Session, connected

BOUNDS: Final = ("requests", "tokens", "bytes", "elements", "concurrent", "queued", "budget", "session")
"""What a limit may bound; each that one does has a column."""


@connected
def status(
    session: Session,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh until Ctrl-C.")] = False,
    interval: Annotated[float, typer.Option("--interval", help="Seconds between refreshes.", min=0.2)] = 2.0,
) -> None:
    """Shows the fleet, breakers, queues and limits at a glance. Exit code 1 if the gateway is not ready."""
    with session.client() as client:
        found = client.get("/status")
        if watch and session.out.for_people:
            _watch(session, client, found, interval)
            return
    if session.out.for_people:
        session.out.console.print(render(found, session.out.room))
    else:
        session.out.data(found)
    if not found["ready"]:
        raise typer.Exit(1)


def _watch(session: Session, client: Client, found: dict[str, Any], interval: float) -> None:
    """Refreshes until Ctrl-C. Reports a missing answer and tries again."""
    console = session.out.console
    with Live(render(found, session.out.room), console=console, auto_refresh=False, screen=console.is_terminal) as live:
        try:
            while True:
                time.sleep(interval)
                try:
                    live.update(render(client.get("/status"), session.out.room), refresh=True)
                except CommandError as error:
                    live.update(Text(output.clean(str(error)), style="red"), refresh=True)
        except KeyboardInterrupt:
            return


def render(found: dict[str, Any], room: int | None = None) -> RenderableType:
    """The whole picture: one line about the process, tables of models, endpoints and limits."""
    state = Text("ready", style="green") if found["ready"] else Text(f"not ready: {', '.join(found['not_ready'])}", style="red")
    up = int(max(0.0, time.time() - datetime.fromisoformat(found["started_at"]).timestamp()))
    head = Text.assemble(
        (f"gatehouse {output.clean(found['version'])} ", "bold"),
        state,
        f"  replica {output.clean(found['replica'])}",
        f"  configuration {found['config_version']}  in flight {found['in_flight']}  store {found['store']}",
        f"  up {up // 86400}d {up // 3600 % 24:02}:{up // 60 % 60:02}:{up % 60:02}",
    )
    if found.get("insecure"):
        head.append("  INSECURE", style="bold red")
    config = found.get("config") or {}
    if config.get("refused"):
        head.append(f"\nconfiguration refused: {output.clean(str(config['refused']))}", style="red")
    if config.get("until_restart"):
        head.append("\nthe configuration in force is not in the gateway's file: a restart brings the file's back", style="yellow")
    for trouble in found.get("troubles", ()):
        about = " ".join(filter(None, (str(trouble["about"]).replace("_", " "), str(trouble["name"]))))
        head.append(f"\n{output.clean(about)}: {output.clean(str(trouble['reason'] or 'see the log'))}", style="red")
    rows = [{**model, "engines": [member(engine) for engine in model["pool"]]} for model in found["models"]]
    models = output.table(rows, ("name", "ready", "queued", "policy", "engines"), "Models", room)
    columns = ("name", "runtime", "state", "in_flight", "limit", "slots", "breaker.state", "breaker.forced", "reason")
    endpoints = output.table(found["endpoints"], columns, "Endpoints", room)
    bounds = [bound for bound in BOUNDS if any(limit.get(bound) for limit in found["limits"])]
    named = [{**limit, "match": {key: one for key, one in limit["match"].items() if one != "*"} or None} for limit in found["limits"]]
    limits = output.table(named, ("name", "per", "match", *bounds), "Limits", room)
    parts: list[RenderableType] = [head, "", models, "", endpoints]
    return Group(*parts, "", limits) if found["limits"] else Group(*parts)
