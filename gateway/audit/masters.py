"""Master keys: what wraps the data keys of the audit log. Everything here blocks, within a deadline: call it in a thread.

A data key is never wrapped alone: the 32 bytes of the key are followed by the SHA-256 of what they belong to (tenant, id, version). So a
wrapped key that was moved to another tenant's row does not open, whichever master it has.

A master in a file, the environment or a command's output is read for each use and not kept; it wraps with AES-256-GCM (NIST SP 800-38D).
Vault's transit engine wraps without giving its key away (https://developer.hashicorp.com/vault/api-docs/secret/transit).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import stat
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import quote, urlsplit

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from gateway.core.errors import ConfigError, MasterUnavailable
from gateway.core.specs.audit import MasterSpec, TransitSpec
from gateway.core.vault import DataKeyRow
from gateway.transport.address import tls_context

KEY_BYTES: Final = 32
_NONCE: Final = 12
_ID_CONTEXT: Final = b"gatehouse audit master 1\n"
LONGEST_OUTPUT: Final = 4096


class Master(Protocol):
    """`id` names the key without saying anything of it. `wrap` and `unwrap` raise MasterUnavailable when it cannot be asked; `unwrap`
    raises ConfigError for what another master wrapped."""

    def id(self) -> str: ...

    def wrap(self, data: bytes) -> str: ...

    def unwrap(self, wrapped: str) -> bytes: ...


class LocalMaster:
    """A master whose bytes `read` gives. what: names it in errors."""

    def __init__(self, what: str, read: Callable[[], bytes]) -> None:
        self._what, self._read = what, read

    def id(self) -> str:
        """`local-` and 16 hex characters of a keyed hash: the same key has the same id wherever it is kept."""
        return _id_of(self._key())

    def wrap(self, data: bytes) -> str:
        key, nonce = self._key(), os.urandom(_NONCE)
        return base64.b64encode(nonce + AESGCM(key).encrypt(nonce, data, _ID_CONTEXT)).decode()

    def unwrap(self, wrapped: str) -> bytes:
        try:
            sealed = base64.b64decode(wrapped, validate=True)
            return AESGCM(self._key()).decrypt(sealed[:_NONCE], sealed[_NONCE:], _ID_CONTEXT)
        except (InvalidTag, binascii.Error, ValueError):
            raise ConfigError(f"the data key was not wrapped by this master key ({self._what})", path="audit.encryption.master") from None

    def _key(self) -> bytes:
        found = key_of(self._read())
        if found is None:
            raise MasterUnavailable(f"{self._what} does not hold {KEY_BYTES} bytes, nor their base64 or hex")
        return found


def _id_of(key: bytes) -> str:
    return "local-" + hmac.digest(key, _ID_CONTEXT, "sha256").hex()[:16]


def key_of(given: bytes) -> bytes | None:
    """The 32 bytes that a file or a text holds; None for anything else."""
    if len(given) == KEY_BYTES:
        return given
    text = given.strip()
    try:
        if len(text) == 2 * KEY_BYTES:
            return bytes.fromhex(text.decode("ascii"))
        found = base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        return None
    return found if len(found) == KEY_BYTES else None


def _read_file(path: Path, what: str = "the master key") -> bytes:
    """what: the file's content, as errors name it."""
    try:
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise MasterUnavailable(f"{what} {path} can be read by other users: run chmod 600 on it")
        with path.open("rb") as file:
            return file.read(LONGEST_OUTPUT)
    except OSError as error:
        raise MasterUnavailable(f"{what} {path} cannot be read: {error.strerror}") from None


def _read_variable(environ: Mapping[str, str], name: str) -> bytes:
    if name not in environ:
        raise MasterUnavailable(f"the environment has no variable {name}, which should hold the master key")
    return environ[name].encode()


def _run(command: tuple[str, ...], timeout: float) -> bytes:
    """What a command prints. Its errors are not shown: they may hold anything."""
    try:
        done = subprocess.run(command, capture_output=True, timeout=timeout, stdin=subprocess.DEVNULL, check=False)
    except subprocess.TimeoutExpired:
        raise MasterUnavailable(f"the command {command[0]!r} did not print the master key within {timeout:g} s") from None
    except OSError as error:
        raise MasterUnavailable(f"the command {command[0]!r} cannot be run: {error.strerror}") from None
    if done.returncode:
        raise MasterUnavailable(f"the command {command[0]!r} failed with the exit code {done.returncode}")
    return done.stdout[:LONGEST_OUTPUT]


class TransitMaster:
    """A key of Vault's transit engine. Vault rotates it by itself: older versions go on to unwrap."""

    def __init__(self, settings: TransitSpec, timeout: float) -> None:
        import httpx  # noqa: PLC0415 - only the process that holds keys needs it

        self._settings, self._timeout = settings, timeout
        verify = tls_context(settings.tls) if urlsplit(settings.url).scheme == "https" else True
        self._client = httpx.Client(verify=verify, timeout=timeout, trust_env=False, follow_redirects=False)
        self._errors: Any = (httpx.HTTPError, RuntimeError)

    def id(self) -> str:
        return f"transit-{hashlib.sha256(f'{self._settings.mount}/{self._settings.key}'.encode()).hexdigest()[:16]}"

    def wrap(self, data: bytes) -> str:
        found = self._ask("encrypt", {"plaintext": base64.b64encode(data).decode()}).get("ciphertext")
        if not isinstance(found, str) or not found:
            raise MasterUnavailable(f"{self._settings.url} answered without a ciphertext")
        return found

    def unwrap(self, wrapped: str) -> bytes:
        found = self._ask("decrypt", {"ciphertext": wrapped}).get("plaintext")
        try:
            return base64.b64decode(str(found), validate=True)
        except (binascii.Error, ValueError):
            raise MasterUnavailable(f"{self._settings.url} answered without a plaintext") from None

    def _token(self) -> str:
        settings = self._settings
        if settings.token is not None:
            return settings.token.reveal()
        assert settings.token_file is not None
        return _read_file(Path(settings.token_file), "Vault's token").decode("ascii", "replace").strip()

    def _ask(self, what: str, body: dict[str, str]) -> dict[str, Any]:
        """`data` of the answer. Raises MasterUnavailable; ConfigError where Vault says that it cannot decrypt this (400)."""
        settings = self._settings
        url = f"{settings.url.rstrip('/')}/v1/{quote(settings.mount)}/{what}/{quote(settings.key)}"
        headers = {"x-vault-token": self._token(), "x-vault-request": "true"}
        if settings.namespace:
            headers["x-vault-namespace"] = settings.namespace
        deadline = time.monotonic() + self._timeout
        try:
            with self._client.stream("POST", url, json=body, headers=headers) as response:
                answer = bytearray()
                for part in response.iter_bytes(65536):
                    answer += part
                    if len(answer) > 65536 or time.monotonic() > deadline:
                        raise MasterUnavailable(f"the answer of {settings.url} is too long, or takes too long")
                status = response.status_code
        except self._errors as error:
            raise MasterUnavailable(f"{settings.url} cannot be asked: {type(error).__name__}") from None
        if status == 400 and what == "decrypt":
            raise ConfigError("the data key was not wrapped by this master key (transit)", path="audit.encryption.master")
        if status != 200:
            raise MasterUnavailable(f"{settings.url} answered {status} when asked to {what}")
        try:
            return msgspec.json.decode(answer, type=_Answer).data
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise MasterUnavailable(f"the answer of {settings.url} cannot be read") from None


class _Answer(msgspec.Struct):
    data: dict[str, Any]


def master_of(spec: MasterSpec, base: Path, environ: Mapping[str, str]) -> Master:
    """base: the folder that files are relative to."""
    if spec.file is not None:
        path = base / spec.file
        return LocalMaster(f"the file {path}", lambda: _read_file(path))
    if spec.environment is not None:
        name, given = spec.environment, dict(environ)
        return LocalMaster(f"the variable {name}", lambda: _read_variable(given, name))
    if spec.command:
        command, timeout = spec.command, spec.timeout
        return LocalMaster(f"the command {command[0]}", lambda: _run(command, timeout))
    assert spec.transit is not None
    transit = spec.transit
    if transit.token_file is not None:
        transit = msgspec.structs.replace(transit, token_file=str(base / transit.token_file))
    return TransitMaster(transit, spec.timeout)


def bound_to(tenant: str, id: str, version: int) -> bytes:
    """What a data key is wrapped with, so that it cannot pass for another's."""
    return hashlib.sha256(msgspec.json.encode([tenant, id, version])).digest()


def wrap_key(master: Master, key: bytes, binding: bytes) -> str:
    return master.wrap(key + binding)


def unwrap_key(master: Master, wrapped: str, binding: bytes) -> bytes:
    """Raises MasterUnavailable, ConfigError for a key of another master, tenant or version."""
    found = master.unwrap(wrapped)
    if len(found) != 2 * KEY_BYTES or not hmac.compare_digest(found[KEY_BYTES:], binding):
        raise ConfigError("the data key belongs to another tenant or version: the store was changed", path="audit.encryption")
    return found[:KEY_BYTES]


def opened_by(masters: Sequence[Master], row: DataKeyRow) -> bytes:
    """A data key of the store, opened by the one of these masters that wrapped it. Raises MasterUnavailable, ConfigError where none did."""
    for master in masters:
        if master.id() == row.master:
            return unwrap_key(master, row.wrapped, bound_to(row.tenant, row.id, row.version))
    raise ConfigError(f"the data key {row.id} is wrapped by {row.master}, which is not configured", path="audit.encryption.master")
