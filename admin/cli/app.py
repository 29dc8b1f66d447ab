"""The commands that talk to a running gateway, to be added to the console script's own."""

from __future__ import annotations

import typer

from admin.cli import audit, config, files, fleet, keys, policies, replicas, stored, tenants, workers
from admin.cli.chat import chat
from admin.cli.status import login, status
from admin.cli.upgrade import upgrade


def register(app: typer.Typer, *, verify: audit.Verify) -> None:
    """Adds the commands. verify: of an audit log without a gateway (directory, public key) to the report."""
    app.command("status")(status)
    app.command("upgrade")(upgrade)
    app.command("login")(login)
    app.command("chat")(chat)
    app.command("usage")(tenants.usage)
    app.add_typer(tenants.tenants, name="tenants")
    app.add_typer(keys.group, name="keys")
    app.add_typer(tenants.roles, name="roles")
    files.extend(fleet.models)
    app.add_typer(fleet.models, name="models")
    app.add_typer(fleet.engines, name="engines")
    stored.register(fleet.engines, fleet.models)
    app.add_typer(policies.group, name="policies")
    app.add_typer(replicas.group, name="replicas")
    app.add_typer(workers.group, name="workers")
    app.add_typer(config.group, name="config")
    app.add_typer(audit.make(verify), name="audit")
