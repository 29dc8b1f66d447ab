"""`gatehouse rollouts`: candidates that are tried on real traffic."""

from __future__ import annotations

from typing import Annotated

import typer

from admin.cli.client import name
from admin.cli.session import DryRun, Session, connected

group = typer.Typer(no_args_is_help=True, help="Trials and mirrored models on real traffic.")
COLUMNS = ("model", "candidate", "state", "sampled", "mirrored", "dropped", "skipped", "errors", "likeness", "latency_p95", "candidate_p95")
Model = Annotated[str, typer.Argument(metavar="MODEL", help="The model's public name.")]


@group.command("list")
@connected
def index(session: Session) -> None:
    """Lists engines on trial and models whose requests are mirrored, with the figures of both sides."""
    rows = []
    with session.client() as client:
        for item in client.get("/rollouts")["items"]:
            shadow, canary = item["shadow"], item["canary"]
            if canary is not None:
                sides = (canary["other_side"], canary["canary_side"])
                rows.append(
                    {
                        "model": item["model"],
                        "candidate": canary["engine"],
                        "state": "withdrawn" if canary["withdrawn"] else "on trial",
                        "sampled": sides[1]["answers"],
                        "errors": sides[1]["errors"],
                        "latency_p95": sides[0]["latency_p95"],
                        "candidate_p95": sides[1]["latency_p95"],
                    }
                )
            if shadow is None:
                continue
            rows.append(
                {
                    **shadow,
                    "model": item["model"],
                    "state": "shadow",
                    "dropped": sum(shadow["dropped"].values()),
                    "skipped": sum(shadow["skipped"].values()),
                    "errors": shadow["candidate_side"]["errors"],
                    "latency_p95": shadow["model_side"]["latency_p95"],
                    "candidate_p95": shadow["candidate_side"]["latency_p95"],
                }
            )
    session.out.rows(rows, COLUMNS)


@group.command()
@connected
def resume(session: Session, model: Model, dry_run: DryRun = False) -> None:
    """Puts a model's withdrawn engine back on trial."""
    with session.client() as client:
        session.out.one(client.json("POST", f"/rollouts/{name(model)}/resume", params={"dry_run": "true"} if dry_run else {}))


@group.command()
@connected
def show(session: Session, model: Model) -> None:
    """Shows the trial or mirror on a model's traffic, with all figures."""
    with session.client() as client:
        session.out.one(client.get(f"/rollouts/{name(model)}"))
