"""Types of the operations below /endpoints. Made by scripts/generate_client.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, NotRequired, TypedDict

if TYPE_CHECKING:
    from gatehouse.client.types.status import EndpointView


class EndpointList(TypedDict):
    items: list[EndpointView]
    cursor: NotRequired[str | None]
