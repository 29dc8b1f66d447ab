"""Tampers with an audit log in random ways, each on a fresh copy, and has it verified: `python -m loadtests.audit.tamper [--count 1000]`.

The log has three writers with many segments each: some compressed, some taken away with tombstones, two signing keys. Required: every
tampering is detected with the public key alone, and the first problem that is named is in the file that was changed, or, where whole
segments or files are gone, where the log notices; where single lines were changed, it is the line. With `--named`, prints which was found
where. Exit code 1 when something was not detected or not named.

A tampering that leaves the bytes as they were, or changes only what no checkpoint covers yet (the last line), is drawn again.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from gateway.audit.chain import GENESIS, Chain, payload_of
from gateway.audit.crypto import CheckpointVerifier, load_signer
from gateway.audit.envelopes import RecordSealer
from gateway.audit.keeper import Keeper
from gateway.audit.keyring import DataKey
from gateway.audit.record import CheckpointRecord
from gateway.audit.repair import read_checkpoint
from gateway.audit.segments import open_segment
from gateway.audit.signing_keys import KeyWatch, rotate
from gateway.audit.sinks.file import FileSink, checkpoints_name, list_segments
from gateway.audit.statements import Seal, tombstone, tombstones_name
from gateway.audit.verify import verify_log
from gateway.audit.writer import ChainWriter
from gateway.core.clock import FakeClock
from gateway.core.specs.retention import RetentionSpec
from gateway.core.types import IntentRecord, OutcomeRecord

WRITERS: Final = ("gw", "gw-1", "gw-2")
DAY: Final = 86400.0


class Keys:
    """One key for everybody."""

    def __init__(self) -> None:
        self._key = DataKey("dk-1", "", 1, bytes(32))

    def kept(self, tenant: str) -> DataKey:
        return self._key


def made(state: Path, sealed: bool = False) -> None:
    """The log that is tampered with. sealed: whole records are encrypted, from the tenth round on."""
    clock, directory = FakeClock(), state / "audit"
    signer = load_signer(str(state))
    writers = [ChainWriter(FileSink(directory, name, segment_bytes=6000, sync=False), signer, clock) for name in WRITERS]
    for writer in writers:
        writer.renew = KeyWatch(str(state))
        writer.open()
    for round in range(40):
        clock.advance(DAY / 4)
        for writer in writers if sealed and round == 10 else ():
            writer.cover = RecordSealer(Keys())  # type: ignore[arg-type]
        for number, writer in enumerate(writers):
            request = f"r{number}-{round}"
            intent = IntentRecord(clock.wall(), request, f"t{round % 3}", "ci", "api_key", "10.0.0.1", "chat", "demo-chat", False, 10)
            writer.write([intent, OutcomeRecord(clock.wall(), request, "ok", 200, completion_tokens=round)])
            writer.checkpoint()
        if round == 20:
            rotate(str(state), directory, clock)
            for writer in writers:
                writer.look = True
    for writer in writers:
        writer.close()
    fresh = load_signer(str(state))
    Keeper(directory, state, RetentionSpec(compress_after=2 * DAY, delete_after=8 * DAY), lambda: fresh, clock).look()


@dataclass
class Case:
    """A copy of the log, and what was done to it. touched: names of the files where it must be noticed. line: the
    first one that is another; 0 where that is not of lines."""

    directory: Path
    chance: random.Random
    touched: tuple[str, ...] = ()
    line: int = 0

    def writer(self) -> str:
        return self.chance.choice(WRITERS)

    def segments(self, writer: str) -> list[tuple[int, Path]]:
        return list_segments(self.directory)[writer]

    def plain(self, writer: str | None = None) -> Path:
        """A segment that is not compressed."""
        return self.chance.choice([path for _, path in self.segments(writer or self.writer()) if path.suffix == ".jsonl"])

    def packed(self) -> Path:
        return self.chance.choice([path for _, path in self.segments(self.writer()) if path.suffix == ".zst"])

    def lines(self, path: Path) -> list[bytes]:
        return path.read_bytes().splitlines(keepends=True)

    def covered(self, path: Path) -> int:
        """How many lines of a segment may be changed so that it must be noticed: all but the newest checkpoint's own line."""
        newest = path == self.segments(path.name.removeprefix("audit-").rsplit("-", 1)[0])[-1][1]
        return len(self.lines(path)) - (1 if newest else 0)

    def put(self, path: Path, lines: list[bytes]) -> None:
        with open_segment(path) as file:
            before = list(file)
        same = next((at for at, (old, new) in enumerate(zip(before, lines, strict=False)) if old != new), min(len(before), len(lines)))
        self.touched, self.line = (path.name,), same + 1
        path.write_bytes(b"".join(lines))


def flip(case: Case) -> None:
    path = case.plain()
    lines = case.lines(path)
    number = case.chance.randrange(case.covered(path))
    line = bytearray(lines[number])
    at = case.chance.randrange(len(line))
    line[at] ^= 1 << case.chance.randrange(8)
    lines[number] = bytes(line)
    case.put(path, lines)


def delete(case: Case) -> None:
    path = case.plain()
    lines = case.lines(path)
    del lines[case.chance.randrange(case.covered(path))]
    case.put(path, lines)


def insert(case: Case) -> None:
    path = case.plain()
    lines = case.lines(path)
    lines.insert(case.chance.randrange(case.covered(path)), case.chance.choice(lines))
    case.put(path, lines)


def swap(case: Case) -> None:
    path = case.plain()
    lines = case.lines(path)
    one, other = case.chance.sample(range(case.covered(path)), 2)
    lines[one], lines[other] = lines[other], lines[one]
    case.put(path, lines)


def truncate(case: Case) -> None:
    """Of the newest segment, down to before its last checkpoint's line."""
    path = case.segments(case.writer())[-1][1]
    lines = case.lines(path)
    case.put(path, lines[: case.chance.randrange(len(lines) - 1)])


def replay(case: Case) -> None:
    """An older segment in the place of a newer one."""
    path = case.plain()
    writer = path.name.removeprefix("audit-").rsplit("-", 1)[0]
    _, older = case.chance.choice([entry for entry in case.segments(writer) if entry[1] != path])
    with open_segment(older) as file:
        case.put(path, list(file))


def rechain(case: Case) -> None:
    """A changed record, and every hash after it computed anew, by somebody without the key."""
    writer = case.writer()
    plain = [path for _, path in case.segments(writer) if path.suffix == ".jsonl"]
    start = case.chance.randrange(len(plain))
    chain: Chain | None = None
    for path in plain[start:]:
        lines, found = case.lines(path), []
        for number, line in enumerate(lines):
            record = json.loads(line)
            payload = payload_of(line)
            if chain is None:
                chain = Chain(record["seq"] - 1, record.get("previous", GENESIS))
                changed = case.chance.randrange(1, case.covered(path))
            if path == plain[start] and number == changed:
                payload = payload.replace(b'"time":1', b'"time":2', 1)
            if number == 0 and path != plain[start]:
                payload = payload.replace(record["previous"].encode(), chain.head.encode())
            found.append(chain.seal([payload]))
            chain.commit()
        path.write_bytes(b"".join(found))
    case.touched = tuple(path.name for path in plain[start:])


def forge_tombstone(case: Case) -> None:
    """A segment is taken away, with a tombstone that somebody else signed."""
    path = case.chance.choice([path for _, path in case.segments(case.writer())[:-1]])
    writer, rest = path.name.removeprefix("audit-").rsplit("-", 1)
    number = int(rest.split(".")[0])
    seals = [json.loads(line) for line in (case.directory / f"seals-{writer}.jsonl").read_bytes().splitlines()]
    seal = next((one for one in seals if one["segment"] == number), seals[-1])
    from_seal = msgspec.convert({**seal, "segment": number}, Seal)
    stranger = load_signer(str(case.directory / "stranger"))
    forged = stranger.state(b"gatehouse audit tombstone 1\n", tombstone(from_seal, 1.0, "age", ""))
    if case.chance.random() < 0.5:
        forged = msgspec.structs.replace(forged, key=seal["key"], signature=seal["signature"])
    graves = case.directory / tombstones_name(writer)
    with graves.open("ab") as file:
        file.write(msgspec.json.encode(forged) + b"\n")
    path.unlink()
    shutil.rmtree(case.directory / "stranger")
    after = dict(case.segments(writer)).get(number + 1)
    case.touched = (graves.name, after.name if after is not None else graves.name)


def remove_packed(case: Case) -> None:
    path = case.packed()
    writer, rest = path.name.removeprefix("audit-").rsplit("-", 1)
    path.unlink()
    case.touched = (dict(case.segments(writer))[int(rest.split(".")[0]) + 1].name,)


def damage_packed(case: Case) -> None:
    """A byte of a compressed segment; one that a decoder has no use for is drawn again."""
    path = case.packed()
    with open_segment(path) as file:
        before = file.read()
    data = path.read_bytes()
    while True:
        changed = bytearray(data)
        changed[case.chance.randrange(len(data))] ^= 1 << case.chance.randrange(8)
        path.write_bytes(bytes(changed))
        try:
            with open_segment(path) as file:
                if file.read() == before:
                    continue
        except OSError:
            pass
        break
    case.touched = (path.name,)


def remove_tombstone(case: Case) -> None:
    path = case.directory / tombstones_name(case.writer())
    lines = case.lines(path)
    del lines[case.chance.randrange(len(lines))]
    path.write_bytes(b"".join(lines))
    writer = path.name.removeprefix("tombstones-").removesuffix(".jsonl")
    case.touched = (path.name, case.segments(writer)[0][1].name)


def checkpoints(case: Case) -> None:
    """The checkpoints file: a line deleted, changed, repeated or cut off."""
    path = case.directory / checkpoints_name(case.writer())
    lines = case.lines(path)
    number = case.chance.randrange(len(lines) - 1)
    kind = case.chance.choice(("delete", "change", "repeat", "cut"))
    if kind == "delete":
        del lines[number]
    elif kind == "repeat":
        lines.insert(number, lines[number])
    elif kind == "cut":
        lines = lines[: number + 1]
    else:
        found = read_checkpoint(lines[number])
        assert isinstance(found, CheckpointRecord)
        lines[number] = msgspec.json.encode(msgspec.structs.replace(found, covers=found.covers + 1)) + b"\n"
    case.put(path, lines)
    if kind == "cut":
        case.line = 0  # of what is gone


def remove_writer(case: Case) -> None:
    writer = case.writer()
    for path in list(case.directory.iterdir()):
        if path.is_file() and (f"-{writer}-0" in path.name or path.name.endswith((f"-{writer}.jsonl", f"-{writer}.lock"))):
            path.unlink()
    case.touched = (checkpoints_name(writer),)


KINDS: Final[dict[str, Callable[[Case], None]]] = {
    "flip": flip,
    "delete": delete,
    "insert": insert,
    "swap": swap,
    "truncate": truncate,
    "replay an old segment": replay,
    "re-chain without the key": rechain,
    "forged tombstone": forge_tombstone,
    "removed compressed segment": remove_packed,
    "damaged compressed segment": damage_packed,
    "removed tombstone": remove_tombstone,
    "checkpoints file": checkpoints,
    "removed writer": remove_writer,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--sealed", action="store_true", help="a log whose records are encrypted as a whole")
    parser.add_argument("--named", action="store_true", help="print each finding")
    options = parser.parse_args()
    chance, started = random.Random(options.seed), time.monotonic()
    done: Counter[str] = Counter()
    missed: Counter[str] = Counter()
    unnamed: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="tamper-") as name:
        state = Path(name) / "state"
        first = load_signer(str(state)).verifier
        made(state, options.sealed)
        report = verify_log(state / "audit", first)
        assert report.ok and all(writer.expired for writer in report.writers), report.problems
        assert any(path.suffix == ".zst" for found in list_segments(state / "audit").values() for _, path in found)
        for number in range(options.count):
            kind = list(KINDS)[number % len(KINDS)]
            copy = Path(name) / "copy"
            shutil.copytree(state / "audit", copy)
            case = Case(copy, chance)
            KINDS[kind](case)
            _judge(kind, case, first, done, missed, unnamed, options.named)
            if number % 100 == 99:
                print(f"{number + 1} tamperings", flush=True)
            shutil.rmtree(copy)
    print(f"seed {options.seed}, {time.monotonic() - started:.0f} s, {sum(done.values())} tamperings of {len(report.writers)} writers' log")
    for kind in KINDS:
        print(f"{kind:28} {done[kind]:5}, not detected {missed[kind]}, named elsewhere {unnamed[kind]}")
    print(f"not detected {sum(missed.values())}, named elsewhere {sum(unnamed.values())}")
    sys.exit(1 if missed or unnamed else 0)


def _judge(
    kind: str,
    case: Case,
    key: CheckpointVerifier,
    done: Counter[str],
    missed: Counter[str],
    unnamed: Counter[str],
    told: bool,
) -> None:
    report = verify_log(case.directory, key, patience=0.0)
    done[kind] += 1
    if report.ok:
        missed[kind] += 1
        print(f"NOT DETECTED: {kind} in {case.touched}")
        return
    named = {(problem.file, problem.line if case.line else 0) for problem in report.problems}
    if not named & {(name, case.line) for name in case.touched}:
        unnamed[kind] += 1
        print(f"NAMED ELSEWHERE: {kind} in {case.touched}: {report.problems[0]}")
    elif told:
        print(f"{kind}: {report.problems[0].file}:{report.problems[0].line}: {report.problems[0].reason}")


if __name__ == "__main__":
    main()
