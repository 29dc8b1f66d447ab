"""Closed segments are sealed, compressed, archived and taken away, and the log is verified at every moment of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.audit.checkpoint_copies import CheckpointCopy
from gateway.audit.keeper import LONGEST_PAUSE, Keeper
from gateway.audit.proof import prove
from gateway.audit.reader import LogReader
from gateway.audit.sinks.file import list_segments
from gateway.audit.statements import TOMBSTONE, append, seals, tombstones, tombstones_name
from gateway.audit.verify import verify_log
from gateway.core.audit_questions import AuditScope
from gateway.core.specs.retention import CopySpec, RetentionSpec

DAY = 86400.0


class Shelf:
    """An archive that fails on command."""

    def __init__(self) -> None:
        self.failing = False
        self.segments: dict[str, bytes] = {}

    def put_segment(self, path: Path, seal: Any) -> str:
        if self.failing:
            raise OSError("the archive is away")
        assert path.name.endswith(".zst")
        self.segments[path.name] = path.read_bytes()
        return f"s3://bucket/{path.name}"


class Kept:
    def __init__(self, bench: Any) -> None:
        self.bench, self.shelf, self.needed = bench, Shelf(), 1 << 62
        self.archive: Any = None
        self.copies: tuple[CheckpointCopy, ...] = ()

    def keeper(self, **settings: Any) -> Keeper:
        spec = RetentionSpec(**settings)
        signer = self.bench.signer
        more: dict[str, Any] = {"archive": self.archive, "copies": self.copies, "needed": lambda writer: self.needed}
        return Keeper(self.bench.directory, self.bench.state_dir, spec, lambda: signer, self.bench.clock, **more)

    def numbers(self, writer: str = "0") -> list[int]:
        return [number for number, _ in list_segments(self.bench.directory).get(writer, [])]

    def ok(self) -> bool:
        return bool(verify_log(self.bench.directory, self.bench.signer.verifier).ok)

    def reasons(self) -> list[tuple[str, int, str]]:
        report = verify_log(self.bench.directory, self.bench.signer.verifier)
        return [(problem.file, problem.line, problem.reason) for problem in report.problems]


@pytest.fixture
def kept(log_bench: Any, make: Any) -> Kept:
    """Two writers with many segments; one a day, the tenants acme and globex in turns."""
    for name in ("0", "gw-1"):
        writer = log_bench.writer(writer=name, segment_bytes=2000)
        writer.open()
        for number in range(24):
            log_bench.clock.advance(DAY / 4)
            tenant = "globex" if number // 6 % 2 else "acme"
            request = f"{name}-{number}"
            record = msgspec.structs.replace(make.intent(request, tenant=tenant), time=log_bench.clock.wall())
            writer.write([record, msgspec.structs.replace(make.outcome(request), time=log_bench.clock.wall())])
        writer.close()
    found = Kept(log_bench)
    assert len(found.numbers()) > 6
    return found


def test_all_but_the_newest_are_sealed_once(kept: Kept) -> None:
    keeper = kept.keeper(compress_after=None)
    before = kept.numbers()
    assert keeper.look() == []
    for writer in ("0", "gw-1"):
        found = seals(kept.bench.directory, writer, kept.bench.signer.verifier)
        assert sorted(found.found) == kept.numbers(writer)[:-1] and found.bad == []
    data = (kept.bench.directory / "seals-0.jsonl").read_bytes()
    kept.keeper(compress_after=None).look()
    assert (kept.bench.directory / "seals-0.jsonl").read_bytes() == data and kept.numbers() == before and kept.ok()


def test_a_seal_that_was_cut_off_is_written_again(kept: Kept) -> None:
    kept.keeper(compress_after=None).look()
    path = kept.bench.directory / "seals-0.jsonl"
    path.write_bytes(path.read_bytes()[:-30])
    kept.keeper(compress_after=None).look()
    assert len(seals(kept.bench.directory, "0", kept.bench.signer.verifier).found) == len(kept.numbers()) - 1 and kept.ok()


def test_a_damaged_segment_is_told_and_left(kept: Kept, caplog: pytest.LogCaptureFixture) -> None:
    path = kept.bench.segment(2)
    damaged = path.read_bytes().replace(b'"outcome":"ok"', b'"outcome":"no"', 1)
    path.write_bytes(damaged)
    keeper = kept.keeper(compress_after=0.001, delete_after=0.001)
    news = [(one.event, one.detail.get("segment"), one.outcome) for one in keeper.look()]
    assert ("audit.unsealed", 2, "failed") in news and keeper.unsealed == {("0", 2)}
    assert [one for one in keeper.look() if one.event == "audit.unsealed"] == []
    assert path.read_bytes() == damaged and 2 in kept.numbers()
    assert kept.reasons()[0][0] == path.name


def test_old_ones_are_compressed(kept: Kept) -> None:
    records = list(LogReader(kept.bench.directory, kept.bench.signer.verifier).records())
    kept.keeper(compress_after=10 * DAY).look()
    paths = dict(list_segments(kept.bench.directory)["0"])
    states = [path.name.endswith(".zst") for path in paths.values()]
    assert states[0] and not states[-1] and states == sorted(states, reverse=True)
    reader = LogReader(kept.bench.directory, kept.bench.signer.verifier)
    assert list(reader.records()) == records and kept.ok()
    assert [one["request_id"] for one in reader.tail(8, "0") if "request_id" in one]
    proofs = prove(kept.bench.directory, kept.bench.signer, kept.bench.clock, "0-1")
    assert [one["record"]["kind"] for one in proofs] == ["intent", "outcome"]
    assert {one["request_id"] for one in reader.newest(text="acme")} >= {"0-0"}


def test_old_ones_are_taken_away_and_the_log_still_verifies(kept: Kept) -> None:
    first = kept.bench.records(1)
    news = kept.keeper(delete_after=9 * DAY).look()
    gone = [one.detail["segment"] for one in news if one.event == "audit.expired" and one.target == "audit-0"]
    assert gone and gone == list(range(1, len(gone) + 1)) and kept.numbers()[0] == len(gone) + 1
    grave = tombstones(kept.bench.directory, "0", kept.bench.signer.verifier).found[1]
    assert (grave.first, grave.last, grave.head, grave.why) == (1, len(first), first[-1]["hash"], "age")
    report = verify_log(kept.bench.directory, kept.bench.signer.verifier)
    assert report.ok and report.writers[0].expired == len(gone)
    assert verify_log(kept.bench.directory, kept.bench.signer.verifier, scope=AuditScope(kept.numbers()[0])).ok
    kept.bench.log(batches=3, segment_bytes=2000)  # and a gateway goes on with it
    assert kept.ok()


def test_the_newest_stays_whatever_its_age(kept: Kept) -> None:
    kept.bench.clock.advance(1000 * DAY)
    kept.keeper(delete_after=DAY).look()
    assert len(kept.numbers()) == 1 and kept.ok()


def test_a_clock_that_was_set_forward_takes_nothing_away(kept: Kept) -> None:
    keeper, before = kept.keeper(delete_after=30 * DAY), kept.numbers()
    keeper.look()
    assert kept.numbers() == before
    kept.bench.clock.step(400 * DAY)
    (news,) = keeper.look()
    assert (news.event, news.outcome, news.detail) == ("audit.clock_jumped", "failed", {"seconds": round(400 * DAY)})
    assert keeper.look() == [] and kept.numbers() == before, "told once"
    kept.bench.clock.step(-400 * DAY)
    assert keeper.look() == [] and kept.numbers() == before
    kept.bench.clock.step(400 * DAY)
    assert [one.event for one in keeper.look()] == ["audit.clock_jumped"]
    kept.bench.clock.advance(DAY)  # nobody set it back
    keeper.look()
    assert len(kept.numbers()) == 1 and kept.ok()


def test_the_oldest_of_all_writers_go_while_there_is_too_much(kept: Kept) -> None:
    keeper = kept.keeper(compress_after=None, keep_bytes=12_000)
    keeper.look()
    left = [path for found in list_segments(kept.bench.directory).values() for _, path in found]
    assert sum(path.stat().st_size for path in left) <= 12_000 and len(kept.numbers("gw-1")) > len(kept.numbers("0"))
    assert kept.ok()


def test_what_somebody_has_to_read_stays(kept: Kept) -> None:
    kept.needed = 3
    kept.keeper(delete_after=0.001).look()
    assert kept.numbers()[0] == 3
    kept.needed = 0
    kept.keeper(delete_after=0.001).look()
    assert kept.numbers()[0] == 3 and kept.ok()


def test_a_held_tenants_segments_stay_and_what_follows_them(kept: Kept) -> None:
    keeper = kept.keeper(delete_after=0.001)
    keeper.holds.add("globex", "case 7", "counsel")
    keeper.look()
    left = kept.numbers()
    texts = {number: b"".join(line for line in _lines(path)) for number, path in list_segments(kept.bench.directory)["0"]}
    assert left[0] > 1 and any(b'"tenant":"globex"' in text for text in texts.values())
    for number in left[:-1]:
        assert b'"tenant":"globex"' in texts[number] or b'"tenant":"globex"' in texts.get(number - 1, b"")
    assert kept.ok()  # with gaps
    keeper.holds.release("globex")
    keeper.look()
    assert len(kept.numbers()) == 1 and kept.ok()


def _lines(path: Path) -> list[bytes]:
    from gateway.audit.segments import open_segment  # noqa: PLC0415

    with open_segment(path) as file:
        return list(file)


def test_holds_that_cannot_be_read_hold_everything(kept: Kept) -> None:
    (kept.bench.directory / "holds.json").write_bytes(b"{")
    before = kept.numbers()
    kept.keeper(delete_after=0.001).look()
    assert kept.numbers() == before and kept.ok()


def test_nothing_goes_that_is_not_archived(kept: Kept) -> None:
    kept.archive = kept.shelf
    kept.shelf.failing = True
    keeper = kept.keeper(delete_after=0.001)
    before = kept.numbers()
    news = [one.event for one in keeper.look()]
    assert news == ["audit.archive_failed"] and kept.numbers() == before
    assert keeper.waiting > 0 and keeper.oldest is not None and keeper.failures == 1
    for _ in range(20):
        kept.bench.clock.advance(keeper.trouble.pause)
        assert keeper.look() == []
    assert keeper.trouble.pause == LONGEST_PAUSE
    failures = keeper.failures
    assert keeper.look() == [] and keeper.failures == failures  # not before the pause is over
    kept.shelf.failing = False
    kept.bench.clock.advance(LONGEST_PAUSE)
    news = [one.event for one in keeper.look()]
    assert news.count("audit.archived") == len(kept.shelf.segments) == keeper.archived and "audit.archive_recovered" in news
    assert "audit.expired" in news and len(kept.numbers()) == 1 and (keeper.waiting, keeper.oldest) == (0, None)
    grave = tombstones(kept.bench.directory, "0", kept.bench.signer.verifier).found[1]
    assert grave.archived == "s3://bucket/audit-0-00000001.jsonl.zst" and kept.ok()


def test_what_is_archived_is_not_archived_again(kept: Kept) -> None:
    kept.archive = kept.shelf
    kept.keeper().look()
    count = len(kept.shelf.segments)
    kept.shelf.segments.clear()
    assert kept.keeper().look() == [] and count > 6 and not kept.shelf.segments


def test_an_archive_is_verified_by_itself_and_goes_with_what_is_left(kept: Kept, tmp_path: Path) -> None:
    """Everything as it was, put together again from the archive and the rest."""
    kept.archive = kept.shelf
    kept.keeper(delete_after=9 * DAY).look()
    gone = kept.numbers()[0] - 1
    assert gone > 1
    for name, data in kept.shelf.segments.items():
        (kept.bench.directory / name).write_bytes(data)
    report = verify_log(kept.bench.directory, kept.bench.signer.verifier)
    assert report.ok and report.writers[0].expired == 0 and kept.numbers()[0] == 1


@pytest.mark.parametrize("what", ["signature", "moved", "gone", "whole", "root", "replayed"])
def test_a_forged_tombstone_buries_nothing(kept: Kept, tmp_path: Path, what: str) -> None:
    kept.keeper(delete_after=(3 if what == "replayed" else 9) * DAY).look()
    path = kept.bench.directory / tombstones_name("0")
    lines = path.read_bytes().splitlines(keepends=True)
    record = json.loads(lines[1])
    victim = kept.numbers()[-2:][0]  # a segment that somebody wants to be gone
    if what == "gone":
        lines = lines[:1]
    elif what == "whole":
        path.unlink()
        lines = []
    elif what == "moved":
        lines.append(json.dumps({**record, "segment": victim}).encode() + b"\n")
    elif what == "replayed":
        lines[1] = (kept.bench.directory / tombstones_name("gw-1")).read_bytes().splitlines(keepends=True)[1]
    else:
        lines[1] = json.dumps({**record, what: "00" * 32}, separators=(",", ":")).encode() + b"\n"
    if lines:
        path.write_bytes(b"".join(lines))
    if what == "moved":
        kept.bench.segment(victim).unlink(missing_ok=True)
        kept.bench.segment(victim).with_name(f"{kept.bench.segment(victim).name}.zst").unlink(missing_ok=True)
    problems = kept.reasons()
    assert problems
    assert any(file == path.name and line in (2, len(lines)) for file, line, _ in problems) or any(
        "missing" in text for _, _, text in problems
    )


def test_a_tombstone_of_other_lines_does_not_fit(kept: Kept) -> None:
    """Even one that was signed: by somebody who had the key and wanted lines to be gone."""
    keeper = kept.keeper(compress_after=None)
    keeper.look()
    seal = seals(kept.bench.directory, "0", kept.bench.signer.verifier).found[2]
    from gateway.audit.statements import tombstone  # noqa: PLC0415

    grave = msgspec.structs.replace(tombstone(seal, 1.0, "age", ""), last=seal.last + 1, head="ab" * 32)
    append(kept.bench.directory / tombstones_name("0"), TOMBSTONE, grave, kept.bench.signer, 0)
    kept.bench.segment(2).unlink()
    assert any("does not follow" in reason for _, _, reason in kept.reasons())


def test_a_crash_between_the_tombstone_and_the_end_is_finished(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    class Crash(BaseException):
        pass

    def crash(*_: Any, **__: Any) -> None:
        raise Crash

    keeper = kept.keeper(compress_after=None, delete_after=9 * DAY)
    with monkeypatch.context() as patched:
        patched.setattr("gateway.audit.keeper.Path.unlink", crash)
        with pytest.raises(Crash):
            keeper.look()
    assert kept.numbers()[0] == 1 and kept.ok()
    kept.keeper(compress_after=None, delete_after=9 * DAY).look()
    assert kept.numbers()[0] > 1 and kept.ok()
    found = tombstones(kept.bench.directory, "0", kept.bench.signer.verifier)
    assert found.bad == [] and sorted(found.found) == list(range(1, kept.numbers()[0]))


def test_checkpoints_are_copied_to_a_second_place(kept: Kept, tmp_path: Path) -> None:
    folder = tmp_path / "second"
    kept.copies = (CheckpointCopy("second", CopySpec(folder=str(folder)), None),)
    kept.keeper(compress_after=None).look()
    kept.keeper(compress_after=None).look()
    for writer in ("0", "gw-1"):
        name = f"checkpoints-{writer}.jsonl"
        assert (folder / name).read_bytes() == (kept.bench.directory / name).read_bytes()
    kept.bench.log(batches=2)
    kept.keeper(compress_after=None).look()
    assert (folder / "checkpoints-0.jsonl").read_bytes() == (kept.bench.directory / "checkpoints-0.jsonl").read_bytes()
    assert verify_log(kept.bench.directory, kept.bench.signer.verifier, checkpoints=folder).ok


def test_a_place_that_takes_no_copies_is_told_once(kept: Kept, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    kept.copies = (CheckpointCopy("blocked", CopySpec(folder=str(blocked / "below")), None),)
    keeper = kept.keeper(compress_after=None)
    assert [one.event for one in keeper.look()] == ["audit.copy_failed"]
    kept.bench.clock.advance(1.0)
    assert keeper.look() == []
    blocked.unlink()
    kept.bench.clock.advance(LONGEST_PAUSE)
    assert [one.event for one in keeper.look()] == ["audit.copy_recovered"]


def test_a_look_ends_soon_when_the_process_ends(kept: Kept) -> None:
    keeper = kept.keeper()
    keeper.stop()
    assert keeper.look() == [] and not (kept.bench.directory / "seals-0.jsonl").exists() and kept.ok()
