"""The commands that talk to a running gateway, to be added to the console script's own."""

from __future__ import annotations

import typer

from admin.cli import (
    approvals,
    audit,
    batches,
    caches,
    config,
    files,
    fleet,
    guardrails,
    jobs,
    keys,
    limits,
    log_levels,
    machines,
    my_keys,
    people,
    policies,
    prices,
    replicas,
    roles,
    rollouts,
    stored,
    tenants,
    tokens,
    usage,
    webhooks,
    workers,
)
from admin.cli.audit_search import SearchOffline
from admin.cli.chat import chat
from admin.cli.halts import halt, halts, unhalt
from admin.cli.login import login, logout
from admin.cli.status import status
from admin.cli.sync import diff, dump, sync
from admin.cli.upgrade import upgrade


def register(app: typer.Typer, *, verify: audit.Verify, search: SearchOffline, join: fleet.Join) -> None:
    """Adds the commands. verify: of an audit log without a gateway (directory, public key) to the report. search: of one in a directory.
    join: runs a machine that joins."""
    fleet.add_run(join)
    app.command("status")(status)
    app.command("upgrade")(upgrade)
    app.command("login")(login)
    app.command("logout")(logout)
    app.command("halt")(halt)
    app.command("unhalt")(unhalt)
    app.command("halts")(halts)
    app.command("chat")(chat)
    app.command("dump")(dump)
    app.command("diff")(diff)
    app.command("sync")(sync)
    app.add_typer(usage.group, name="usage")
    app.add_typer(limits.group, name="limits")
    people.extend(tenants.tenants, keys.group)
    app.add_typer(tenants.tenants, name="tenants")
    app.add_typer(people.users, name="users")
    app.add_typer(people.groups, name="groups")
    app.add_typer(keys.group, name="keys")
    app.add_typer(my_keys.group, name="my-keys")
    app.add_typer(roles.roles, name="roles")
    app.add_typer(roles.bindings, name="bindings")
    files.extend(fleet.models)
    app.add_typer(fleet.models, name="models")
    app.add_typer(fleet.engines, name="engines")
    stored.register(fleet.engines, fleet.models)
    app.add_typer(policies.group, name="policies")
    app.add_typer(approvals.group, name="approvals")
    app.add_typer(batches.batches, name="batches")
    app.add_typer(batches.files, name="files")
    app.add_typer(jobs.group, name="jobs")
    app.add_typer(guardrails.group, name="guardrails")
    app.add_typer(tokens.group, name="tokens")
    app.add_typer(prices.group, name="prices")
    app.add_typer(webhooks.group, name="webhooks")
    app.add_typer(replicas.group, name="replicas")
    app.add_typer(machines.machines, name="machines")
    app.add_typer(machines.tokens, name="join-tokens")
    app.add_typer(workers.group, name="workers")
    app.add_typer(log_levels.group, name="log-levels")
    app.add_typer(caches.group, name="caches")
    app.add_typer(rollouts.group, name="rollouts")
    app.add_typer(config.group, name="config")
    app.add_typer(audit.make(verify, search), name="audit")
