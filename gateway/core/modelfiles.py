"""Names of model files, uploads and files in a model's folder (strict: all others are refused), and `ModelFiles`, the port to them.

A name that ends in .gguf or .onnx is a file; every other name is a folder (an ONNX model with its tokenizer and configuration, or weights
for a job that converts them), which travels as a tar archive.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Annotated, Any, Final, Literal, Protocol

from msgspec import Meta, Struct

from gateway.core.errors import RequestError

PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,119}$"
FILE_SUFFIXES: Final = (".gguf", ".onnx")
MAX_UPLOAD: Final = 1 << 42
FOLDER_FILES: Final = 1000
"""Most files in a model's folder."""
FOLDER_DEPTH: Final = 4
WEIGHTS: Final = ".safetensors"
CONFIG: Final = "config.json"
"""A folder with this and `WEIGHTS`, and without a graph, is one that jobs convert (engines.host.catalogue.weights)."""
FOLDER_SUFFIXES: Final = frozenset(
    {".onnx", ".onnx_data", ".data", ".pb", ".weight", ".json", ".jsonl", ".txt", ".model", ".jinja", ".md", WEIGHTS}
)
"""The files a model's folder may hold. No code and no pickles: nothing in a model is ever executed."""
SIGNATURE: Final = "model.sig"
"""The signature of a model's folder, in it (OpenSSF Model Signing)."""
FOLDER_NAMES: Final = frozenset({"LICENSE", "NOTICE", "README", SIGNATURE})
_NAME: Final = re.compile(PATTERN)
_SPLIT: Final = re.compile(r"(?P<stem>.+)-(?P<part>\d{5})-of-(?P<count>\d{5})\.gguf")

UploadName = Annotated[str, Meta(pattern=PATTERN, description="NAME.gguf or NAME.onnx: a file. Other names: a folder, sent as a tar.")]
Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]

MAX_SIGNATURE: Final = 64 * 1024
Signature = Annotated[str, Meta(min_length=2, max_length=MAX_SIGNATURE)]


class UploadSettings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An upload to come. size: bytes that will be sent. sha256: of these bytes. replace: a file of this name may be overwritten.
    signature: of a file, a bundle of OpenSSF Model Signing; a folder has its own in `model.sig`."""

    name: UploadName
    size: Annotated[int, Meta(ge=1, le=MAX_UPLOAD)]
    sha256: Sha256
    replace: bool = False
    signature: Signature | None = None


def kind_of(name: str) -> Literal["file", "folder"]:
    """Whether a name is a file's or a folder's. Raises RequestError for an invalid name."""
    if not _NAME.fullmatch(name):
        raise RequestError("A name has 1 to 120 letters, digits or any of '._-' and begins with a letter or digit.", param="name")
    return "file" if name.endswith(FILE_SUFFIXES) else "folder"


def member_problem(path: str) -> str | None:
    """Why a file of a model's folder is refused, or None. `path` is relative, with slashes."""
    parts = path.split("/")
    if len(parts) > FOLDER_DEPTH:
        return f"lies more than {FOLDER_DEPTH} folders deep"
    if not all(_NAME.fullmatch(part) for part in parts):
        return "has a name that is not 1 to 120 letters, digits or any of '._-', beginning with a letter or digit"
    last = parts[-1]
    dot = last.rfind(".")
    if last not in FOLDER_NAMES and (dot < 0 or last[dot:].lower() not in FOLDER_SUFFIXES):
        return f"is of a kind that no model needs; a folder may hold {', '.join(sorted(FOLDER_SUFFIXES))}"
    return None


def signature_of(name: str) -> str:
    """The name of the signature of a file, which lies beside it."""
    return f"{name}.sig"


def split_of(name: str) -> tuple[str, int, int] | None:
    """(stem, number, count) of a part of a split GGUF model, `STEM-00001-of-00003.gguf`, or None."""
    found = _SPLIT.fullmatch(name)
    if found is None:
        return None
    part, count = int(found["part"]), int(found["count"])
    return (found["stem"], part, count) if 1 <= part <= count else None


def split_name(stem: str, part: int, count: int) -> str:
    """The name of a part; the first is number 1."""
    return f"{stem}-{part:05d}-of-{count:05d}.gguf"


def model_of(name: str) -> str:
    """The model that a file belongs to: the first part of a split model, otherwise the name itself."""
    split = split_of(name)
    return name if split is None else split_name(split[0], 1, split[2])


class ModelFiles(Protocol):
    """Model files on this machine and how new ones arrive: plain dictionaries, ready for JSON. Raises GatehouseErrors."""

    async def models(self) -> dict[str, Any]:
        """All models: {"items": as `model`, without their parts; "remarks": what was left out and why}."""
        ...

    async def model(self, name: str) -> dict[str, Any]:
        """One model: metadata, checksums as far as known, engines that use it, `version` for ETags. Raises NotFound."""
        ...

    async def checksum(self, name: str) -> dict[str, Any]:
        """As `model`, every checksum computed; reads all of its bytes."""
        ...

    async def remove(self, name: str, *, version: str | None, dry_run: bool) -> dict[str, Any]:
        """Deletes a model that no engine uses and returns it. version: deletes only this version."""
        ...

    def uploads(self) -> list[dict[str, Any]]: ...

    def upload(self, id: str) -> dict[str, Any]:
        """One upload: its declaration, `offset`, `state`. Raises NotFound."""
        ...

    async def begin(self, settings: UploadSettings, *, actor: str, dry_run: bool) -> dict[str, Any]: ...

    async def append(self, id: str, offset: int, length: int | None, parts: AsyncIterator[bytes]) -> dict[str, Any]:
        """Appends bytes from an offset on, `length` of them if known. Keeps the bytes that arrived if the rest does not come."""
        ...

    async def complete(self, id: str, *, dry_run: bool) -> dict[str, Any]:
        """Verifies an upload, adds it to the models and returns the model."""
        ...

    async def abandon(self, id: str, *, dry_run: bool) -> dict[str, Any]: ...
