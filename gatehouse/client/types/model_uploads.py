"""Types of the operations below /model_uploads. Made by scripts/generate_client.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NotRequired, TypedDict

if TYPE_CHECKING:
    from gatehouse.client.types.model_copies import ResourceChange


class UploadDryRun(TypedDict):
    dry_run: bool
    diff: list[ResourceChange]
    result: UploadView


class UploadList(TypedDict):
    items: list[UploadView]
    cursor: NotRequired[str | None]


class UploadSettings(TypedDict):
    """An upload to come. size: bytes that will be sent. sha256: of these bytes. replace: a file of this name may be overwritten.
    signature: of a file, a bundle of OpenSSF Model Signing; a folder has its own in `model.sig`.
    """

    name: str
    size: int
    sha256: str
    replace: NotRequired[bool]
    signature: NotRequired[str | None]


class UploadView(TypedDict):
    """An upload that is not complete. offset: bytes that are there. format: `tar` for a model's folder."""

    id: str
    name: str
    format: Literal["file", "tar"]
    size: int
    sha256: str
    replace: bool
    signature: str | None
    offset: int
    state: Literal["receiving", "verifying"]
    created_at: str
    created_by: str
    expires_at: str
