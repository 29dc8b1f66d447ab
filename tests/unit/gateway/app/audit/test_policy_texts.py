"""Texts of policies are kept as long as the audit log can name them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from gateway.app.audit.policy_texts import DATED, FOLDER, PolicyTexts, date_texts, forget_texts, policy_text
from gateway.audit.chain import Chain
from gateway.audit.record import SegmentRecord
from gateway.config.convert import NO_PLUGINS, PluginSchemas
from gateway.config.load import describe
from gateway.core.specs import ConfigSpec, RoleSpec

DAY = 86_400.0
NOW = 1000 * DAY


class Place:
    """A folder of texts and an audit log; times are days."""

    def __init__(self, path: Path) -> None:
        self.folder, self.log = path / "policies", path / "audit"
        self.log.mkdir()
        date_texts(self.folder)

    def text(self, name: str, last: float) -> None:
        (self.folder / f"{name}.json").write_text("{}")
        os.utime(self.folder / f"{name}.json", (last * DAY, last * DAY))

    def segment(self, writer: str, number: int, began: float | None) -> None:
        header = SegmentRecord(time=(began or 0) * DAY, format=1, segment=number, writer=writer, previous="0" * 64, config=1)
        line = b"nothing\n" if began is None else Chain().seal([header])
        (self.log / f"audit-{writer}-{number:08d}.jsonl").write_bytes(line)

    def left(self, kept: float = 0.0) -> str:
        forget_texts(self.folder, self.log, NOW, kept * DAY)
        return "".join(sorted(path.stem for path in self.folder.glob("*.json")))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = Place(tmp_path)
    for name, last in (("a", 600), ("b", 700), ("c", 899), ("d", 901), ("e", 950)):
        made.text(name, last)
    return made


def test_a_text_goes_once_the_log_begins_later_than_it_was_in_force(place: Place) -> None:
    place.segment("one", 7, 901.5)
    place.segment("one", 8, 990)
    assert place.left() == "de", "d was in force within a day of the log's begin"
    place.segment("one", 7, 999)
    assert place.left() == "e", "the newest one is in force"


def test_the_earliest_segment_of_all_writers_counts(place: Place) -> None:
    """One of a tenant that is held, and one that was begun while the clock was wrong."""
    place.segment("one", 90, 995)
    place.segment("two", 3, 702)
    place.segment("one", 91, 650)
    assert place.left() == "bcde"


def test_with_an_archive_a_text_is_kept_as_long_as_the_records(place: Place) -> None:
    place.segment("one", 7, 999)
    assert place.left(kept=365) == "bcde" and place.left(kept=200) == "cde"


@pytest.mark.parametrize("began", [None, 1001.0])
def test_nothing_goes_where_the_log_does_not_say_when_it_begins(place: Place, began: float | None) -> None:
    assert place.left() == "abcde", "no log"
    place.segment("one", 7, began)
    assert place.left() == "abcde"
    (place.folder / DATED).unlink()
    place.segment("one", 7, 999)
    assert place.left() == "abcde", "times that mean nothing yet"


def test_texts_from_before_count_as_in_force_until_now(tmp_path: Path) -> None:
    tmp_path.joinpath("policies").mkdir()
    old = tmp_path / "policies" / "a.json"
    old.write_text("{}")
    os.utime(old, (0, 0))
    date_texts(tmp_path / "policies")
    assert old.stat().st_mtime > 0
    os.utime(old, (5, 5))
    date_texts(tmp_path / "policies")
    assert old.stat().st_mtime == 5, "once"


def test_a_text_that_is_in_force_again_has_the_present_time_and_is_written_again_if_it_is_gone(tmp_path: Path) -> None:
    texts = PolicyTexts(tmp_path, PluginSchemas(), cast(Any, None), cast(Any, None))
    spec = ConfigSpec(version=1)
    for _ in range(2):
        path = tmp_path / FOLDER / f"{texts._write(spec)}.json"
        assert path.stat().st_mtime > 1000.0
        os.utime(path, (5, 5))
    again = PolicyTexts(tmp_path, PluginSchemas(), cast(Any, None), cast(Any, None))
    assert again._write(spec) == path.stem and path.stat().st_mtime > 1000.0, "after a restart"
    path.unlink()
    assert again._write(spec) == path.stem and path.exists()


def test_roles_are_described_one_by_one_as_they_would_be_together() -> None:
    """A hundred thousand in one call would keep the interpreter from the event loop."""
    roles = {name: RoleSpec(permissions=("infer:*", f"admin:{name}"), confined=name != "b") for name in ("z", "b", "token", "ä", "A")}
    spec = ConfigSpec(version=1, roles=roles)
    text = policy_text(spec, NO_PLUGINS)
    together = msgspec.json.encode(describe(spec)["roles"], order="deterministic")
    assert b'"roles":' + together + b',"usage"' in text
    assert sorted(roles) == list(msgspec.json.decode(text)["roles"])
