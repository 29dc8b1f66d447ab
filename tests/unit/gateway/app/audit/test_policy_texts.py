"""Texts of policies are kept as long as the audit log can name them."""

from __future__ import annotations

import asyncio
import os
import random
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from gateway.app.audit import policy_texts
from gateway.app.audit.policy_texts import DATED, FOLDER, PolicyTexts, date_texts, forget_texts, policy_text
from gateway.audit.chain import Chain
from gateway.audit.policy_files import read_policy
from gateway.audit.record import SegmentRecord
from gateway.config.convert import NO_PLUGINS, PluginSchemas
from gateway.config.load import describe
from gateway.core.specs import BindingSpec, ConfigSpec, EngineSpec, ModelSpec, PriceSpec, RoleSpec
from gateway.core.tasks import TaskOwner

DAY = 86_400.0
NOW = 1000 * DAY


class Place:
    """A folder of texts and an audit log; times are days."""

    def __init__(self, path: Path) -> None:
        self.folder, self.log = path / "policies", path / "audit"
        self.log.mkdir()
        date_texts(self.folder)

    def text(self, name: str, last: float) -> None:
        """Every second one as an earlier build wrote it."""
        path = self.folder / (f"{name}.json" if name in "ace" else f"{name}.json.zst")
        path.write_text("{}")
        os.utime(path, (last * DAY, last * DAY))

    def segment(self, writer: str, number: int, began: float | None) -> None:
        header = SegmentRecord(time=(began or 0) * DAY, format=1, segment=number, writer=writer, previous="0" * 64, config=1)
        line = b"nothing\n" if began is None else Chain().seal([header])
        (self.log / f"audit-{writer}-{number:08d}.jsonl").write_bytes(line)

    def left(self, kept: float = 0.0) -> str:
        forget_texts(self.folder, self.log, NOW, kept * DAY)
        return "".join(sorted(path.name.partition(".")[0] for path in self.folder.glob("*.json*")))


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
        digest = texts._write(spec)
        path = tmp_path / FOLDER / f"{digest}.json.zst"
        assert path.stat().st_mtime > 1000.0
        os.utime(path, (5, 5))
    again = PolicyTexts(tmp_path, PluginSchemas(), cast(Any, None), cast(Any, None))
    assert again._write(spec) == digest and path.stat().st_mtime > 1000.0, "after a restart"
    path.unlink()
    assert again._write(spec) == digest and path.exists()


def test_a_text_of_an_earlier_build_is_kept_as_it_is(tmp_path: Path) -> None:
    spec = ConfigSpec(version=1)
    data = policy_text(spec, NO_PLUGINS).data
    old = tmp_path / FOLDER / f"{sha256(data).hexdigest()}.json"
    old.parent.mkdir()
    old.write_bytes(data)
    date_texts(old.parent)
    os.utime(old, (5, 5))
    texts = PolicyTexts(tmp_path, PluginSchemas(), cast(Any, None), cast(Any, None))
    assert texts._write(spec) == old.stem and old.stat().st_mtime > 1000.0
    assert [path.name for path in old.parent.glob("*.json*")] == [old.name]
    assert texts._before() is not None


async def test_changes_that_follow_each_other_at_once_are_told_in_order_each_with_its_own_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[asyncio.Future[None]] = []

    async def in_thread(function: Any, *given: Any) -> Any:
        begun.append(asyncio.get_running_loop().create_future())
        await begun[-1]
        return function(*given)

    monkeypatch.setattr(asyncio, "to_thread", in_thread)
    told: list[dict[str, Any]] = []
    owner = TaskOwner("test")
    events = SimpleNamespace(record=lambda event, target, detail: told.append(detail))
    texts = PolicyTexts(tmp_path, PluginSchemas(), cast(Any, events), owner)
    texts.start()
    specs = [ConfigSpec(version=1, roles={name: RoleSpec(permissions=("infer:*",))}) for name in "abc"]
    for version, spec in enumerate(specs):
        texts.heard(cast(Any, SimpleNamespace(snapshot=SimpleNamespace(version=version), stated=spec)))
    for number in range(len(specs)):
        await settled()
        assert len(begun) == number + 1, "one at a time"
        begun[number].set_result(None)
    await settled()
    assert told == [{"version": n, "sha256": sha256(policy_text(spec, NO_PLUGINS).data).hexdigest()} for n, spec in enumerate(specs)]
    await owner.aclose()


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_roles_are_described_one_by_one_as_they_would_be_together() -> None:
    """A hundred thousand in one call would keep the interpreter from the event loop."""
    roles = {name: RoleSpec(permissions=("infer:*", f"admin:{name}"), confined=name != "b") for name in ("z", "b", "token", "ä", "A")}
    spec = ConfigSpec(version=1, roles=roles)
    text = policy_text(spec, NO_PLUGINS).data
    together = msgspec.json.encode(describe(spec)["roles"], order="deterministic")
    assert b'"roles":' + together + b',"usage"' in text
    assert sorted(roles) == list(msgspec.json.decode(text)["roles"])


class Changing:
    """Settings that change at random, as those of the store do: what stays is the same object."""

    def __init__(self, seed: int) -> None:
        self.random, self.number = random.Random(seed), 0
        self.spec = ConfigSpec(version=1)

    def made(self, name: str) -> Any:
        self.number += 1
        some = f'"ä{self.number}]}},'
        spec: dict[str, Any] = {
            "engines": EngineSpec(name=f"e{self.number}", runtime="external", url=f"http://u:p@x/{some}", headers={"x": some}),
            "models": ModelSpec(name=f"m{self.number}", pool=("e",), aliases=(some,)),
            "bindings": BindingSpec(name=f"b{self.number}", role=some, subjects=("user/a",)),
            "prices": PriceSpec(name=f"p{self.number}", model=some),
            "roles": RoleSpec(permissions=(some,)),
        }
        return spec[name]

    def change(self) -> ConfigSpec:
        for name in self.random.sample(["engines", "models", "bindings", "prices", "roles"], 2):
            kept = getattr(self.spec, name)
            members = list(kept.items()) if isinstance(kept, dict) else list(kept)
            for _ in range(self.random.choice([0, 1, 1, 5])):
                members.insert(
                    self.random.randint(0, len(members)), (f"r{self.number}", self.made(name)) if name == "roles" else self.made(name)
                )
            for _ in range(self.random.choice([0, 0, 1, 3, 9])):
                if members:
                    del members[self.random.randrange(len(members))]
            if self.random.random() < 0.2:
                self.random.shuffle(members)
            if members and self.random.random() < 0.2:  # the same object twice, in a mapping by another name
                again = self.random.choice(members)
                members.append((f"again{self.number}", again[1]) if name == "roles" else again)
            value = dict(members) if name == "roles" else tuple(members)
            self.spec = msgspec.structs.replace(self.spec, **{name: value})
        if self.random.random() < 0.1:
            self.spec = msgspec.structs.replace(
                self.spec, approvals=msgspec.structs.replace(self.spec.approvals, max_pending=self.number + 1)
            )
        return self.spec


@pytest.mark.parametrize("seed", range(4))
def test_a_text_made_from_the_one_before_is_what_it_would_be_by_itself(seed: int) -> None:
    changing = Changing(seed)
    before = None
    for _ in range(60):
        spec = changing.change()
        before = policy_text(spec, NO_PLUGINS, before)
        assert before.data == policy_text(spec, NO_PLUGINS).data
        assert msgspec.json.decode(before.data)["models"] == describe(spec)["models"]


def test_only_what_has_changed_is_described_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    described: list[str] = []
    real = policy_texts._json

    def encoded(value: Any) -> bytes:
        if isinstance(value, dict) and "runtime" in value:
            described.append(value["name"])
        return real(value)

    monkeypatch.setattr(policy_texts, "_json", encoded)
    engines = [EngineSpec(name=f"e{number}", runtime="external", url="http://x") for number in range(50)]
    texts = PolicyTexts(tmp_path, PluginSchemas(), cast(Any, None), cast(Any, None))
    texts._write(ConfigSpec(version=1, engines=tuple(engines)))
    engines[7] = EngineSpec(name="other", runtime="external", url="http://x")
    described.clear()
    digest = texts._write(ConfigSpec(version=1, engines=tuple(engines)))
    assert described == ["other"]
    assert read_policy(tmp_path / FOLDER, digest) == policy_text(ConfigSpec(version=1, engines=tuple(engines)), NO_PLUGINS).data


@pytest.mark.parametrize("spoil", [lambda path: path.unlink(), lambda path: path.write_bytes(path.read_bytes()[:-1])])
def test_a_file_that_is_not_as_it_was_written_is_not_taken_from(tmp_path: Path, spoil: Any) -> None:
    engines = [EngineSpec(name=f"e{number}", runtime="external", url="http://x") for number in range(5)]
    texts = PolicyTexts(tmp_path, PluginSchemas(), cast(Any, None), cast(Any, None))
    spoil(tmp_path / FOLDER / f"{texts._write(ConfigSpec(version=1, engines=tuple(engines)))}.json.zst")
    spec = ConfigSpec(version=1, engines=tuple(engines[1:]))
    assert read_policy(tmp_path / FOLDER, texts._write(spec)) == policy_text(spec, NO_PLUGINS).data
