"""Keys of the audit log: keyed hashes of bodies, Ed25519 signatures of checkpoints.

Keys are files in `<state_dir>/keys`, mode 0600, made at the first use; several processes that start at once agree on one. A body hash
is a letter for the algorithm and 32 hex characters: `b`, keyed BLAKE2b with a 16-byte digest (RFC 7693), for bodies of up to 1 KiB;
`s`, the first 16 bytes of HMAC-SHA256 (RFC 2104), for longer ones: with the processor's SHA instructions it is twice as fast from 4 KiB on.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from gateway.audit.encode import encode_json
from gateway.audit.record import CheckpointRecord, TreeHead
from gateway.core.errors import ConfigError

BODY_KEY: Final = "audit-body.key"
SIGNING_KEY: Final = "audit-signing.pem"
PUBLIC_KEY: Final = "audit-signing.pub.pem"
_LARGE: Final = 1024
_CONTEXT: Final = b"gatehouse audit checkpoint 1\n"
_TREE_CONTEXT: Final = b"gatehouse audit tree 1\n"


class BodyHasher:
    """Keyed hashes of bodies: without the key, nobody can use the log to confirm a guess of a body."""

    __slots__ = ("_blake", "_inner", "_outer")

    def __init__(self, key: bytes) -> None:
        block = key.ljust(64, b"\0")
        self._blake = hashlib.blake2b(key=key, digest_size=16).copy
        self._inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in block)).copy
        self._outer = hashlib.sha256(bytes(byte ^ 0x5C for byte in block)).copy

    def __call__(self, body: bytes | memoryview) -> str:
        if len(body) <= _LARGE:
            digest = self._blake()
            digest.update(body)
            return "b" + digest.hexdigest()
        inner, outer = self._inner(), self._outer()  # HMAC with the key's blocks hashed beforehand
        inner.update(body)
        outer.update(inner.digest())
        return "s" + outer.hexdigest()[:32]


def no_hash(body: bytes | memoryview) -> str:
    """Replaces a BodyHasher where `audit.body_hashes` is false: records carry no hashes."""
    return ""


def key_id(key: Ed25519PublicKey) -> str:
    """A public key's short name: 16 hex characters of the SHA-256 of its 32 bytes."""
    raw = key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    return hashlib.sha256(raw).hexdigest()[:16]


def _statement(checkpoint: CheckpointRecord) -> bytes:
    unsigned = msgspec.structs.replace(checkpoint, signature="")
    return _CONTEXT + encode_json(unsigned)


class Signer:
    """Signs checkpoints."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.key_id = key_id(key.public_key())
        self.verifier = CheckpointVerifier(key.public_key())

    def sign(self, checkpoint: CheckpointRecord) -> CheckpointRecord:
        """A copy of the checkpoint with this key's id and signature."""
        named = msgspec.structs.replace(checkpoint, key=self.key_id)
        return msgspec.structs.replace(named, signature=self._key.sign(_statement(named)).hex())

    def state(self, context: bytes, statement: Any) -> Any:
        """A copy of a Struct with this key's id in `key` and its `signature` over the context and the JSON without `signature`."""
        named = msgspec.structs.replace(statement, key=self.key_id, signature="")
        return msgspec.structs.replace(named, signature=self._key.sign(context + encode_json(named)).hex())

    def sign_bytes(self, data: bytes) -> str:
        """A signature, in hex."""
        return self._key.sign(data).hex()

    def sign_tree(self, tree: TreeHead) -> TreeHead:
        """A copy with this key's signature, over its JSON without `signature`."""
        unsigned = msgspec.structs.replace(tree, signature="")
        return msgspec.structs.replace(tree, signature=self._key.sign(_TREE_CONTEXT + encode_json(unsigned)).hex())


class CheckpointVerifier:
    """Tells whether a checkpoint was signed with one key, or with one that it is linked to by endorsements (gateway.audit.signing_keys).
    ring: the raw public keys that follow one another, the oldest first; this key is one of them."""

    def __init__(self, key: Ed25519PublicKey, ring: Sequence[bytes] = ()) -> None:
        self.key_id = key_id(key)
        self.raw: bytes = key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
        self.ring: tuple[bytes, ...] = tuple(ring) or (self.raw,)
        keys = [Ed25519PublicKey.from_public_bytes(raw) for raw in self.ring]
        self._keys: dict[str, Ed25519PublicKey] = {key_id(one): one for one in keys}
        self._places: dict[str, int] = {key_id(one): place for place, one in enumerate(keys)}

    @staticmethod
    def from_raw(raw: bytes, ring: Sequence[bytes] = ()) -> CheckpointVerifier:
        """From the 32 bytes of a public key, and of those that it is linked to."""
        return CheckpointVerifier(Ed25519PublicKey.from_public_bytes(raw), ring)

    @property
    def known(self) -> frozenset[str]:
        """The ids of the keys."""
        return frozenset(self._keys)

    def generation(self, key: str) -> int:
        """The place of a key, by its id, in the order in which they followed one another; -1 for one that is not known."""
        return self._places.get(key, -1)

    def genuine(self, checkpoint: CheckpointRecord) -> bool:
        return self._signed(checkpoint.key, checkpoint.signature, _statement(checkpoint))

    def confirms(self, context: bytes, statement: Any) -> bool:
        """Whether a Struct with `key` and `signature` was signed by `Signer.state` with this context."""
        unsigned = msgspec.structs.replace(statement, signature="")
        return self._signed(statement.key, statement.signature, context + encode_json(unsigned))

    def signed(self, signature: str, text: bytes) -> bool:
        """Whether these bytes were signed with this very key."""
        return self._signed(self.key_id, signature, text)

    def _signed(self, key: str, signature: str, text: bytes) -> bool:
        found = self._keys.get(key)
        if found is None:
            return False
        try:
            found.verify(bytes.fromhex(signature), text)
        except (InvalidSignature, ValueError):
            return False
        return True


def load_body_key(state_dir: str) -> bytes:
    """The key of the body hashes. Raises ConfigError when it cannot be read or made, or when other users can read it."""
    key = _load_or_create(_keys(state_dir) / BODY_KEY, lambda: os.urandom(32))
    if len(key) != 32:
        raise ConfigError(f"{BODY_KEY} must hold 32 bytes", path="state_dir")
    return key


def load_signer(state_dir: str) -> Signer:
    """The signing key; its public half is written beside it for auditors. Raises ConfigError like `load_body_key`."""
    directory = _keys(state_dir)
    pem = _load_or_create(directory / SIGNING_KEY, _new_signing_key)
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{SIGNING_KEY} is not a PEM private key: {error}", path="state_dir") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(f"{SIGNING_KEY} is not an Ed25519 key", path="state_dir")
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    if _load_or_create(directory / PUBLIC_KEY, lambda: public, mode=0o644) != public:  # the key was replaced
        replace_file(directory / PUBLIC_KEY, public, 0o644)
    return Signer(key)


def new_signing_key() -> tuple[bytes, Signer]:
    """A fresh key: its PEM, and what signs with it."""
    pem = _new_signing_key()
    key = serialization.load_pem_private_key(pem, password=None)
    assert isinstance(key, Ed25519PrivateKey)
    return pem, Signer(key)


def public_pem(raw: bytes) -> str:
    """The 32 bytes of a public key as PEM."""
    key = Ed25519PublicKey.from_public_bytes(raw)
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo).decode("ascii")


def replace_file(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Puts a file in another one's place as a whole, on the disk. Raises OSError."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        left = memoryview(data)
        while left:  # a disk that is nearly full takes a part
            taken = os.write(descriptor, left)
            left = left[taken:]
        os.fsync(descriptor)
        os.replace(draft, path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
    parent = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(parent)
    finally:
        os.close(parent)


def load_verifier(path: str | Path) -> CheckpointVerifier:
    """Reads a public key from a PEM file. Raises ConfigError."""
    try:
        key = serialization.load_pem_public_key(Path(path).read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot read the public key {path}: {error.strerror}") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{path} is not a public key in PEM, as `gatehouse audit keys` prints it") from error
    if not isinstance(key, Ed25519PublicKey):
        raise ConfigError(f"{path} is a public key, but not of Ed25519, as `gatehouse audit keys` prints it")
    return CheckpointVerifier(key)


def _new_signing_key() -> bytes:
    return Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _keys(state_dir: str) -> Path:
    directory = Path(state_dir) / "keys"
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot create {directory}: {error.strerror}", path="state_dir") from error
    return directory


def _load_or_create(path: Path, make: Callable[[], bytes], mode: int = 0o600) -> bytes:
    """Reads the file, or makes it in one step (a hard link): a crash leaves no half key, and a race has one winner."""
    try:
        if not path.exists():
            _create(path, make(), mode)
        data = path.read_bytes()
        if mode == 0o600 and path.stat().st_mode & 0o077:
            raise ConfigError(f"{path} can be read by other users: run chmod 600 on it", path="state_dir")
    except OSError as error:
        raise ConfigError(f"cannot read or create {path}: {error.strerror}", path="state_dir") from error
    return data


def _create(path: Path, data: bytes, mode: int) -> None:
    draft = path.with_name(f"{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        os.write(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    try:
        os.link(draft, path)
    except FileExistsError:
        pass
    finally:
        os.unlink(draft)
    parent = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(parent)
    finally:
        os.close(parent)
