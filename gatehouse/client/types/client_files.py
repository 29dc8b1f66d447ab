"""Types of the operations below /client_files. Made by scripts/generate_client.py."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict


class ClientFileDryRun(TypedDict):
    result: ClientFileView
    diff: list[dict[str, Any]]
    dry_run: NotRequired[bool]


class ClientFilePage(TypedDict):
    items: list[ClientFileView]
    cursor: NotRequired[str | None]


class ClientFileView(TypedDict):
    """owner: the credential that sent it, or whose batch made it, as `tenant/id`. key: of the data key that encrypts it; "": none."""

    id: str
    tenant: str
    owner: str
    name: str
    purpose: str
    bytes: int
    key: str
    created_at: str
    expires_at: str
