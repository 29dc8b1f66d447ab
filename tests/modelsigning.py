"""Signs models as the OpenSSF Model Signing format has it, for tests of what verifies them."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from gateway.wire.model_signatures import MEDIA, PAYLOAD, PREDICATE, STATEMENT

KEY = ec.derive_private_key(0xA5A5A5, ec.SECP256R1())
OTHER = ec.derive_private_key(0x5A5A5A, ec.SECP256R1())


def pem(key: ec.EllipticCurvePrivateKey = KEY) -> bytes:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def statement(model: Path) -> dict[str, Any]:
    files = sorted(path for path in model.rglob("*") if path.is_file() and path.name != "model.sig") if model.is_dir() else [model]
    names = {path.relative_to(model).as_posix(): hashlib.sha256(path.read_bytes()) for path in files}
    root = hashlib.sha256(b"".join(one.digest() for one in names.values())).hexdigest()
    resources = [{"name": name, "algorithm": "sha256", "digest": one.hexdigest()} for name, one in names.items()]
    serialization = {"method": "files", "hash_type": "sha256", "allow_symlinks": False, "ignore_paths": ["model.sig"]}
    predicate = {"serialization": serialization, "resources": resources}
    return {"_type": STATEMENT, "subject": [{"name": "m", "digest": {"sha256": root}}], "predicateType": PREDICATE, "predicate": predicate}


def bundle(payload: bytes, key: ec.EllipticCurvePrivateKey = KEY, **envelope: Any) -> dict[str, Any]:
    pae = b"DSSEv1 %d %b %d %b" % (len(PAYLOAD), PAYLOAD.encode(), len(payload), payload)
    sig = base64.b64encode(key.sign(pae, ec.ECDSA(hashes.SHA256()))).decode()
    made = {"payload": base64.b64encode(payload).decode(), "payloadType": PAYLOAD, "signatures": [{"sig": sig}], **envelope}
    hint = hashlib.sha256(pem(key)).hexdigest()
    return {"mediaType": MEDIA, "verificationMaterial": {"publicKey": {"hint": hint}}, "dsseEnvelope": made}


def signature(model: Path, key: ec.EllipticCurvePrivateKey = KEY) -> str:
    """Of a file, or of a folder without its `model.sig`."""
    return json.dumps(bundle(json.dumps(statement(model)).encode(), key))


def sign(model: Path, key: ec.EllipticCurvePrivateKey = KEY) -> Path:
    """Where the signature is: in the folder, or beside the file."""
    place = model / "model.sig" if model.is_dir() else model.with_name(f"{model.name}.sig")
    place.write_text(signature(model, key))
    return place
