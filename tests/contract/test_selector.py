"""What every Selector keeps to: gateway.routing.selectors.Selector, for each row of the table."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from gateway.app.configuration.plugins import OURS
from gateway.core.clock import SystemEntropy
from gateway.core.plugins import SelectorContext, SelectorRow, built
from gateway.core.slices import at_once
from gateway.core.specs import TimeoutsSpec
from gateway.routing.ring import Ring
from gateway.routing.selectors import Member, Selector, ring_of
from tests.unit.gateway.routing.fleet import Fleet

ROWS = {row.name: row for row in OURS.selectors}
SLOTS = 3


@pytest.fixture(params=ROWS)
def row(request: pytest.FixtureRequest) -> SelectorRow:
    return ROWS[request.param]


@dataclass
class Pool:
    members: tuple[Member, ...]
    selector: Selector

    def take(self, key: int = 0, exclude: tuple[str, ...] = ()) -> str | None:
        """What a route does: chooses, and counts."""
        busy = sum(member.endpoint.in_flight for member in self.members)
        member = self.selector.choose(key, (busy + 1) / sum(member.weight for member in self.members), exclude)
        if member is None:
            return None
        member.endpoint.in_flight += 1
        member.load += 1
        return member.endpoint.name


def pool(row: SelectorRow, *weights: float) -> Pool:
    fleet = Fleet(len(weights), engine={"slots": SLOTS})
    endpoints = [member.endpoint for member in fleet.route.members]
    members = tuple(
        Member(endpoint, at, weight, TimeoutsSpec()) for at, (endpoint, weight) in enumerate(zip(endpoints, weights, strict=True))
    )
    ring = at_once(Ring.steps(*ring_of(members))) if row.ring else None
    context = SelectorContext(name="m", members=members, bound=1.25, entropy=SystemEntropy(), ring=ring)
    return Pool(members, built(row.build, row.settings, {}, context))


@pytest.mark.parametrize("weights", [(1, 1), (1, 1, 1), (1, 2, 5)])
def test_every_slot_is_used_and_no_member_gets_more_than_it_has(row: SelectorRow, weights: tuple[float, ...]) -> None:
    fleet = pool(row, *weights)
    taken = [fleet.take(key=n << 58) for n in range(SLOTS * len(weights))]
    assert sorted(name for name in taken if name) == sorted(member.endpoint.name for member in fleet.members for _ in range(SLOTS))
    assert fleet.take() is None


def test_what_was_tried_is_avoided(row: SelectorRow) -> None:
    fleet = pool(row, 1, 1, 1)
    names = [member.endpoint.name for member in fleet.members]
    assert {fleet.take(key=n << 60, exclude=(names[0], names[2])) for n in range(SLOTS)} == {names[1]}
    assert fleet.take(exclude=(names[0], names[2])) is None
    assert fleet.take(exclude=tuple(names)) is None


def test_it_only_reads(row: SelectorRow) -> None:
    fleet = pool(row, 1, 2)
    before = [(member.endpoint.in_flight, member.load, member.weight) for member in fleet.members]
    assert fleet.selector.choose(1, 1.0, ()) is not None
    assert before == [(member.endpoint.in_flight, member.load, member.weight) for member in fleet.members]


def test_a_keyed_policy_gives_one_key_one_member(row: SelectorRow) -> None:
    fleet = pool(row, 1, 1, 1)
    if fleet.selector.keyed:
        chosen = [
            {member.endpoint.name for _ in range(5) if (member := fleet.selector.choose(key, 1.0, ()))}
            for key in (0, 1 << 63, (1 << 64) - 1)
        ]
        assert [len(names) for names in chosen] == [1, 1, 1]
