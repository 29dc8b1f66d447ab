"""Signing keys follow one another: any of them leads to all, writers take the new one while they run, a replaced one signs nothing."""

from __future__ import annotations

import json
import os
import runpy
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.audit.broker import AuditBroker
from gateway.audit.checkpoint_tree import prove_consistency
from gateway.audit.crypto import PUBLIC_KEY, SIGNING_KEY, CheckpointVerifier, load_signer, load_verifier, new_signing_key
from gateway.audit.neighbours import holder
from gateway.audit.proof import prove
from gateway.audit.repair import read_checkpoint
from gateway.audit.signing_keys import FILE, NEXT_KEY, KeyWatch, endorsements, present_signer, published, rotate, trusted
from gateway.audit.sinks.file import FileSink
from gateway.audit.verify import verify_log
from gateway.core.errors import ConfigError
from gateway.core.specs import AuditSpec

SCRIPT = Path(__file__).parents[4] / "scripts" / "verify-proof"


def rotated(bench: Any) -> Any:
    """A log under three keys, by one writer that runs all the time; the verifiers of all three."""
    keys = [bench.signer.verifier]
    writer = bench.writer(segment_bytes=1500)
    writer.renew = KeyWatch(str(bench.state_dir))
    writer.open()
    for number in range(3):
        writer.write([bench_intent(number)])
        writer.checkpoint()
        if number < 2:
            rotate(str(bench.state_dir), bench.directory, bench.clock)
            writer.look = True
            keys.append(load_verifier(bench.state_dir / "keys" / PUBLIC_KEY))
    writer.close()
    return keys


def bench_intent(number: int) -> bytes:
    return b',"kind":"intent","time":1000.0,"request_id":"r%d","tenant":"acme"' % number


def test_the_log_is_verified_with_any_of_the_keys(log_bench: Any) -> None:
    keys = rotated(log_bench)
    assert len({key.key_id for key in keys}) == 3
    for key in keys:
        report = verify_log(log_bench.directory, key)
        assert report.ok and report.writers[0].unsigned <= 1
        assert trusted(key, log_bench.directory).known == {one.key_id for one in keys}
    events = [record for number in (1, 2) for record in log_bench.records(number) if record.get("event") == "audit.key_rotated"]
    assert [(one["detail"]["previous"], one["detail"]["key"]) for one in events] == [
        (keys[0].key_id, keys[1].key_id),
        (keys[1].key_id, keys[2].key_id),
    ]
    assert all(one["detail"]["endorsed"] for one in events)


def test_a_gateway_that_starts_after_a_change_goes_on(log_bench: Any) -> None:
    log_bench.log()
    rotate(str(log_bench.state_dir), log_bench.directory, log_bench.clock)
    first, log_bench.signer = log_bench.signer, load_signer(str(log_bench.state_dir))
    log_bench.log()
    assert "audit.broken" not in log_bench.events()
    assert verify_log(log_bench.directory, first.verifier).ok and verify_log(log_bench.directory, log_bench.signer.verifier).ok


def test_the_keys_are_published_with_their_endorsements(log_bench: Any) -> None:
    keys = rotated(log_bench)
    found = published(keys[-1], log_bench.directory)
    assert [one["id"] for one in found] == [key.key_id for key in keys]
    assert [one["current"] for one in found] == [False, False, True]
    assert found[0]["since"] is None and found[2]["endorsement"]["previous"] == keys[1].key_id
    assert all("BEGIN PUBLIC KEY" in one["pem"] for one in found)


def test_without_the_endorsement_the_new_key_is_not_believed(log_bench: Any) -> None:
    keys = rotated(log_bench)
    path = log_bench.directory / FILE
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    assert verify_log(log_bench.directory, keys[0]).problems[0].reason == "the signature is not genuine"


@pytest.mark.parametrize("field", ["public", "previous_public", "signature", "countersignature", "key"])
def test_a_forged_endorsement_links_nothing(log_bench: Any, tmp_path: Path, field: str) -> None:
    rotated(log_bench)
    stranger = load_signer(str(tmp_path / "stranger"))
    first, second = endorsements(log_bench.directory)
    forged = {
        "public": stranger.verifier.raw.hex(),
        "previous_public": stranger.verifier.raw.hex(),
        "signature": second.signature,
        "countersignature": first.signature,
        "key": stranger.key_id,
    }
    (log_bench.directory / FILE).write_bytes(msgspec.json.encode(msgspec.structs.replace(first, **{field: forged[field]})) + b"\n{")
    assert endorsements(log_bench.directory) == []


def test_a_replaced_key_signs_nothing_any_more(log_bench: Any) -> None:
    """Whoever has got hold of an old key cannot go on with it."""
    old = log_bench.signer
    rotated(log_bench)
    path = log_bench.directory / "checkpoints-0.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    checkpoint = read_checkpoint(lines[-1])
    assert checkpoint is not None
    path.write_bytes(b"".join(lines[:-1]) + msgspec.json.encode(old.sign(checkpoint)) + b"\n")
    report = verify_log(log_bench.directory, old.verifier)
    assert (report.problems[0].line, report.problems[0].reason) == (len(lines), "it is signed with a key that had been replaced before")


def test_the_lock_names_the_new_key(log_bench: Any) -> None:
    writer = log_bench.writer()
    writer.renew = KeyWatch(str(log_bench.state_dir))
    writer.open()
    rotate(str(log_bench.state_dir), log_bench.directory, log_bench.clock)
    beside = log_bench.writer(writer="gw-1")
    beside.signer = load_signer(str(log_bench.state_dir))
    beside.open()  # although its neighbour still has the old one
    writer.look = True
    writer.mind()
    assert holder(log_bench.directory, "0") == load_signer(str(log_bench.state_dir)).key_id
    writer.close()
    beside.close()


def test_a_change_that_was_interrupted_is_finished_by_the_next(log_bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    log_bench.log()
    keys = log_bench.state_dir / "keys"
    before = (keys / SIGNING_KEY).read_bytes()

    def killed(source: Path, target: Path, replace: Any = os.replace) -> None:
        if target.name == SIGNING_KEY:
            raise KeyboardInterrupt
        replace(source, target)

    with monkeypatch.context() as patched:
        patched.setattr("gateway.audit.signing_keys.os.replace", killed)
        with pytest.raises(KeyboardInterrupt):
            rotate(str(log_bench.state_dir), log_bench.directory, log_bench.clock)
    assert (keys / SIGNING_KEY).read_bytes() == before and len(endorsements(log_bench.directory)) == 1
    assert verify_log(log_bench.directory, log_bench.signer.verifier).ok
    done = rotate(str(log_bench.state_dir), log_bench.directory, log_bench.clock)
    assert len(endorsements(log_bench.directory)) == 1 and not (keys / NEXT_KEY).exists()
    assert load_signer(str(log_bench.state_dir)).key_id == done.key == load_verifier(keys / PUBLIC_KEY).key_id


def test_an_endorsement_without_its_key_is_told(log_bench: Any) -> None:
    log_bench.log()
    key = (log_bench.state_dir / "keys" / SIGNING_KEY).read_bytes()
    rotate(str(log_bench.state_dir), log_bench.directory, log_bench.clock)
    (log_bench.state_dir / "keys" / SIGNING_KEY).write_bytes(key)
    with pytest.raises(ConfigError, match="is gone"):
        rotate(str(log_bench.state_dir), log_bench.directory, log_bench.clock)


def test_no_writer_begins_with_a_key_that_another_has_followed(log_bench: Any) -> None:
    state_dir, keys = str(log_bench.state_dir), log_bench.state_dir / "keys"
    log_bench.log()
    older = (keys / SIGNING_KEY).read_bytes()
    assert present_signer(state_dir, log_bench.directory, "0").key_id == log_bench.signer.key_id
    done = rotate(state_dir, log_bench.directory, log_bench.clock)
    assert present_signer(state_dir, log_bench.directory, "0").key_id == done.key
    newer = (keys / SIGNING_KEY).read_bytes()
    (keys / SIGNING_KEY).write_bytes(older)  # from a backup
    with pytest.raises(ConfigError, match=f"the key {done.key} has replaced it"):
        AuditBroker(AuditSpec(), state_dir, sink=FileSink(log_bench.directory, "0", segment_bytes=1000, sync=False))
    (keys / NEXT_KEY).write_bytes(newer)  # as a crash leaves it
    assert present_signer(state_dir, log_bench.directory, "0").key_id == done.previous


def test_no_writer_begins_without_the_keys_that_signed_its_log(log_bench: Any) -> None:
    state_dir, keys = str(log_bench.state_dir), log_bench.state_dir / "keys"
    log_bench.log()
    own = (keys / SIGNING_KEY).read_bytes()
    kept = {path.name: path.read_bytes() for path in log_bench.directory.iterdir()}
    reason = f"the audit log in {log_bench.directory} was last signed with the key {log_bench.signer.key_id}, and {keys / SIGNING_KEY} is "
    (keys / SIGNING_KEY).unlink()
    for writer in ("0", "gw-1"):  # a replica whose id is lost, too, has a writer that is new
        with pytest.raises(ConfigError, match=f"^state_dir: {reason}missing: put back .*operations.md#backup-and-restore"):
            present_signer(state_dir, log_bench.directory, writer)
    assert not (keys / SIGNING_KEY).exists()
    (keys / SIGNING_KEY).touch(0o600)
    (keys / SIGNING_KEY).write_bytes(new_signing_key()[0])
    with pytest.raises(ConfigError, match=f"{reason}the key [0-9a-f]+, which {FILE} does not link to it: put back"):
        AuditBroker(AuditSpec(), state_dir, sink=FileSink(log_bench.directory, "0", segment_bytes=1000, sync=False))
    assert {path.name: path.read_bytes() for path in log_bench.directory.iterdir()} == kept
    assert present_signer(state_dir, log_bench.directory, "gw-1")  # whose neighbour another gateway may own: see refuse_strangers
    (keys / SIGNING_KEY).write_bytes(own)
    assert present_signer(state_dir, log_bench.directory, "0").key_id == log_bench.signer.key_id


def test_keys_that_are_newer_than_the_log_need_their_endorsements(log_bench: Any) -> None:
    """The log is from an older backup than the keys."""
    state_dir = str(log_bench.state_dir)
    log_bench.log()
    done = rotate(state_dir, log_bench.directory, log_bench.clock)
    newest = (log_bench.directory / FILE).read_bytes()
    (log_bench.directory / FILE).unlink()
    with pytest.raises(ConfigError, match=f"is the key {done.key}, which {FILE} does not link to it"):
        present_signer(state_dir, log_bench.directory, "0")
    (log_bench.directory / FILE).write_bytes(newest)
    assert present_signer(state_dir, log_bench.directory, "0").key_id == done.key


def test_proofs_over_a_change_are_verified_with_the_first_key(log_bench: Any, tmp_path: Path) -> None:
    first = tmp_path / "first.pem"
    first.write_bytes((log_bench.state_dir / "keys" / PUBLIC_KEY).read_bytes())
    rotated(log_bench)
    signer = load_signer(str(log_bench.state_dir))
    keys = [msgspec.to_builtins(one) for one in endorsements(log_bench.directory)]
    main = runpy.run_path(str(SCRIPT))["main"]
    file = tmp_path / "proof.json"
    for linked, expected in ((keys, 0), ([], 1)):
        proofs = prove(log_bench.directory, signer, log_bench.clock, "r2")
        file.write_text(json.dumps({"request_id": "r2", "proofs": proofs, "keys": linked}))
        assert main(["verify-proof", str(first), str(file)]) == expected
        verifier = trusted(CheckpointVerifier.from_raw(signer.verifier.raw), log_bench.directory)
        found = prove_consistency(log_bench.directory, verifier, "0", 1, None)
        file.write_text(json.dumps({**found, "keys": linked}))
        assert main(["verify-proof", str(first), str(file)]) == expected
