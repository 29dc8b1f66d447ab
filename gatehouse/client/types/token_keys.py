"""Types of the operations below /token_keys. Made by scripts/generate_client.py."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict


class TokenKeyDryRun(TypedDict):
    result: TokenKeyPage
    diff: list[dict[str, Any]]
    dry_run: NotRequired[bool]


class TokenKeyPage(TypedDict):
    items: list[TokenKeyView]
    cursor: NotRequired[str | None]


class TokenKeyView(TypedDict):
    """id: the `kid`. state: `next` signs from `signs_from` on; `signing`; `former` tokens still count."""

    id: str
    state: Literal["former", "next", "signing"]
    created_at: str
    signs_from: str
