"""Every resource of the admin API, in the order of the document: the one table to add a line to."""

from __future__ import annotations

from collections.abc import Callable

from admin.operation import Operation
from admin.resources import (
    apply,
    approvals,
    audit,
    audit_search,
    bindings,
    captures,
    config,
    data_keys,
    engines,
    events,
    files,
    groups,
    guardrails,
    halts,
    holds,
    keys,
    limits,
    models,
    my_keys,
    policies,
    prices,
    replays,
    replicas,
    reveals,
    roles,
    status,
    stored_engines,
    stored_models,
    sync,
    tenants,
    tokens,
    upgrade,
    usage,
    users,
    webhooks,
    workers,
)

RESOURCES: tuple[Callable[[], list[Operation]], ...] = (
    status.operations,
    replicas.operations,
    workers.operations,
    tenants.operations,
    users.operations,
    groups.operations,
    keys.operations,
    my_keys.operations,
    roles.operations,
    bindings.operations,
    stored_models.operations,
    models.operations,
    files.operations,
    stored_engines.operations,
    engines.operations,
    limits.operations,
    guardrails.operations,
    tokens.operations,
    prices.operations,
    halts.operations,
    approvals.operations,
    policies.operations,
    replays.operations,
    apply.operations,
    sync.operations,
    config.operations,
    upgrade.operations,
    usage.operations,
    webhooks.operations,
    audit.operations,
    audit_search.operations,
    data_keys.operations,
    captures.operations,
    reveals.operations,
    holds.operations,
    events.operations,
)


def operations() -> list[Operation]:
    """All of them; made anew for each application, as some hold state."""
    return [operation for resource in RESOURCES for operation in resource()]
