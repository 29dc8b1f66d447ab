"""Types of the operations below /model_files. Made by scripts/generate_client.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NotRequired, TypedDict

if TYPE_CHECKING:
    from gatehouse.client.types.model_copies import ResourceChange


class FileDryRun(TypedDict):
    dry_run: bool
    diff: list[ResourceChange]
    result: FileView


class FileList(TypedDict):
    """remarks: what was left out, and why."""

    items: list[FileView]
    remarks: list[str]
    cursor: NotRequired[str | None]


class FileView(TypedDict):
    """A model on disk. name: as an engine's `model` says it. source: `registry` (can be deleted), `directory`, `bundled`; `elsewhere`:
    it was deleted, and only other replicas had it (no runtime is known). problem: why it cannot be used. used_by: engines, as
    REPLICA/ENGINE those of other replicas. sha256: of the file, a split model's first part, a folder's graph. parts: when one is shown.
    """

    name: str
    runtime: str
    source: Literal["bundled", "directory", "elsewhere", "registry"]
    format: Literal["file", "folder", "split"]
    size: int
    files: int
    modified_at: str
    version: str
    sha256: NotRequired[str | None]
    problem: NotRequired[str | None]
    used_by: NotRequired[list[str]]
    architecture: NotRequired[str | None]
    title: NotRequired[str | None]
    task: NotRequired[str | None]
    parameters: NotRequired[int | None]
    quantisation: NotRequired[str | None]
    context: NotRequired[int | None]
    layers: NotRequired[int | None]
    chat_template: NotRequired[bool | None]
    opsets: NotRequired[dict[str, int] | None]
    inputs: NotRequired[list[PortView]]
    outputs: NotRequired[list[PortView]]
    parts: NotRequired[list[PartView] | None]


class PartView(TypedDict):
    """A file of a model. sha256: null until it was computed."""

    name: str
    size: int
    sha256: NotRequired[str | None]


class PortView(TypedDict):
    name: str
    type: str
    shape: list[int | str | None]
