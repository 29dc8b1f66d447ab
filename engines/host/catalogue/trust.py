"""Whether a model is signed by somebody whose key the configuration names: when it arrives, and before each load (docs/models.md).

A folder has its signature in `model.sig`, a GGUF file beside it in `NAME.sig`; a file may also lie in a signed folder. The format is read
by `gateway.wire.model_signatures`. Checksums that are certain are not computed again. Blocks; run it in a thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric import ec

from engines.host.catalogue import noted, refusals
from engines.host.catalogue.checksums import Checksums, digest
from engines.host.catalogue.noted import Notes
from engines.host.catalogue.scan import File
from engines.host.catalogue.shelf import file_at
from gateway.core.modelfiles import SIGNATURE, kind_of, signature_of, split_name, split_of
from gateway.core.specs.fleet import ModelSignaturesSpec
from gateway.wire.model_signatures import MAX_BUNDLE, Unsigned, compare, here, key_of, signed

ALONE: Final = ".gguf"
"""Files of which an engine reads nothing but themselves, so a signature of their own says all. Others are signed with their folder."""
ABOVE: Final = 4
"""Folders above a file in which a signature is looked for."""
MAX_KEY: Final = 64 * 1024
GoOn = Callable[[], bool]
Stamp = tuple[str, int, int, int, int, int]


class Untrusted(Exception):
    """The model is refused. The text names it, the keys that were expected and what is wrong."""


@dataclass(frozen=True, slots=True)
class Seal:
    """What a model was when it was found to be signed: every file and folder of it."""

    model: str
    real: str
    stamps: tuple[Stamp, ...]

    def whole(self) -> bool:
        """Whether nothing of it was written, added, taken away or exchanged since. Blocks."""
        try:
            return os.path.realpath(self.model) == self.real and self.stamps == _stamps(stamp[0] for stamp in self.stamps)
        except OSError:
            return False


class Trust:
    """settings: those in force, whose keys are paths that can be opened. checksums: of this machine's models."""

    def __init__(self, settings: Callable[[], ModelSignaturesSpec], checksums: Checksums) -> None:
        self._settings, self._checksums = settings, checksums
        self.notes: Notes | None = None
        """What the store has noted of a registry that replicas share."""

    def arriving(self, name: str, path: Path, signature: bytes | None, go_on: GoOn, known: str | None = None) -> None:
        """A model that is not in the registry yet. signature: of a file; a folder has its own. known: the SHA-256 of the file.

        Raises Untrusted, OSError, Stopped.
        """
        settings = self._settings()
        if not settings.keys:
            return
        if path.is_dir():
            bundle = _bundle(path / SIGNATURE)
        else:
            bundle = signature if name.endswith(ALONE) else None
        if bundle is None:
            return self._unsigned(settings, name)
        try:
            present = here(path, path / SIGNATURE)
        except Unsigned as error:
            raise _untrusted(name, settings, str(error)) from None
        self._compare(settings, name, bundle, present, lambda file: known or digest(file, go_on))

    def lacking(self, name: str, files: Collection[str]) -> str | None:
        """Why a model whose files have these names would be refused before one is looked at, or None."""
        signatures = [SIGNATURE] if kind_of(name) == "folder" else [signature_of(file) for file in files if file.endswith(ALONE)] or [""]
        if not self._settings().required or all(one in files for one in signatures):
            return None
        try:
            self._unsigned(self._settings(), name)
        except Untrusted as error:
            return str(error)
        return None

    def loading(self, model: str | None, options: Mapping[str, Any], go_on: GoOn) -> Seal | None:
        """What an engine is about to load. options: its own; files that they name lie beside the model's. None: nothing is asked of it.

        Raises Untrusted, OSError, Stopped.
        """
        paths = self._verified(model, options, go_on)
        if model is not None and self.notes is not None and os.path.exists(model):
            real = Path(os.path.realpath(model))
            reads = iter((real,)) if real.is_dir() else _read_with(real, options)
            try:
                paths += noted.loading(self.notes, reads, self._checksums, go_on)
            except noted.Altered as error:
                raise Untrusted(str(error)) from None
        if model is None or not paths:
            return None
        return Seal(model, os.path.realpath(model), _stamps(dict.fromkeys(map(str, paths))))

    def sending(self, paths: Iterable[Path], go_on: GoOn) -> None:
        """Files or a folder that another machine is to get. Raises GatehouseError, OSError, Stopped."""
        if self.notes is not None:
            try:
                noted.loading(self.notes, (Path(os.path.realpath(path)) for path in paths), self._checksums, go_on)
            except noted.Altered as error:
                raise refusals.conflict("model_invalid", f"{str(error)[0].upper()}{str(error)[1:]}.") from None

    def _verified(self, model: str | None, options: Mapping[str, Any], go_on: GoOn) -> list[Path]:
        """All that was compared with signatures."""
        settings = self._settings()
        if not settings.keys:
            return []
        if model is None or not os.path.exists(model):
            if settings.required:
                raise Untrusted(f"the model {model!r} is no file of this machine, so its signature cannot be verified")
            return []
        real = Path(os.path.realpath(model))
        if real.is_dir():
            return self._folder(settings, real, go_on, None)
        return [path for one in _read_with(real, options) for path in self._file(settings, one, go_on)]

    def _file(self, settings: ModelSignaturesSpec, path: Path, go_on: GoOn) -> list[Path]:
        if path.is_symlink():
            raise _untrusted(path.name, settings, "it is a link")
        beside = path.with_name(signature_of(path.name))
        if path.name.endswith(ALONE) and (bundle := _bundle(beside)) is not None:
            self._agree(settings, path.name, bundle, {".": path}, go_on)
            return [path, beside]
        for folder in path.parents[:ABOVE]:
            if os.path.lexists(folder / SIGNATURE):
                return self._folder(settings, folder, go_on, path if path.name.endswith(ALONE) else None)
        self._unsigned(settings, path.name)
        return []

    def _folder(self, settings: ModelSignaturesSpec, folder: Path, go_on: GoOn, only: Path | None) -> list[Path]:
        """only: the one file of it that is read."""
        name = folder.name if only is None else only.relative_to(folder.parent).as_posix()
        bundle = _bundle(folder / SIGNATURE)
        if bundle is None:
            self._unsigned(settings, name)
            return []
        if only is not None:
            self._agree(settings, name, bundle, {only.relative_to(folder).as_posix(): only}, go_on, whole=False)
            return [only, folder / SIGNATURE]
        try:
            present = here(folder, folder / SIGNATURE)
        except Unsigned as error:
            raise _untrusted(name, settings, str(error)) from None
        self._agree(settings, name, bundle, present, go_on)
        return [*present.values(), folder / SIGNATURE, *_folders(folder)]

    def _agree(
        self, settings: ModelSignaturesSpec, name: str, bundle: bytes, present: dict[str, Path], go_on: GoOn, *, whole: bool = True
    ) -> None:
        fresh: list[tuple[File, str]] = []

        def sha256(path: Path) -> str:
            file = file_at(path)
            known = self._checksums.certain(file)
            if known is None:
                known = digest(path, go_on)
                fresh.append((file, known))
            return known

        try:
            self._compare(settings, name, bundle, present, sha256, whole=whole)
        finally:
            if fresh:
                self._checksums.put(fresh)

    def _compare(
        self,
        settings: ModelSignaturesSpec,
        name: str,
        bundle: bytes,
        present: dict[str, Path],
        sha256: Callable[[Path], str],
        *,
        whole: bool = True,
    ) -> None:
        wanted = _signed(settings, name, bundle)
        if not whole:
            wanted = {path: told for path, told in wanted.items() if path in present}
        try:
            compare(wanted, present, sha256)
        except Unsigned as error:
            raise _untrusted(name, settings, str(error)) from None

    @staticmethod
    def _unsigned(settings: ModelSignaturesSpec, name: str) -> None:
        if settings.required:
            where = (
                f"{signature_of(name.rpartition('/')[2])} beside it"
                if name.endswith(ALONE)
                else f"{SIGNATURE} in a folder with all it needs"
            )
            raise _untrusted(name, settings, f"it has no signature ({where})")


def keys_of(settings: ModelSignaturesSpec) -> list[ec.EllipticCurvePublicKey]:
    """Raises Unsigned, whose text begins with the file."""
    found = []
    for path in settings.keys:
        try:
            with open(path, "rb") as file:
                found.append(key_of(file.read(MAX_KEY)))
        except OSError as error:
            raise Unsigned(f"{path}: {error.strerror}") from None
        except Unsigned as error:
            raise Unsigned(f"{path}: {error}") from None
    return found


def _signed(settings: ModelSignaturesSpec, name: str, bundle: bytes) -> dict[str, str]:
    """What one of the keys has signed. The keys' files are read each time, so one that is taken away is of no use from then on."""
    reasons = []
    try:
        keys = keys_of(settings)
    except Unsigned as error:
        raise _untrusted(name, settings, f"a key cannot be used: {error}") from None
    for key in keys:
        try:
            return signed(bundle, key)
        except Unsigned as error:
            reasons.append(str(error))
    raise _untrusted(name, settings, reasons[0] if len(set(reasons)) == 1 else "its signature is of none of these keys, or was altered")


def _untrusted(name: str, settings: ModelSignaturesSpec, why: str) -> Untrusted:
    keys = ", ".join(os.path.basename(key) for key in settings.keys)
    return Untrusted(f"the model {name!r} is not signed as model_signatures asks for (keys: {keys}): {why}")


def _bundle(path: Path) -> bytes | None:
    """A signature, or None if there is none. A link is one that cannot be read. Raises Untrusted."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            return file.read(MAX_BUNDLE + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Untrusted(f"the model's signature {path.name!r} cannot be read: {error.strerror}") from None


def _read_with(path: Path, options: Mapping[str, Any]) -> Iterator[Path]:
    """All files that an engine reads with a model's file: the parts of a split one, and what its options name beside it."""
    split = split_of(path.name)
    yield from [path] if split is None else [path.with_name(split_name(split[0], part, split[2])) for part in range(1, split[2] + 1)]
    for name in _named(options):
        yield Path(os.path.realpath(path.with_name(name)))


def _named(options: Any) -> Iterator[str]:
    """Every `file` of an engine's options: drafts and adapters."""
    if isinstance(options, Mapping):
        for key, value in options.items():
            if key == "file" and isinstance(value, str):
                yield value
            else:
                yield from _named(value)
    elif isinstance(options, list | tuple):
        for value in options:
            yield from _named(value)


def _folders(folder: Path) -> Iterator[Path]:
    for at, _, _ in os.walk(folder):
        yield Path(at)


def _stamps(paths: Iterable[str]) -> tuple[Stamp, ...]:
    """Raises OSError. A file with several names changes when one is made or goes, so the change time counts for one name alone."""
    found = []
    for path in paths:
        status = os.lstat(path)
        alone = status.st_nlink == 1 or os.path.isdir(path)
        found.append((path, status.st_ino, status.st_dev, status.st_size, status.st_mtime_ns, status.st_ctime_ns if alone else 0))
    return tuple(found)
