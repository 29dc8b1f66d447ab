"""Signatures of models: those that the format's own library made, and what is refused."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from gateway.wire.model_signatures import Unsigned, key_of, verify
from tests.modelsigning import KEY, bundle, pem, statement

PUBLIC = KEY.public_key()
PEM = pem()
REAL = (
    '{"mediaType":"application/vnd.dev.sigstore.bundle.v0.3+json","verificationMaterial":{"publicKey":{"hint":"57ff'
    '32d122a435377e42e3da70e9cfb327f734c8bcbba9a49d67dbd2ed07fb0c"},"tlogEntries":[]},"dsseEnvelope":{"payload":"ew'
    "ogICJfdHlwZSI6ICJodHRwczovL2luLXRvdG8uaW8vU3RhdGVtZW50L3YxIiwKICAic3ViamVjdCI6IFsKICAgIHsKICAgICAgIm5hbWUiOiAi"
    "bSIsCiAgICAgICJkaWdlc3QiOiB7CiAgICAgICAgInNoYTI1NiI6ICJiNDAzMjAwZDliZDJkN2IyNmM1YjQwM2Q3ZWEwZTJmYWQ2ODQ5ZWUzMW"
    "M1ZDZiMDE5ODNhMDY3ZTM2NTM2N2QyIgogICAgICB9CiAgICB9CiAgXSwKICAicHJlZGljYXRlVHlwZSI6ICJodHRwczovL21vZGVsX3NpZ25p"
    "bmcvc2lnbmF0dXJlL3YxLjAiLAogICJwcmVkaWNhdGUiOiB7CiAgICAicmVzb3VyY2VzIjogWwogICAgICB7CiAgICAgICAgIm5hbWUiOiAiY2"
    "9uZmlnLmpzb24iLAogICAgICAgICJhbGdvcml0aG0iOiAic2hhMjU2IiwKICAgICAgICAiZGlnZXN0IjogIjQ0MTM2ZmEzNTViMzY3OGExMTQ2"
    "YWQxNmY3ZTg2NDllOTRmYjRmYzIxZmU3N2U4MzEwYzA2MGY2MWNhYWZmOGEiCiAgICAgIH0sCiAgICAgIHsKICAgICAgICAibmFtZSI6ICJvbm"
    "54L21vZGVsLm9ubngiLAogICAgICAgICJhbGdvcml0aG0iOiAic2hhMjU2IiwKICAgICAgICAiZGlnZXN0IjogIjliZGQyYjEwMmE0YTQ5YTJm"
    "ODJiZWNlMjE4NDJjMGEwYjI2NGFmYWE4NWM3ZWQ2OTE5M2U5ODU5MWI4YmRjY2IiCiAgICAgIH0KICAgIF0sCiAgICAic2VyaWFsaXphdGlvbi"
    "I6IHsKICAgICAgImhhc2hfdHlwZSI6ICJzaGEyNTYiLAogICAgICAiYWxsb3dfc3ltbGlua3MiOiBmYWxzZSwKICAgICAgImlnbm9yZV9wYXRo"
    "cyI6IFsKICAgICAgICAiLmdpdGlnbm9yZSIsCiAgICAgICAgIi5naXRodWIiLAogICAgICAgICIuZ2l0IiwKICAgICAgICAiLmdpdGF0dHJpYn"
    'V0ZXMiCiAgICAgIF0sCiAgICAgICJtZXRob2QiOiAiZmlsZXMiCiAgICB9CiAgfQp9","payloadType":"application/vnd.in-toto+jso'
    'n","signatures":[{"sig":"MEUCIDr0pKtrFY2QFWw8LZjpcNThG3Dh4n+TfokLMWpg3pmoAiEAzZiyZ+Anh3+rfTmV5upbktOErnK9j/HHj'
    'i7WrmBDhs4=","keyid":""}]}}'
)
"""By model_signing 1.1.1, `sign key` of the folder that `model` makes, with KEY."""
REAL_FILE = (
    '{"mediaType":"application/vnd.dev.sigstore.bundle.v0.3+json","verificationMaterial":{"publicKey":{"hint":"57ff'
    '32d122a435377e42e3da70e9cfb327f734c8bcbba9a49d67dbd2ed07fb0c"},"tlogEntries":[]},"dsseEnvelope":{"payload":"ew'
    "ogICJfdHlwZSI6ICJodHRwczovL2luLXRvdG8uaW8vU3RhdGVtZW50L3YxIiwKICAic3ViamVjdCI6IFsKICAgIHsKICAgICAgIm5hbWUiOiAi"
    "Y29uZmlnLmpzb24iLAogICAgICAiZGlnZXN0IjogewogICAgICAgICJzaGEyNTYiOiAiYzc0ZjMwMDhmZGQyZjdjNWFlNTQ0NmFiMmU1MjI2Mj"
    "lmNjMzNDZmNjhhNDAyNmI0ZjcyYjkxYjM5MzQ3NWZmNiIKICAgICAgfQogICAgfQogIF0sCiAgInByZWRpY2F0ZVR5cGUiOiAiaHR0cHM6Ly9t"
    "b2RlbF9zaWduaW5nL3NpZ25hdHVyZS92MS4wIiwKICAicHJlZGljYXRlIjogewogICAgInJlc291cmNlcyI6IFsKICAgICAgewogICAgICAgIC"
    "JuYW1lIjogIi4iLAogICAgICAgICJhbGdvcml0aG0iOiAic2hhMjU2IiwKICAgICAgICAiZGlnZXN0IjogIjQ0MTM2ZmEzNTViMzY3OGExMTQ2"
    "YWQxNmY3ZTg2NDllOTRmYjRmYzIxZmU3N2U4MzEwYzA2MGY2MWNhYWZmOGEiCiAgICAgIH0KICAgIF0sCiAgICAic2VyaWFsaXphdGlvbiI6IH"
    "sKICAgICAgImhhc2hfdHlwZSI6ICJzaGEyNTYiLAogICAgICAiYWxsb3dfc3ltbGlua3MiOiBmYWxzZSwKICAgICAgImlnbm9yZV9wYXRocyI6"
    "IFsKICAgICAgICAiLmdpdGlnbm9yZSIsCiAgICAgICAgIi5naXRodWIiLAogICAgICAgICIuZ2l0IiwKICAgICAgICAiLmdpdGF0dHJpYnV0ZX"
    'MiCiAgICAgIF0sCiAgICAgICJtZXRob2QiOiAiZmlsZXMiCiAgICB9CiAgfQp9","payloadType":"application/vnd.in-toto+json","'
    'signatures":[{"sig":"MEUCIEK7xydhfCxqmUaYig6tqbKySvGPSHuMlLvNbRFVW9YiAiEAw1DuYGcx3WRHTqQomdRbS4VToB2BUhA454/og'
    '8ORONQ=","keyid":""}]}}'
)
"""The same of its file config.json alone."""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "m"
    (folder / "onnx").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "onnx" / "model.onnx").write_bytes(b"weights" * 1000)
    return folder


def test_what_the_formats_own_library_signs_is_verified(model: Path, tmp_path: Path) -> None:
    (model / "model.sig").write_text(REAL)
    assert verify(model, model / "model.sig", key_of(PEM)) == 2
    (tmp_path / "config.json.sig").write_text(REAL_FILE)
    assert verify(model / "config.json", tmp_path / "config.json.sig", PUBLIC) == 1


Change = Callable[[Path, dict[str, Any]], Any]
MODELS: list[tuple[str, Callable[[Path], Any], str]] = [
    ("a changed byte", lambda folder: (folder / "onnx" / "model.onnx").write_bytes(b"Weights" * 1000), "model.onnx is not what was signed"),
    ("a missing file", lambda folder: (folder / "config.json").unlink(), "config.json was signed and is not there"),
    ("one more", lambda folder: (folder / "code.py").write_text("x"), "code.py is there and was not signed"),
    ("one that the signature would ignore", lambda folder: (folder / "onnx" / ".gitignore").write_text("x"), "was not signed"),
    ("a link", lambda folder: os.symlink("/etc", folder / "more"), "more is a link"),
]


@pytest.mark.parametrize(("what", "change", "why"), MODELS, ids=[one[0] for one in MODELS])
def test_another_model_than_was_signed_is_refused(model: Path, what: str, change: Callable[[Path], Any], why: str) -> None:
    signature = model / "model.sig"
    signature.write_text(json.dumps(bundle(json.dumps(statement(model)).encode())))
    assert verify(model, signature, PUBLIC) == 2
    change(model)
    with pytest.raises(Unsigned, match=why):
        verify(model, signature, PUBLIC)


def test_signatures_that_are_altered_of_others_or_none_are_refused(model: Path, tmp_path: Path) -> None:
    told = statement(model)
    payload = json.dumps(told).encode()
    good, other = bundle(payload), ec.derive_private_key(7, ec.SECP256R1())
    by_other = bundle(payload, other)
    told["predicate"]["resources"][0]["digest"] = "0" * 64
    inconsistent = json.dumps(told).encode()
    sharded = {**statement(model)}
    sharded["predicate"]["serialization"]["method"] = "shards"
    cases: list[tuple[Any, str]] = [
        ({**by_other, "verificationMaterial": {"publicKey": {}}}, "not made with this key"),
        (by_other, "another key"),
        ({**good, "dsseEnvelope": {**good["dsseEnvelope"], "payload": base64.b64encode(payload + b" ").decode()}}, "altered"),
        ({**good, "dsseEnvelope": {**good["dsseEnvelope"], "payload": "?"}}, "base64"),
        ({**good, "dsseEnvelope": {**good["dsseEnvelope"], "signatures": []}}, "envelope"),
        ({**good, "mediaType": "x"}, "of the kind"),
        ({**good, "verificationMaterial": {"certificate": {"rawBytes": ""}}}, "with a key"),
        (bundle(inconsistent), "contradicts itself"),
        (bundle(json.dumps(sharded).encode()), "only 'files'"),
        (bundle(b"{}"), "not a statement"),
        ([], "not a bundle"),
    ]
    for number, (given, why) in enumerate(cases):
        place = tmp_path / f"{number}.sig"
        place.write_text(json.dumps(given))
        with pytest.raises(Unsigned, match=why):
            verify(model, place, PUBLIC)
    for text in (b"", ec.derive_private_key(5, ec.SECP256K1()).public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)):
        with pytest.raises(Unsigned, match="key"):
            key_of(text)
