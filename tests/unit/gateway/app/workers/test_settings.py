"""A worker's configuration is the control process's, whatever has changed in which order, whenever the worker was started."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.app.workers.codec import TELL, Codec, FeedError, FrameReader
from gateway.app.workers.messages import MESSAGES
from gateway.app.workers.settings import (
    LISTS,
    NOTHING,
    PART_BYTES,
    PART_MEMBERS,
    PARTS,
    Received,
    SettingsPart,
    SettingsTold,
    difference,
    members,
    without_lists,
)
from gateway.app.workers.telling import AT_ONCE, Teller
from gateway.config.unchanged import COMPARED
from gateway.core.errors import ConfigError
from gateway.core.secret import Secret
from gateway.core.slices import at_once
from gateway.core.specs import BindingSpec, ConfigSpec, EngineSpec, ModelSpec, RoleSpec

CODEC = Codec(MESSAGES)
Told = tuple[list[SettingsPart], dict[str, bytes]]


def told(before: ConfigSpec, after: ConfigSpec) -> Told:
    """What goes over the feed, as it comes out of it."""
    parts: list[SettingsPart] = []
    digests = at_once(difference(before, after, parts))
    frames = b"".join([CODEC.encode(TELL, 0, part) for part in parts])
    heard = [CODEC.message(CODEC.frame(one)) for one in FrameReader().feed(frames)]
    assert heard == parts
    return [one for one in heard if isinstance(one, SettingsPart)], digests


def taken(received: Received, after: ConfigSpec, heard: Told, version: int = 1, since: int | None = None) -> ConfigSpec:
    """since: where it is not the version that was told last."""
    for part in heard[0]:
        received.part(part)
    whole = received.take(without_lists(after), version, received._version if since is None else since)
    return at_once(received.composed(whole, heard[1]))


def same(one: ConfigSpec, other: ConfigSpec) -> bool:
    return one == other and list(one.roles) == list(other.roles)


def engine(number: int, turn: int = 0) -> EngineSpec:
    return EngineSpec(name=f"e{number}", runtime="external", url="http://a", api_key=Secret(f"key-{turn}"), slots=number + 1)


def role(turn: int) -> RoleSpec:
    return RoleSpec(permissions=(f"infer:chat:model/{turn}",))


def bound(number: int, turn: int) -> BindingSpec:
    return BindingSpec(name=None if number % 3 == 0 else f"b{number}", role=f"r{turn}", subjects=("user/a",))


numbers = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 2)), max_size=12, unique_by=lambda pair: pair[0])
specs = st.builds(
    lambda engines, roles, bindings, insecure: ConfigSpec(
        version=1,
        engines=tuple(engine(*one) for one in engines),
        roles={f"r{number}": role(turn) for number, turn in roles},
        bindings=tuple(bound(*one) for one in bindings),
        insecure=insecure,
    ),
    numbers,
    numbers,
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 2)), max_size=12),
    st.booleans(),
)


@settings(max_examples=200)
@given(st.lists(st.tuples(specs, st.sampled_from(["tell", "start a worker", "settle"])), min_size=1, max_size=8))
def test_every_worker_has_the_whole_after_any_changes(steps: list[tuple[ConfigSpec, str]]) -> None:
    """`settle`: a worker that is still being told everything hears of a change before its state."""
    before, workers = NOTHING, [Received()]
    for after, what in steps:
        change = told(before, after)
        for worker in workers:
            if what == "settle":
                for part in change[0]:
                    worker.part(part)
                worker.settle()
                assert same(taken(worker, after, told(after, after)), after)
            else:
                assert same(taken(worker, after, change), after)
        if what == "start a worker":
            workers.append(Received())
            assert same(taken(workers[-1], after, told(NOTHING, after)), after)
        before = after


@settings(max_examples=100)
@given(specs, specs, specs)
def test_a_worker_that_missed_a_change_of_members_does_not_go_on(first: ConfigSpec, missed: ConfigSpec, last: ConfigSpec) -> None:
    """As far as names differ: it has the right names, or it notices."""
    received = Received()
    taken(received, first, told(NOTHING, first))
    try:
        spec = taken(received, last, told(missed, last))
    except FeedError:
        return
    for name in told(missed, last)[1]:
        names = [[one[0] if name == "roles" else one.name for one in at_once(members(of, name))] for of in (spec, last)]
        assert names[0] == names[1]


@settings(max_examples=20)
@given(specs, specs)
def test_a_worker_that_missed_a_change_notices_also_where_the_names_are_the_same(first: ConfigSpec, last: ConfigSpec) -> None:
    received = Received()
    taken(received, first, told(NOTHING, first), version=3)
    with pytest.raises(FeedError, match="another version"):
        taken(received, last, told(first, last), version=5, since=4)


def test_what_has_not_changed_stays_the_same_object_and_is_not_sent() -> None:
    engines, roles = tuple(map(engine, range(4))), {f"r{n}": role(n) for n in range(1000)}
    spec = ConfigSpec(version=1, engines=engines, roles=roles, insecure=True)
    received = Received()
    first = taken(received, spec, told(NOTHING, spec))
    fewer = {name: one for name, one in roles.items() if name != "r5"} | {"r700": role(1)}
    wanted = msgspec.structs.replace(spec, engines=(engines[3], engine(1, 7), engines[0]), roles=fewer)
    change = told(spec, wanted)
    assert sum(len(put) for part in change[0] for _, _, put in part.runs) == 2
    second = taken(received, wanted, change)
    assert same(second, wanted)
    assert [name for name, one in second.roles.items() if one is not first.roles[name]] == ["r700"]
    assert second.engines[0] is first.engines[3] and second.engines[2] is first.engines[0]
    assert second.limits is first.limits and second.bindings is first.bindings


@pytest.mark.parametrize("place", [0, COMPARED - 1, COMPARED, 5000, 9999])
def test_one_change_of_many_is_told_in_one_small_frame(place: int) -> None:
    roles = {f"r{n:05}": role(n) for n in range(10_000)}
    changed = {**roles, f"r{place:05}": role(-1)}
    without = {name: one for number, (name, one) in enumerate(roles.items()) if number != place}
    before = ConfigSpec(version=1, roles=roles)
    for after in (changed, without):
        parts: list[SettingsPart] = []
        at_once(difference(before, msgspec.structs.replace(before, roles=after), parts))
        assert len(parts) == 1 and len(CODEC.encode(TELL, 0, parts[0])) < 200


def test_parts_are_small_whatever_the_size_of_the_whole() -> None:
    models = tuple(ModelSpec(name=f"m{n}", pool=("e1",)) for n in range(1000))
    long = {f"r{n}": RoleSpec(permissions=(f"infer:chat:model/{'x' * 400}",) * 100) for n in range(100)}
    spec = ConfigSpec(version=1, models=models, roles=long)
    heard = told(NOTHING, spec)
    assert all(sum(len(put) for _, _, put in part.runs) <= PART_MEMBERS for part in heard[0])
    assert all(len(CODEC.encode(TELL, 0, part)) < 2 * PART_BYTES for part in heard[0])
    assert same(taken(Received(), spec, heard), spec)
    turned = msgspec.structs.replace(spec, models=models[::-1])
    assert same(taken(_with(spec), turned, told(spec, turned)), turned)


def _with(spec: ConfigSpec) -> Received:
    received = Received()
    taken(received, spec, told(NOTHING, spec))
    return received


@pytest.mark.parametrize(
    "part",
    [
        SettingsPart("roles", [(0, 3, [])]),
        SettingsPart("roles", [(-1, 0, [])]),
        SettingsPart("roles", [(2, 1, [])]),
        SettingsPart("rules", [(0, 0, [])]),
        SettingsPart("roles", [(0, 0, [msgspec.Raw(b"\x01")])]),
    ],
)
def test_a_part_that_does_not_fit_is_refused(part: SettingsPart) -> None:
    received = _with(ConfigSpec(version=1, roles={"a": role(1), "b": role(2)}))
    with pytest.raises(FeedError):
        received.part(part)


def test_lists_with_other_names_or_of_an_unknown_kind_are_refused() -> None:
    spec = ConfigSpec(version=1, roles={"a": role(1), "b": role(2)})
    for digests in ({"roles": b"0" * 16}, {"rules": b""}):
        with pytest.raises(FeedError, match="not those of the control process"):
            taken(Received(), spec, (told(NOTHING, spec)[0], digests))


def test_every_list_of_a_configuration_is_told_in_parts() -> None:
    lists: set[Any] = {field.name for field in msgspec.structs.fields(ConfigSpec) if isinstance(field.default, tuple)}
    assert lists - set(PARTS) == {"model_dirs"}, "a list of texts; every other one has members that take long to read"
    assert set(PARTS) < set(LISTS)


async def test_a_new_worker_is_told_what_changes_meanwhile_too() -> None:
    """And of a large configuration no more waits than it reads."""
    teller, received, waiting = Teller(CODEC), Received(), [0]
    specs = [ConfigSpec(version=1, roles={f"r{n}": role(n + turn) for n in range(500)}, insecure=turn == 1) for turn in range(3)]

    class Peer:
        ended = None
        heard = 0

        @property
        def backlog(self) -> int:
            waiting[0] = 0 if waiting[0] else AT_ONCE + 1
            return waiting[0]

        def send(self, frame: bytes) -> None:
            for one in FrameReader().feed(frame):
                part = CODEC.message(CODEC.frame(one))
                assert isinstance(part, SettingsPart)
                received.part(part)
            self.heard += 1
            if self.heard in (3, 12):  # a change comes into force while the worker is told
                teller.told(specs[1 if self.heard == 3 else 2], self.heard)

        def tell(self, message: SettingsTold) -> None:
            assert isinstance(message, SettingsTold)
            received.settle()

    teller.told(specs[0], 1)
    peer: Any = Peer()
    await teller.introduce(peer)
    assert teller.spec is specs[2] and peer.heard > 12
    assert same(at_once(received.composed(received.take(without_lists(teller.spec), teller.version), teller.digests)), specs[2])
    telling = await teller.prepare(msgspec.structs.replace(specs[2], roles={**specs[2].roles, "new": role(0)}))
    assert len(telling.frames) == 1 and telling.settings.since == teller.version and teller.fits(telling, telling.after)
    teller.told(specs[2], 99)
    assert not teller.fits(telling, telling.after), "workers have another version meanwhile"


async def test_what_cannot_be_told_is_refused_before_it_is_in_force() -> None:
    teller = Teller(Codec(MESSAGES, limit=100_000))
    wide = ConfigSpec(version=1, roles={"wide": RoleSpec(permissions=tuple("x" * 500 for _ in range(1000)))})
    with pytest.raises(ConfigError, match=r"workers cannot be told .* too large for the feed; 100000 are allowed"):
        await teller.prepare(wide)
