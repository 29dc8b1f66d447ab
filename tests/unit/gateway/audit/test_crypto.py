import hmac
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.audit.crypto import BodyHasher, load_body_key, load_signer, load_verifier, replace_file
from gateway.audit.encode import encode_json
from gateway.audit.record import CheckpointRecord
from gateway.core.errors import ConfigError

UNSIGNED = CheckpointRecord(time=1.25, writer="0", number=1, segment=1, covers=7, head="ab" * 32, key="")


def test_a_body_hash_is_keyed_blake2b_with_a_letter_for_it() -> None:
    key = os.urandom(32)
    assert BodyHasher(key)(b"body") == "b" + blake2b(b"body", key=key, digest_size=16).hexdigest()
    assert BodyHasher(key)(b"body") != BodyHasher(os.urandom(32))(b"body")


@given(st.binary(max_size=1022), st.sampled_from([b"", b"{", b"{{", b"["]))
def test_how_a_body_begins_changes_nothing_of_how_it_is_hashed(rest: bytes, begin: bytes) -> None:
    body, key = begin + rest, b"k" * 32
    expected = "b" + blake2b(body, key=key, digest_size=16).hexdigest()
    hasher = BodyHasher(key)
    assert [hasher(body), hasher(memoryview(body)), hasher(body)] == [expected] * 3


@pytest.mark.parametrize("size", [1025, 5000, 100_000])
def test_longer_bodies_are_hashed_with_hmac_sha256(size: int) -> None:
    key, body = os.urandom(32), os.urandom(size)
    assert BodyHasher(key)(body) == "s" + hmac.digest(key, body, "sha256")[:16].hex()


def test_the_algorithm_changes_after_one_kibibyte() -> None:
    assert [BodyHasher(b"k" * 32)(b"x" * size)[0] for size in (0, 1024, 1025)] == ["b", "b", "s"]


def test_keys_are_made_once_with_mode_0600_and_stay(tmp_path: Path) -> None:
    first = load_body_key(str(tmp_path))
    assert load_body_key(str(tmp_path)) == first and len(first) == 32
    assert load_signer(str(tmp_path)).key_id == load_signer(str(tmp_path)).key_id
    keys = tmp_path / "keys"
    assert stat.S_IMODE(keys.stat().st_mode) == 0o700
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in keys.iterdir()}
    assert modes == {"audit-body.key": 0o600, "audit-signing.pem": 0o600, "audit-signing.pub.pem": 0o644}


def test_processes_that_start_at_once_agree_on_one_key(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        keys = set(pool.map(lambda _: load_body_key(str(tmp_path)), range(8)))
    assert len(keys) == 1


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    load_body_key(str(tmp_path))
    (tmp_path / "keys" / "audit-body.key").chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        load_body_key(str(tmp_path))


@pytest.mark.parametrize("damage", [b"", b"no key", b"-----BEGIN PRIVATE KEY-----\n"])
def test_a_damaged_key_is_refused(tmp_path: Path, damage: bytes) -> None:
    load_signer(str(tmp_path))
    load_body_key(str(tmp_path))
    (tmp_path / "keys" / "audit-signing.pem").write_bytes(damage)
    (tmp_path / "keys" / "audit-body.key").write_bytes(damage)
    with pytest.raises(ConfigError, match="audit-signing"):
        load_signer(str(tmp_path))
    with pytest.raises(ConfigError, match="32 bytes"):
        load_body_key(str(tmp_path))


def test_a_checkpoint_verifies_with_the_public_key_alone(tmp_path: Path) -> None:
    signed = load_signer(str(tmp_path)).sign(UNSIGNED)
    verifier = load_verifier(tmp_path / "keys" / "audit-signing.pub.pem")
    read_back = msgspec.json.decode(encode_json(signed), type=CheckpointRecord)
    assert verifier.genuine(signed) and verifier.genuine(read_back)


@pytest.mark.parametrize(
    "change",
    [{"time": 2.0}, {"writer": "1"}, {"number": 2}, {"segment": 2}, {"covers": 8}, {"head": "cd" * 32}, {"key": "x"}, {"signature": "zz"}],
)
def test_no_field_of_a_checkpoint_can_be_changed(tmp_path: Path, change: dict) -> None:
    signer = load_signer(str(tmp_path))
    assert not signer.verifier.genuine(msgspec.structs.replace(signer.sign(UNSIGNED), **change))


def test_a_signature_of_another_key_is_not_genuine(tmp_path: Path) -> None:
    ours, other = load_signer(str(tmp_path / "a")), load_signer(str(tmp_path / "b"))
    assert not ours.verifier.genuine(other.sign(UNSIGNED))


def test_a_public_key_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "k.pem"
    path.write_bytes(b"nonsense")
    with pytest.raises(ConfigError, match="not a public key in PEM"):
        load_verifier(path)
    with pytest.raises(ConfigError, match="cannot read"):
        load_verifier(tmp_path / "missing.pem")


def test_a_file_is_replaced_as_a_whole_or_not_at_all_where_the_disk_takes_a_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, room = os.write, [12]

    def write(descriptor: int, data: bytes) -> int:
        if not room[0]:
            raise OSError(28, "No space left on device")
        taken = real(descriptor, bytes(data)[: min(5, room[0])])
        room[0] -= taken
        return taken

    monkeypatch.setattr(os, "write", write)
    file = tmp_path / "some"
    replace_file(file, b"twelve bytes")
    assert file.read_bytes() == b"twelve bytes"
    room[0] = 7
    with pytest.raises(OSError, match="No space"):
        replace_file(file, b"other twelve")
    assert file.read_bytes() == b"twelve bytes" and list(tmp_path.iterdir()) == [file]
