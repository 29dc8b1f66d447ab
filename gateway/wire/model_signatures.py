"""Verifies signatures of models by the OpenSSF Model Signing format, v1.0 (https://github.com/ossf/model-signing-spec), made with a key.

A signature is a Sigstore bundle (JSON) with a DSSE envelope over an in-toto statement, which lists the SHA-256 of each of the model's
files. Only the method `files` with SHA-256 is known here, and only ECDSA keys (P-256, P-384, P-521); certificates and Sigstore are refused.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

MEDIA: Final = "application/vnd.dev.sigstore.bundle.v0.3+json"
PAYLOAD: Final = "application/vnd.in-toto+json"
STATEMENT: Final = "https://in-toto.io/Statement/v1"
PREDICATE: Final = "https://model_signing/signature/v1.0"
MAX_BUNDLE: Final = 16 * 1024 * 1024
MAX_FILES: Final = 20_000
ALWAYS_IGNORED: Final = frozenset({".git", ".gitattributes", ".github", ".gitignore"})
"""What signers leave out by default; nothing else may be left out, whatever the signature says."""
_HASHES: Final[dict[str, type[hashes.HashAlgorithm]]] = {
    "secp256r1": hashes.SHA256,
    "secp384r1": hashes.SHA384,
    "secp521r1": hashes.SHA512,
}


class Unsigned(Exception):
    """The model is not what somebody with this key has signed; the text says why."""


class _Signature(msgspec.Struct):
    sig: str


class _Envelope(msgspec.Struct, rename="camel"):
    payload: str
    payload_type: str
    signatures: list[_Signature]


class _Key(msgspec.Struct):
    hint: str | None = None


class _Material(msgspec.Struct, rename="camel"):
    public_key: _Key


class _Bundle(msgspec.Struct, rename="camel"):
    media_type: str
    verification_material: _Material
    dsse_envelope: _Envelope


class _Subject(msgspec.Struct):
    name: str
    digest: dict[str, str]


class _Resource(msgspec.Struct):
    name: str
    algorithm: str
    digest: str


class _Serialization(msgspec.Struct):
    method: str
    hash_type: str


class _Predicate(msgspec.Struct):
    serialization: _Serialization
    resources: list[_Resource]


class _Statement(msgspec.Struct, rename={"type": "_type", "predicate_type": "predicateType"}):
    type: str
    subject: list[_Subject]
    predicate_type: str
    predicate: _Predicate


def key_of(pem: bytes) -> ec.EllipticCurvePublicKey:
    """Raises Unsigned."""
    try:
        key = load_pem_public_key(pem)
    except ValueError:
        raise Unsigned("the key is not a public key in PEM") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name not in _HASHES:
        raise Unsigned("the key is not ECDSA on P-256, P-384 or P-521")
    return key


def signed(bundle: bytes, key: ec.EllipticCurvePublicKey) -> dict[str, str]:
    """The SHA-256 of each file that a signature is about, by its path. Raises Unsigned."""
    if len(bundle) > MAX_BUNDLE:
        raise Unsigned("the signature is too large")
    found = _read(bundle, _Bundle, "the signature is not a bundle that was made with a key")
    if found.media_type != MEDIA:
        raise Unsigned(f"the signature is of the kind {found.media_type[:80]!r}, not {MEDIA}")
    pem = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    hint = found.verification_material.public_key.hint
    if hint and hint != hashlib.sha256(pem).hexdigest():
        raise Unsigned("the signature was made with another key")
    envelope = found.dsse_envelope
    if envelope.payload_type != PAYLOAD or len(envelope.signatures) != 1:
        raise Unsigned("the signature's envelope is not a model's")
    payload = _decoded(envelope.payload)
    pae = b"DSSEv1 %d %b %d %b" % (len(PAYLOAD), PAYLOAD.encode(), len(payload), payload)
    try:
        key.verify(_decoded(envelope.signatures[0].sig), pae, ec.ECDSA(_HASHES[key.curve.name]()))
    except InvalidSignature:
        raise Unsigned("the signature was not made with this key, or was altered") from None
    return _files(_read(payload, _Statement, "the signed content is not a statement about a model"))


def _files(statement: _Statement) -> dict[str, str]:
    how = statement.predicate.serialization
    if statement.type != STATEMENT or statement.predicate_type != PREDICATE or len(statement.subject) != 1:
        raise Unsigned("the signed content is not a statement about a model")
    if (how.method, how.hash_type) != ("files", "sha256"):
        raise Unsigned(f"it is signed by {how.method[:40]!r} with {how.hash_type[:40]!r}; only 'files' with 'sha256' is known here")
    state, files = hashlib.sha256(), {}
    for one in statement.predicate.resources:
        if one.algorithm != "sha256" or len(one.digest) != 64 or one.name in files:
            raise Unsigned(f"the signature's entry {one.name[:80]!r} does not name a file")
        try:
            state.update(bytes.fromhex(one.digest))
        except ValueError:
            raise Unsigned(f"the signature's entry {one.name[:80]!r} does not name a file") from None
        files[one.name] = one.digest.lower()
    if statement.subject[0].digest != {"sha256": state.hexdigest()} or not files:
        raise Unsigned("the signature contradicts itself")
    return files


def verify(model: Path, signature: Path, key: ec.EllipticCurvePublicKey) -> int:
    """Whether exactly these files were signed; how many there are. Raises Unsigned, OSError."""
    with signature.open("rb") as file:
        wanted = signed(file.read(MAX_BUNDLE + 1), key)
    present = here(model, signature.resolve())
    compare(wanted, present, digest)
    return len(present)


def compare(wanted: dict[str, str], present: dict[str, Path], sha256: Callable[[Path], str]) -> None:
    """Whether these files are those that were signed, each and no other. sha256: of a file. Raises Unsigned, OSError."""
    if missing := sorted(set(wanted) - set(present)):
        raise Unsigned(f"{missing[0]} was signed and is not there")
    if more := sorted(set(present) - set(wanted)):
        raise Unsigned(f"{more[0]} is there and was not signed")
    for name, path in sorted(present.items()):
        if sha256(path) != wanted[name]:
            raise Unsigned(f"{path.name if name == '.' else name} is not what was signed")


def here(model: Path, signature: Path) -> dict[str, Path]:
    """The files of a model by their path in it; "." for a model that is a file. Those that signers leave out, and the signature, are not of
    it. Raises Unsigned for a link."""
    return dict(_here(model, signature))


def _here(model: Path, signature: Path) -> Iterator[tuple[str, Path]]:
    """(path in the model, where it is); the signature itself and what signers leave out are not of it. Raises Unsigned for links."""
    if not model.is_dir():
        yield ".", model
        return
    count = 0
    for folder, folders, files in os.walk(model):
        at = Path(folder)
        if at == model:
            folders[:] = [name for name in folders if name not in ALWAYS_IGNORED]
            files = [name for name in files if name not in ALWAYS_IGNORED]
        for name in (*folders, *files):
            if (at / name).is_symlink():
                raise Unsigned(f"{(at / name).relative_to(model).as_posix()} is a link")
        for name in files:
            if (path := at / name).resolve() != signature:
                count += 1
                if count > MAX_FILES:
                    raise Unsigned(f"the folder has more than {MAX_FILES} files")
                yield path.relative_to(model).as_posix(), path


def digest(path: Path) -> str:
    """SHA-256 in hex. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read(data: bytes, kind: Any, problem: str) -> Any:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Unsigned(problem) from None


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise Unsigned("the signature is not in base64") from None
