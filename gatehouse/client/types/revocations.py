"""Types of the operations below /revocations. Made by scripts/generate_client.py."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict


class RevocationDryRun(TypedDict):
    result: RevocationView
    diff: list[dict[str, Any]]
    dry_run: NotRequired[bool]


class RevocationPage(TypedDict):
    items: list[RevocationView]
    cursor: NotRequired[str | None]


class RevocationSettings(TypedDict):
    """type: `token` (by `issuer` and `value`, its `jti`), `subject` (by `issuer` and `value`), `issuer` (all its tokens) or `all`.
    before: all but the first refuse what was issued until then; by default until now. expires_at: when it is not needed any more; by
    default once all such tokens have expired. issuer: as `iss` has it; of logins by name and password, the directory's name.
    """

    type: Literal["all", "issuer", "subject", "token"]
    issuer: NotRequired[str]
    value: NotRequired[str]
    before: NotRequired[str | float | None]
    expires_at: NotRequired[str | float | None]
    reason: NotRequired[str]


class RevocationView(TypedDict):
    id: str
    type: str
    issuer: str
    value: str
    before: str
    expires_at: str
    reason: str
    created_at: str
    created_by: str
