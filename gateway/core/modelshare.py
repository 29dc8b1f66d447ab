"""Model files that replicas on one store share: which models there are, which replica has which, and the port by which a replica's library
takes part (`Sharing`)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, Protocol

import msgspec
from msgspec import Meta

from gateway.core.errors import RequestError
from gateway.core.modelfiles import FOLDER_FILES, MAX_UPLOAD, Sha256, UploadSettings, kind_of, member_problem, model_of, signature_of

PIECE: Final = 1024 * 1024
"""The most bytes of a file in one answer of a replica."""
DOMAIN: Final = "replicas.gatehouse"
"""The domain of the names in replicas' certificates. Nobody can resolve them, and no other authority certifies them."""
BUCKET: Final = "s3://"
"""Prefix of the name of a store of model files, in lists where replicas are named by their ids."""
UNREACHED: Final = "-"
"""The address of a replica that has a model but does not give it to others."""
Digest = Sha256


class SharedFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """path: the file's name; in a model's folder, its path there."""

    path: Annotated[str, Meta(max_length=512)]
    size: Annotated[int, Meta(ge=0, le=MAX_UPLOAD)]
    sha256: Sha256


class Copy(msgspec.Struct, frozen=True, kw_only=True):
    """A replica, or a store of model files, that has or had a model. address: where others get it; "" while they cannot. away: it has not
    been heard of for long. seen: when it last was."""

    replica: str
    digest: str
    address: str
    away: bool = False
    seen: float = 0.0


class SharedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model that all replicas should have. digest: see `digest_of`. revision: grows with every change. removed: it was deleted, so
    replicas that have it delete it too."""

    name: str
    revision: int
    digest: str
    files: tuple[SharedFile, ...]
    removed: bool
    changed: float
    copies: tuple[Copy, ...] = ()

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    def copy_of(self, replica: str) -> Copy | None:
        return next((copy for copy in self.copies if copy.replica == replica), None)


class NotedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model of a shared registry, as the store knows it. path: of its file or folder there. versions: its files (those of a folder by
    their paths in it); two versions while the model is being replaced, either of which is right."""

    path: str
    versions: tuple[tuple[SharedFile, ...], ...]


class LocalModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model of this machine's registry. files: None as long as a checksum is not known. version: as for ETags."""

    name: str
    version: str
    files: tuple[SharedFile, ...] | None
    paths: tuple[tuple[str, tuple[int, int, int]], ...]
    """Where its files are, in their order, with their stamps (engines.host.catalogue.scan.File)."""

    @property
    def digest(self) -> str | None:
        return None if self.files is None else digest_of(self.name, self.files)


def digest_of(name: str, files: Iterable[SharedFile]) -> Digest:
    """Identifies a model with this content: the SHA-256 over its name and its files' paths, sizes and checksums."""
    told = sorted((file.path, file.size, file.sha256) for file in files)
    return hashlib.sha256(msgspec.json.encode((name, told))).hexdigest()


def problem_of(name: str, files: tuple[SharedFile, ...]) -> str | None:
    """Why a model cannot be shared, or None. Its name and its files must be valid for an upload."""
    kind = _kind(name)
    if not kind:
        return "its name is none that can be uploaded"
    folder = kind == "folder"
    if not 0 < len(files) <= FOLDER_FILES or len({file.path for file in files}) != len(files):
        return "it has no files, too many, or one twice"
    for file in files:
        if folder and (problem := member_problem(file.path)) is not None:
            return f"{file.path!r} {problem}"
        path = file.path.removesuffix(signature_of(""))
        if not folder and ("/" in path or _kind(path) != "file" or model_of(path) != name):
            return f"{file.path!r} is no file of it"
    return None


def _kind(name: str) -> str:
    try:
        return kind_of(name)
    except RequestError:
        return ""


class Sharing(Protocol):
    """How the library of model files announces changes that people make. Raises GatehouseErrors."""

    async def admit(self, settings: UploadSettings) -> None:
        """Refuses a name that another replica's model has (409), and any while the store does not answer (503)."""
        ...

    async def added(self, settings: UploadSettings) -> None:
        """The model is in the registry of this machine now."""
        ...

    async def removing(self, name: str) -> None:
        """The model is about to be deleted here, and then everywhere. A 503 forbids it."""
        ...

    async def remove_elsewhere(self, name: str, *, dry_run: bool) -> dict[str, Any] | None:
        """Deletes a model that only other replicas have; what it was, as `ModelFiles.model` shows one. None: nobody has it."""
        ...


class Alone:
    """Nothing is shared."""

    async def admit(self, settings: UploadSettings) -> None:
        return None

    async def added(self, settings: UploadSettings) -> None:
        return None

    async def removing(self, name: str) -> None:
        return None

    async def remove_elsewhere(self, name: str, *, dry_run: bool) -> dict[str, Any] | None:
        return None


class Turn(NamedTuple):
    """A replica's turn to move files in a shared registry. moment: when it began, by the store's clock. sure: raises LeaseLost once another
    replica may have the turn."""

    moment: float
    sure: Callable[[], None]


class Neighbours(Protocol):
    """The other replicas that have their registry in the same directory, as the library of model files asks about them."""

    @property
    def mark(self) -> str:
        """What the names of this replica's temporary files there begin with."""
        ...

    async def begin(self) -> None:
        """Raises ConfigError where it is not the others' directory."""
        ...

    def turn(self) -> AbstractAsyncContextManager[Turn | None]:
        """Waits for a turn in which no other replica moves files. None: there are no others. Raises GatehouseError, with 503 if it takes
        too long."""
        ...

    async def look(self) -> None:
        """Brings `uses` up to date. Raises StoreUnavailable."""
        ...

    def uses(self) -> list[tuple[str, str]]:
        """(REPLICA/ENGINE, the absolute path of its model here)"""
        ...

    def describe(self, name: str, source: Path, go_on: Callable[[], bool]) -> NotedModel | None:
        """The files of a model that is to be added under this name, with their checksums. None: nobody needs them. Blocks. Raises OSError,
        Stopped."""
        ...

    def adding(self, model: NotedModel | None) -> AbstractAsyncContextManager[None]:
        """A model is added within it, or an exception is raised. Raises StoreUnavailable."""
        ...

    async def removed(self, paths: Iterable[Path]) -> None:
        """These files and folders were deleted."""
        ...


class NoNeighbours:
    """The registry is this replica's own."""

    mark = ""

    async def begin(self) -> None:
        return None

    def turn(self) -> AbstractAsyncContextManager[Turn | None]:
        return nullcontext()

    async def look(self) -> None:
        return None

    def uses(self) -> list[tuple[str, str]]:
        return []

    def describe(self, name: str, source: Path, go_on: Callable[[], bool]) -> NotedModel | None:
        return None

    def adding(self, model: NotedModel | None) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    async def removed(self, paths: Iterable[Path]) -> None:
        return None


class ModelCopies(Protocol):
    """What replicas have of the shared models, for operators."""

    async def view(self) -> list[dict[str, Any]]: ...

    def store(self) -> dict[str, Any] | None:
        """Where model files are put beside the replicas, and whether that works. None: nowhere."""
        ...

    async def forget(self, replica: str, *, dry_run: bool = False) -> int:
        """Forgets what an absent replica had, and returns how many models. Raises NotFound; 409 if the replica is there."""
        ...
