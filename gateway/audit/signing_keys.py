"""The keys that sign the log, one after the other: each new one is signed by the one before it, and signs that one in turn.

The endorsements are in `signing-keys.jsonl`, beside the log: whoever trusts one of the keys can tell all the others, and needs to trust no
file. A key that was replaced signs nothing any more; its private half is gone. Everything here blocks.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from gateway.audit.crypto import (
    SIGNING_KEY,
    CheckpointVerifier,
    Signer,
    load_signer,
    new_signing_key,
    public_pem,
    replace_file,
)
from gateway.audit.encode import encode_json
from gateway.audit.neighbours import writers_in
from gateway.audit.repair import last_checkpoint
from gateway.core.clock import Clock
from gateway.core.errors import ConfigError

FILE: Final = "signing-keys.jsonl"
NEXT_KEY: Final = "audit-signing.next.pem"
MOST: Final = 10_000
"""Keys in a file that is still read."""
_CONTEXT: Final = b"gatehouse audit key 1\n"
_MEND: Final = (
    "put back the keys that belong to this log, and the newest signing-keys.jsonl; if they are lost, move the log away and start "
    "an empty one (docs/operations.md#backup-and-restore)"
)


class Endorsement(msgspec.Struct, frozen=True, omit_defaults=True):
    """A signed statement: at `time`, the key `key` took the place of `previous`. Both public keys in hex.

    signature: of the previous key; countersignature: of the new one, over the same bytes: the JSON without both.
    """

    time: float
    key: str
    public: str
    previous: str
    previous_public: str
    signature: str = ""
    countersignature: str = ""


_decode: Final = msgspec.json.Decoder(Endorsement).decode


def _text(endorsement: Endorsement) -> bytes:
    return _CONTEXT + encode_json(msgspec.structs.replace(endorsement, signature="", countersignature=""))


def endorsements(directory: Path) -> list[Endorsement]:
    """The genuine ones, in their order. What is not genuine says nothing. Raises OSError."""
    try:
        lines = (directory / FILE).read_bytes().splitlines()[:MOST]
    except FileNotFoundError:
        return []
    return [found for line in lines if (found := _genuine(line)) is not None]


def _genuine(line: bytes) -> Endorsement | None:
    try:
        found = _decode(line)
        old = CheckpointVerifier.from_raw(bytes.fromhex(found.previous_public))
        new = CheckpointVerifier.from_raw(bytes.fromhex(found.public))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError):
        return None
    text = _text(found)
    ours = (old.key_id, new.key_id) == (found.previous, found.key)
    return found if ours and old.signed(found.signature, text) and new.signed(found.countersignature, text) else None


def trusting(verifier: CheckpointVerifier, found: Sequence[Endorsement]) -> CheckpointVerifier:
    """A verifier that also knows the keys before and after its own. Of two keys that followed one, the first counts."""
    after: dict[str, str] = {}
    before: dict[str, str] = {}
    for one in found:
        after.setdefault(one.previous_public, one.public)
        before.setdefault(one.public, one.previous_public)
    ring, known = [verifier.raw.hex()], {verifier.raw.hex()}
    while (older := before.get(ring[0])) is not None and older not in known and after.get(older) == ring[0]:
        ring.insert(0, older)
        known.add(older)
    while (newer := after.get(ring[-1])) is not None and newer not in known:
        ring.append(newer)
        known.add(newer)
    return verifier if len(ring) == 1 else CheckpointVerifier.from_raw(verifier.raw, [bytes.fromhex(key) for key in ring])


def trusted(verifier: CheckpointVerifier, directory: Path) -> CheckpointVerifier:
    """The verifier with all keys that are linked to it in a directory. Raises OSError."""
    found = endorsements(directory)
    return trusting(verifier, found) if found else verifier


def published(verifier: CheckpointVerifier, directory: Path) -> list[dict[str, Any]]:
    """All keys, the oldest first: id, PEM, since when (None: from the beginning), and the endorsement. Raises OSError."""
    found = {one.key: one for one in endorsements(directory)}
    keys = []
    for raw in trusted(verifier, directory).ring:
        id = CheckpointVerifier.from_raw(raw).key_id
        linked = found.get(id)
        keys.append(
            {
                "id": id,
                "algorithm": "Ed25519",
                "pem": public_pem(raw),
                "current": raw == verifier.raw,
                "since": None if linked is None else linked.time,
                "endorsement": None if linked is None else msgspec.to_builtins(linked),
            }
        )
    return keys


@contextmanager
def _alone(keys: Path) -> Iterator[None]:
    descriptor = os.open(keys / "audit-signing.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def rotate(state_dir: str, directory: Path, clock: Clock) -> Endorsement:
    """Makes a new signing key, has the present one sign it, publishes that and puts it in its place; running writers take it within
    a second. A crash in between leaves the present key in force, and the next call finishes. Raises ConfigError, OSError."""
    old = load_signer(state_dir)
    keys = Path(state_dir) / "keys"
    draft = keys / NEXT_KEY
    with _alone(keys):
        known = endorsements(directory)
        if (begun := next((one for one in known if one.previous == old.key_id), None)) is not None:
            if not draft.exists():
                raise ConfigError(f"{FILE} says that {begun.key} followed the present key, but {NEXT_KEY} is gone", path="state_dir")
        else:
            draft.unlink(missing_ok=True)
            pem, new = new_signing_key()
            replace_file(draft, pem)
            fresh = Endorsement(clock.wall(), new.key_id, new.verifier.raw.hex(), old.key_id, old.verifier.raw.hex())
            text = _text(fresh)
            begun = msgspec.structs.replace(fresh, signature=old.sign_bytes(text), countersignature=new.sign_bytes(text))
            before = (directory / FILE).read_bytes() if known else b""
            replace_file(directory / FILE, before + encode_json(begun) + b"\n", 0o600)
        os.replace(draft, keys / SIGNING_KEY)
        load_signer(state_dir)  # which puts its public half in place
    return begun


def present_signer(state_dir: str, directory: Path, writer: str) -> Signer:
    """The signing key, for this writer of the log in `directory`; it is made only for a log that nothing has signed yet. Raises ConfigError
    also for a key whose signatures would not be believed: another key has followed it, or none that it is linked to signed this log."""
    path = Path(state_dir) / "keys" / SIGNING_KEY
    try:
        if not path.exists() and (signed := _last_keys(directory)) and not path.exists():  # looked for again: whoever signs has made it
            raise _lost(path, directory, signed.get(writer) or next(iter(signed.values())), "is missing")
        last, _ = last_checkpoint(directory, writer)
        signer = load_signer(state_dir)
        known = signer.verifier.known
        if (directory / FILE).exists():
            with _alone(path.parent):  # no change is half done
                signer = load_signer(state_dir)
                known = trusted(signer.verifier, directory).known
                later = next((one for one in endorsements(directory) if one.previous == signer.key_id), None)
                if later is not None and not (path.parent / NEXT_KEY).exists():
                    raise _replaced(path, directory, signer.key_id, later.key)
    except OSError as error:
        raise ConfigError(f"{error.filename or directory / FILE} cannot be read: {error.strerror}", path="state_dir") from None
    if last is not None and last.key not in known:
        raise _lost(path, directory, last.key, f"is the key {signer.key_id}, which {FILE} does not link to it")
    return signer


def _last_keys(directory: Path) -> dict[str, str]:
    """The id of the key that signed the last checkpoint, for each writer in the directory. Raises OSError."""
    if not directory.is_dir():
        return {}
    found = ((writer, last_checkpoint(directory, writer)[0]) for writer in sorted(writers_in(directory)))
    return {writer: checkpoint.key for writer, checkpoint in found if checkpoint is not None}


def _replaced(path: Path, directory: Path, present: str, later: str) -> ConfigError:
    return ConfigError(
        f"{path} is the key {present}, and {directory / FILE} says that the key {later} has replaced it: {_MEND}", path="state_dir"
    )


def _lost(path: Path, directory: Path, last: str, reason: str) -> ConfigError:
    return ConfigError(f"the audit log in {directory} was last signed with the key {last}, and {path} {reason}: {_MEND}", path="state_dir")


class KeyWatch:
    """Call it: the signing key, when its file has changed since the last call; else None. One that cannot be read changes nothing."""

    def __init__(self, state_dir: str) -> None:
        self._state_dir = state_dir
        self._seen = self._stamp()

    def __call__(self) -> Signer | None:
        stamp = self._stamp()
        if stamp is None or stamp == self._seen:
            return None
        try:
            signer = load_signer(self._state_dir)
        except ConfigError:
            return None
        self._seen = stamp
        return signer

    def _stamp(self) -> tuple[int, int] | None:
        try:
            found = (Path(self._state_dir) / "keys" / SIGNING_KEY).stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns
