"""The store's tables (SQLAlchemy Core). A change here needs a migration; a test compares the two.

Names are compared bytewise on both databases (collation C on PostgreSQL), so that pages come in the same order everywhere.
Times are seconds since the epoch in double precision.
"""

from __future__ import annotations

import sqlalchemy as sa

NAME_LENGTH = 255


def _text(length: int) -> sa.types.TypeEngine[str]:
    return sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")


metadata = sa.MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    }
)

resources = sa.Table(
    "resources",
    metadata,
    sa.Column("kind", _text(NAME_LENGTH), primary_key=True),
    sa.Column("name", _text(NAME_LENGTH), primary_key=True),
    sa.Column("tenant", _text(NAME_LENGTH), nullable=False),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("body", sa.JSON, nullable=False),
    sa.Column("created", sa.Double, nullable=False),
    sa.Column("updated", sa.Double, nullable=False),
    sa.Column("actor", sa.Text, nullable=False),
    sa.Index("ix_resources_kind_tenant_name", "kind", "tenant", "name"),
)

keys = sa.Table(
    "keys",
    metadata,
    sa.Column("id", _text(NAME_LENGTH), primary_key=True),
    sa.Column("tenant", _text(NAME_LENGTH), nullable=False),
    sa.Column("prefix", sa.String(16), nullable=False),
    sa.Column("fingerprint", sa.LargeBinary(32), nullable=False, unique=True),
    sa.Column("models", sa.JSON, nullable=False),
    sa.Column("operations", sa.JSON, nullable=False),
    sa.Column("cidrs", sa.JSON, nullable=False),
    sa.Column("limits", sa.JSON, nullable=False),
    sa.Column("roles", sa.JSON, nullable=False),
    sa.Column("priority", sa.String(16), nullable=False),
    sa.Column("description", sa.Text, nullable=False),
    sa.Column("expires", sa.Double),
    sa.Column("rotated_to", _text(NAME_LENGTH)),
    sa.Column("overlap_until", sa.Double),
    sa.Column("revoked", sa.Double),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("created", sa.Double, nullable=False),
    sa.Column("updated", sa.Double, nullable=False),
    sa.Column("actor", sa.Text, nullable=False),
    sa.Column("last_used", sa.Double),
    sa.Column("user", sa.Text, nullable=False, server_default=""),
    sa.Column("issued", sa.Double),
    sa.Index("ix_keys_tenant_id", "tenant", "id"),
    sa.Index("ix_keys_tenant_user", "tenant", "user"),
)

logins = sa.Table(
    "logins",
    metadata,
    sa.Column("id", _text(NAME_LENGTH), primary_key=True),
    sa.Column("method", sa.Text, nullable=False),
    sa.Column("issuer", sa.Text, nullable=False),
    sa.Column("groups", sa.JSON, nullable=False),
    sa.Column("roles", sa.JSON, nullable=False),
    sa.Column("first", sa.Double, nullable=False),
    sa.Column("last", sa.Double, nullable=False),
)
"""The last login of each user, by their full name. It is no part of the user's resource, whose version would change with each login."""

former_secrets = sa.Table(
    "former_secrets",
    metadata,
    sa.Column("fingerprint", sa.LargeBinary(32), primary_key=True),
    sa.Column("key", _text(NAME_LENGTH), nullable=False),
    sa.Column("until", sa.Double, nullable=False),
    sa.Index("ix_former_secrets_key", "key"),
    sa.Index("ix_former_secrets_until", "until"),
)
"""Former secrets of rotated keys, accepted until `until`. The present secret is in the key's own row."""

usage_daily = sa.Table(
    "usage_daily",
    metadata,
    sa.Column("day", sa.String(10), primary_key=True),
    sa.Column("tenant", _text(NAME_LENGTH), primary_key=True),
    sa.Column("key", _text(NAME_LENGTH), primary_key=True),
    sa.Column("model", _text(NAME_LENGTH), primary_key=True),
    sa.Column("requests", sa.BigInteger, nullable=False),
    sa.Column("prompt_tokens", sa.BigInteger, nullable=False),
    sa.Column("completion_tokens", sa.BigInteger, nullable=False),
    sa.Column("cached_tokens", sa.BigInteger, nullable=False),
    sa.Index("ix_usage_daily_tenant_day", "tenant", "day"),
)
"""What replicas of versions before 0006 count in. Nothing reads it: their audit logs say the same."""

usage = sa.Table(
    "usage",
    metadata,
    sa.Column("day", sa.String(10), primary_key=True),
    *(sa.Column(name, _text(NAME_LENGTH), primary_key=True) for name in ("tenant", "key", "model", "user", "agent")),
    *(sa.Column(name, _text(64), primary_key=True) for name in ("operation", "currency", "writer")),
    *(sa.Column(name, sa.BigInteger, nullable=False) for name in ("requests", "prompt_tokens", "completion_tokens", "cached_tokens")),
    *(sa.Column(name, sa.BigInteger, nullable=False) for name in ("reasoning_tokens", "cost", "unknown")),
    sa.Index("ix_usage_tenant_day", "tenant", "day"),
    sa.Index("ix_usage_writer", "writer"),
)
"""What was used, summed from the audit logs. writer: whose log says so; empty for what versions before counted in memory."""

usage_positions = sa.Table(
    "usage_positions",
    metadata,
    sa.Column("writer", _text(64), primary_key=True),
    *(sa.Column(name, sa.BigInteger, nullable=False) for name in ("segment", "offset", "seq")),
    sa.Column("head", sa.String(64), nullable=False),
)
"""Up to where the log of each writer is counted in `usage`, written in the same transactions."""

usage_sessions = sa.Table(
    "usage_sessions",
    metadata,
    sa.Column("day", sa.String(10), primary_key=True),
    *(sa.Column(name, _text(NAME_LENGTH), primary_key=True) for name in ("tenant", "session")),
    sa.Column("currency", _text(64), primary_key=True),
    *(sa.Column(name, sa.Text, nullable=False) for name in ("key", "user", "agent")),
    sa.Column("last", sa.Double, nullable=False, index=True),
    *(sa.Column(name, sa.BigInteger, nullable=False) for name in ("requests", "prompt_tokens", "completion_tokens", "cached_tokens")),
    *(sa.Column(name, sa.BigInteger, nullable=False) for name in ("reasoning_tokens", "cost", "unknown")),
)
"""What sessions used lately. Bounded: old ones are deleted, their usage stays in `usage`."""

usage_engines = sa.Table(
    "usage_engines",
    metadata,
    sa.Column("day", sa.String(10), primary_key=True),
    sa.Column("engine", _text(NAME_LENGTH), primary_key=True),
    *(sa.Column(name, sa.BigInteger, nullable=False) for name in ("requests", "prefill_us", "decode_us")),
)
"""How long requests held engines that have a rate."""

deliveries = sa.Table(
    "deliveries",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    *(sa.Column(name, sa.Text, nullable=False) for name in ("webhook", "event", "body")),
    sa.Column("created", sa.Double, nullable=False, index=True),
    sa.Column("due", sa.Double, nullable=False),
    sa.Column("keep", sa.Double, nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("code", sa.Integer, nullable=False),
    sa.Column("error", sa.Text, nullable=False),
    sa.Index("ix_deliveries_status_due", "status", "due"),
)
"""The queue of webhooks, and how the last ones went."""

limit_windows = sa.Table(
    "limit_windows",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("limit_name", sa.Text, nullable=False),
    sa.Column("amount", sa.Text, nullable=False),
    sa.Column("scope", sa.Text, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("expires", sa.Double, nullable=False, index=True),
)
"""What is used of budgets and long rates. id: a hash of limit, amount and scope (the key of its bucket, as JSON)."""
PLACE_LENGTH = 200
"""Characters of a scope in the index of PostgreSQL, whose entries may have 2.7 KB: a name alone may take more."""
LIMIT_INDEXES = {"sqlite": "ix_limit_windows_place", "postgresql": "ix_limit_windows_prefix"}
"""Those of `limit_windows` that are not the same on both databases: the migration 0020 makes them."""

approvals = sa.Table(
    "approvals",
    metadata,
    sa.Column("id", _text(64), primary_key=True),
    sa.Column("tenant", _text(NAME_LENGTH), nullable=False),
    sa.Column("principal", sa.String(64), nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("form", sa.String(16), nullable=False),
    *(sa.Column(name, sa.Text, nullable=False) for name in ("guardrail", "model", "operation", "request_id")),
    sa.Column("requester", sa.JSON, nullable=False),
    sa.Column("request", sa.String(64), nullable=False),
    sa.Column("tools", sa.JSON, nullable=False),
    sa.Column("approvers", sa.JSON, nullable=False),
    sa.Column("created", sa.Double, nullable=False),
    sa.Column("expires", sa.Double, nullable=False),
    sa.Column("decided", sa.Double),
    sa.Column("decider", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("proof", sa.String(64), nullable=False),
    sa.Column("used", sa.Double),
    sa.Column("size", sa.BigInteger, nullable=False),
    sa.Column("sealed", sa.LargeBinary),
    sa.Index("ix_approvals_tenant_id", "tenant", "id"),
    sa.Index("ix_approvals_principal_state", "principal", "state"),
    sa.Index("ix_approvals_state_id", "state", "id"),
    sa.Index("ix_approvals_expires_size", "expires", "size"),
)
"""Answers and requests that wait for a decision, or had one. sealed: the calls and the answer, encrypted, until they are taken or over."""

audit_keys = sa.Table(
    "audit_keys",
    metadata,
    sa.Column("id", _text(64), primary_key=True),
    sa.Column("tenant", _text(NAME_LENGTH), nullable=False),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("master", sa.String(64), nullable=False),
    sa.Column("wrapped", sa.Text, nullable=False),
    sa.Column("created", sa.Double, nullable=False),
    sa.Column("ended", sa.Double),
    sa.UniqueConstraint("tenant", "version", name="uq_audit_keys_tenant_version"),
)
"""Data keys of the audit log, wrapped by a master key. wrapped: empty once the key was shredded; the row says that it was there."""

kept_answers = sa.Table(
    "kept_answers",
    metadata,
    sa.Column("id", _text(64), primary_key=True),
    sa.Column("tenant", _text(NAME_LENGTH), nullable=False),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("model", sa.Text, nullable=False),
    sa.Column("created", sa.Double, nullable=False),
    sa.Column("expires", sa.Double, nullable=False, index=True),
    sa.Column("size", sa.BigInteger, nullable=False),
    sa.Column("sealed", sa.LargeBinary, nullable=False),
    sa.Index("ix_kept_answers_tenant_expires_size", "tenant", "expires", "size"),
)
"""Answers that later requests go on with. sealed: the answer and its conversation, encrypted with a key of the tenant."""

files = sa.Table(
    "files",
    metadata,
    sa.Column("id", _text(64), primary_key=True),
    sa.Column("tenant", _text(NAME_LENGTH), nullable=False),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("purpose", sa.String(32), nullable=False),
    sa.Column("size", sa.BigInteger, nullable=False),
    sa.Column("key", sa.String(64), nullable=False),
    sa.Column("created", sa.Double, nullable=False),
    sa.Column("expires", sa.Double, nullable=False, index=True),
    sa.Column("caller", sa.Text, nullable=False, server_default=""),
    sa.Index("ix_files_tenant_id", "tenant", "id"),
)
"""Files of clients; what is in them is encrypted, in a directory. key: the data key that encrypted it. owner: for the audit log. caller:
whom it belongs to within the tenant (gateway.core.conversations.owner_of), "" where nobody, as where an earlier version wrote the row."""

batches = sa.Table(
    "batches",
    metadata,
    sa.Column("id", _text(64), primary_key=True),
    sa.Column("tenant", _text(NAME_LENGTH), nullable=False),
    sa.Column("state", sa.String(16), nullable=False, index=True),
    sa.Column("input", sa.String(64), nullable=False),
    sa.Column("created", sa.Double, nullable=False),
    sa.Column("expires", sa.Double, nullable=False),
    sa.Column("cancels", sa.Boolean, nullable=False),
    sa.Column("holder", sa.Text, nullable=False),
    sa.Column("fence", sa.BigInteger, nullable=False),
    sa.Column("leased", sa.Double, nullable=False),
    *(sa.Column(name, sa.BigInteger, nullable=False) for name in ("total", "completed", "failed", "repeated", "unknown")),
    sa.Column("told", sa.JSON, nullable=False),
    sa.Column("caller", sa.Text, nullable=False, server_default=""),
    sa.Index("ix_batches_tenant_id", "tenant", "id"),
)
"""Batches. leased: until when its holder has it; fence: grows with each holder. told: everything that is only shown (endpoint, creator,
moments, errors, files of results). caller: as of files."""

batch_lines = sa.Table(
    "batch_lines",
    metadata,
    sa.Column("batch", _text(64), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("sealed", sa.LargeBinary),
)
"""Lines that were begun: `begun` before one is sent to an engine, then `done` or `failed` with what came of it, encrypted. They go when the
files of results are written."""

jobs = sa.Table(
    "jobs",
    metadata,
    sa.Column("id", _text(64), primary_key=True),
    sa.Column("tenant", _text(NAME_LENGTH), nullable=False),
    sa.Column("kind", sa.String(32), nullable=False),
    sa.Column("state", sa.String(16), nullable=False, index=True),
    sa.Column("replica", sa.Text, nullable=False),
    sa.Column("schedule", _text(NAME_LENGTH), nullable=False),
    *(sa.Column(name, sa.Double, nullable=False) for name in ("created", "due")),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("cancels", sa.Boolean, nullable=False),
    sa.Column("holder", sa.Text, nullable=False),
    sa.Column("fence", sa.BigInteger, nullable=False),
    sa.Column("leased", sa.Double, nullable=False),
    sa.Column("told", sa.JSON, nullable=False),
    sa.Index("ix_jobs_tenant_id", "tenant", "id"),
)
"""Jobs of operators. leased, fence, told: as of batches."""

job_schedules = sa.Table(
    "job_schedules",
    metadata,
    sa.Column("tenant", _text(NAME_LENGTH), primary_key=True),
    sa.Column("name", _text(NAME_LENGTH), primary_key=True),
    sa.Column("next", sa.Double, nullable=False, index=True),
    sa.Column("created", sa.Double, nullable=False),
    sa.Column("told", sa.JSON, nullable=False),
)

changes = sa.Table(
    "changes",
    metadata,
    sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("action", sa.String(16), nullable=False),
    sa.Column("time", sa.Double, nullable=False),
)

counters = sa.Table(
    "counters",
    metadata,
    sa.Column("name", sa.String(32), primary_key=True),
    sa.Column("value", sa.BigInteger, nullable=False),
)
"""One row, `changes`: the newest sequence number. Its lock orders the writers, so numbers are committed in order."""

replicas = sa.Table(
    "replicas",
    metadata,
    sa.Column("id", _text(NAME_LENGTH), primary_key=True),
    sa.Column("incarnation", _text(NAME_LENGTH), primary_key=True),
    sa.Column("host", sa.Text, nullable=False),
    sa.Column("data", sa.Text, nullable=False),
    sa.Column("admin", sa.Text, nullable=False),
    sa.Column("version", sa.Text, nullable=False),
    sa.Column("workers", sa.Integer, nullable=False),
    sa.Column("started", sa.Double, nullable=False),
    sa.Column("seen", sa.Double, nullable=False),
    sa.Column("skew", sa.Double, nullable=False),
)
"""Processes that serve, or served until lately. Two rows with one id that are both seen again and again: two machines have the same id."""

leases = sa.Table(
    "leases",
    metadata,
    sa.Column("name", _text(NAME_LENGTH), primary_key=True),
    sa.Column("holder", sa.Text, nullable=False),
    sa.Column("fence", sa.BigInteger, nullable=False),
    sa.Column("expires", sa.Double, nullable=False),
    sa.Column("done", sa.Double, nullable=False),
)
"""Who does a job that must be done once. `fence` grows with each holder; `done`: when the job was last finished. A row is never deleted, so
that a fence is never used again."""

shared_models = sa.Table(
    "shared_models",
    metadata,
    sa.Column("name", _text(NAME_LENGTH), primary_key=True),
    sa.Column("revision", sa.BigInteger, nullable=False),
    sa.Column("digest", sa.String(64), nullable=False),
    sa.Column("files", sa.JSON, nullable=False),
    sa.Column("removed", sa.Boolean, nullable=False),
    sa.Column("changed", sa.Double, nullable=False),
)
"""Model files as all replicas are to have them. One that was deleted stays as `removed` while a replica may still have a copy."""

model_copies = sa.Table(
    "model_copies",
    metadata,
    sa.Column("name", _text(NAME_LENGTH), primary_key=True),
    sa.Column("replica", _text(NAME_LENGTH), primary_key=True),
    sa.Column("digest", sa.String(64), nullable=False),
    sa.Column("address", sa.Text, nullable=False),
    sa.Column("seen", sa.Double, nullable=False),
)
"""What each replica has of them, and where it gives it to others; seen: when it last said so. An S3-compatible store has rows like a
replica's, under its name (`s3://...`)."""

model_uses = sa.Table(
    "model_uses",
    metadata,
    sa.Column("replica", _text(NAME_LENGTH), primary_key=True),
    sa.Column("holder", sa.Text, nullable=False),
    sa.Column("uses", sa.JSON, nullable=False),
    sa.Column("seen", sa.Double, nullable=False),
)
"""Which models of the directory that replicas share each of them uses, as [engine, path, since when]; seen: when it last said so."""

directory_models = sa.Table(
    "directory_models",
    metadata,
    sa.Column("path", _text(512), primary_key=True),
    sa.Column("files", sa.JSON, nullable=False),
    sa.Column("earlier", sa.JSON(none_as_null=True)),
    sa.Column("replica", sa.String(255), nullable=False),
    sa.Column("noted", sa.Double, nullable=False),
)
"""What each model of that directory consists of, with checksums; earlier: of the one that is being replaced, so that both are right."""

facts = sa.Table(
    "facts",
    metadata,
    sa.Column("name", sa.String(32), primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
)
"""What the database knows about itself. `pepper`: an HMAC that recognises the pepper by which its keys were hashed."""

idempotency = sa.Table(
    "idempotency",
    metadata,
    sa.Column("key", _text(NAME_LENGTH), primary_key=True),
    sa.Column("actor", _text(NAME_LENGTH), primary_key=True),
    sa.Column("route", _text(NAME_LENGTH), primary_key=True),
    sa.Column("fingerprint", sa.Text, nullable=False),
    sa.Column("status", sa.Integer, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("expires", sa.Double, nullable=False, index=True),
)
