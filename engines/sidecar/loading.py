"""What the runtimes share in loading a model: the error, the checksum, the files that may be read and written.

Imports nothing heavy: the gateway's process reads the runtimes' options, which refer to this module.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

import msgspec

from gateway.core.modelfiles import FOLDER_FILES, FOLDER_SUFFIXES, split_of
from gateway.core.specs import Positive, Spec

DEFAULT_MAX_BODY: Final = 64 * 1024 * 1024
"""Largest request body in bytes; `options.max_body_bytes` overrides it."""
SHA256_EAGER_BYTES: Final = 256 * 1024 * 1024
"""Model files up to this size are hashed even when no checksum was configured."""
POOLING: Final = "1_Pooling/config.json"
"""How Sentence Transformers makes one vector of a text's: the only file that is read from a folder within that of a graph's file."""


class ShellOptions(Spec, frozen=True):
    """The `options` that every runtime has, as the shell acts on them.

    max_body_bytes: of one request. confine: restrict the process to its own files, if the kernel can (engines.confinement).
    """

    max_body_bytes: Positive = DEFAULT_MAX_BODY
    confine: bool = True


def shell_options(options: Mapping[str, Any]) -> ShellOptions:
    """The shell's part of a runtime's options, which have been checked. Raises LoadError."""
    try:
        return msgspec.convert({name: options[name] for name in ShellOptions.__struct_fields__ if name in options}, ShellOptions)
    except msgspec.ValidationError as error:
        raise LoadError("invalid_options", f"options: {error}") from None


class LoadError(Exception):
    """The model cannot be loaded. `code` is `model_invalid`, `checksum_mismatch`, `model_missing`, `insufficient_memory`..."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def readable(model: Path) -> Iterator[Path]:
    """The files that a sidecar may read of a model, links followed: its folder, or its file and what belongs to it (the other parts of a
    split GGUF file; the tokenizer, configuration and external data beside an ONNX file, and POOLING)."""
    yield _real(model)
    if model.is_dir():
        yield from (_real(path) for path in islice(model.rglob("*"), FOLDER_FILES) if path.is_symlink())
        return
    split = split_of(model.name)
    for path in _listed(model.parent):
        part = split_of(path.name)
        if (part is not None and split is not None and (part[0], part[2]) == (split[0], split[2])) or _goes_with(model, path):
            yield _real(path)
    if model.suffix == ".onnx":
        yield _real(model.parent / POOLING)


def named_beside(model: Path, options: Mapping[str, Any]) -> Iterator[Path]:
    """The files of the adapters and of the draft model that an engine's options name, in the model's folder; the options have been
    checked."""
    for adapter in options.get("adapters", ()):
        yield _real(model.with_name(Path(adapter["file"]).name))
    if draft := (options.get("speculation") or {}).get("draft"):
        yield from readable(model.with_name(Path(draft["file"]).name))


def _goes_with(model: Path, path: Path) -> bool:
    return model.suffix == ".onnx" != path.suffix and path.suffix in FOLDER_SUFFIXES and not path.name.startswith(".")


def cache_folder(state_dir: str, engine: str) -> Path:
    """Where a sidecar may keep files between starts. Each engine has a folder of its own, so that none can change another's."""
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", engine)[:40]
    return Path(state_dir) / "engine-cache" / f"{plain}-{hashlib.sha256(engine.encode()).hexdigest()[:8]}"


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def sha256_of(*paths: Path) -> str:
    """SHA-256 of a file, or of several in sequence, in hex."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            hashlib.file_digest(file, lambda: digest)
    return digest.hexdigest()


def verify_sha256(path: Path, expected: str | None, further: Sequence[Path] = ()) -> str | None:
    """The SHA-256 of a model's file followed by `further` ones. Raises `LoadError` if it is not `expected`.

    None for large files if nothing is expected.
    """
    files = (path, *further)
    if expected is None and sum(file.stat().st_size for file in files) > SHA256_EAGER_BYTES:
        return None
    actual = sha256_of(*files)
    if expected is not None and actual != expected.lower():
        raise LoadError("checksum_mismatch", f"{path}: sha256 is {actual}, expected {expected}")
    return actual


def verify_files(root: Path, checksums: Mapping[str, str]) -> None:
    """`options.checksums`: file name -> SHA-256 of files in a model's folder. Raises LoadError."""
    for name, expected in checksums.items():
        file = root / name
        if not file.resolve().is_relative_to(root.resolve()):
            raise LoadError("invalid_options", f"options.checksums: {name} is outside the model's folder")
        if not file.is_file():
            raise LoadError("model_missing", f"{file}: no such file, though options.checksums names it")
        verify_sha256(file, expected)


def read_object(path: Path, most: int) -> dict[str, Any]:
    """A JSON file that describes a model, of at most so many bytes; an empty dictionary if it does not exist. Raises LoadError."""
    if not path.is_file():
        return {}
    if path.stat().st_size > most:
        raise LoadError("model_invalid", f"{path}: larger than {most} bytes")
    try:
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise LoadError("model_missing", f"{path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise LoadError("model_invalid", f"{path}: not JSON: {error}") from None
    if not isinstance(found, dict):
        raise LoadError("model_invalid", f"{path}: not a JSON object")
    return found
