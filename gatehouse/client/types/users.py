"""Types of the operations below /users. Made by scripts/generate_client.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NotRequired, TypedDict

if TYPE_CHECKING:
    from gatehouse.client.types.model_copies import ResourceChange


class UserDryRun(TypedDict):
    dry_run: bool
    diff: list[ResourceChange]
    result: UserView


class UserPage(TypedDict):
    items: list[UserView]
    cursor: str | None


class UserPatch(TypedDict):
    name: NotRequired[str]
    display_name: NotRequired[str | None]
    email: NotRequired[str | None]
    description: NotRequired[str | None]
    groups: NotRequired[list[str] | None]
    roles: NotRequired[list[str] | None]


class UserSettings(TypedDict):
    """name: NAME@TENANT. groups, roles: given here, beside those that the login says."""

    name: str
    display_name: NotRequired[str]
    email: NotRequired[str]
    description: NotRequired[str]
    groups: NotRequired[list[str]]
    roles: NotRequired[list[str]]


class UserView(TypedDict):
    source: Literal["file", "store"]
    version: NotRequired[int | None]
    created_at: NotRequired[str | None]
    updated_at: NotRequired[str | None]
    updated_by: NotRequired[str | None]
    origin: str
    suspended: bool
    first_login: NotRequired[str | None]
    last_login: NotRequired[str | None]
    login_method: NotRequired[str | None]
    login_issuer: NotRequired[str | None]
    login_groups: NotRequired[list[str]]
    login_roles: NotRequired[list[str]]
    name: str
    display_name: NotRequired[str | None]
    email: NotRequired[str | None]
    description: NotRequired[str | None]
    groups: NotRequired[list[str] | None]
    roles: NotRequired[list[str] | None]
