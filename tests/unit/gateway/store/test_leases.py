"""Leases against a model, over any sequence of takes, renewals, ends and jumps of the clock."""

from __future__ import annotations

import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.errors import LeaseLost
from gateway.core.storage import Lease
from gateway.store import leases
from gateway.store.tables import metadata

HOLDERS = st.sampled_from(["a", "b", "c"])
STEP = st.one_of(
    st.tuples(st.just("take"), HOLDERS, st.sampled_from([0.0, 5.0, 15.0]), st.sampled_from([0.0, 20.0])),
    st.tuples(st.just("renew"), HOLDERS, st.sampled_from([5.0, 15.0])),
    st.tuples(st.just("finish"), HOLDERS, st.booleans()),
    st.tuples(st.just("guard"), HOLDERS),
    st.tuples(st.just("clock"), st.sampled_from([-30.0, 0.5, 5.0, 16.0, 3600.0])),
)


class Model:
    """What must be true: the newest fence, whose it is, until when, and when the job was done."""

    def __init__(self) -> None:
        self.now, self.fence, self.holder, self.expires, self.done = 1000.0, 0, "", 0.0, 0.0
        self.held: dict[str, Lease] = {}
        """What each holder believes to hold."""

    def good(self, holder: str) -> bool:
        lease = self.held.get(holder)
        return lease is not None and self.holder == holder and lease.fence == self.fence


def attempt(model: Model, connection: sa.Connection, step: tuple[object, ...]) -> None:
    def clock(_: sa.Connection) -> float:
        return model.now

    match step:
        case ("clock", float(seconds)):
            model.now += seconds
        case ("take", str(holder), float(seconds), float(period)):
            free = model.holder in ("", holder) or model.expires <= model.now
            taken = leases.take(connection, clock, "x", holder, seconds, period)
            assert (taken is not None) == (free and model.now >= model.done + period)
            if taken is not None:
                assert taken.fence > model.fence and taken.expires == model.now + seconds
                model.fence, model.holder, model.expires = taken.fence, holder, taken.expires
                model.held[holder] = taken
        case ("renew" | "finish" | "guard" as what, str(holder), *rest) if holder in model.held:
            good, lease = model.good(holder), model.held[holder]
            try:
                if what == "renew":
                    assert isinstance(rest[0], float)
                    lease = leases.renew(connection, clock, lease, rest[0])
                    model.expires, model.held[holder] = lease.expires, lease
                elif what == "finish":
                    leases.finish(connection, clock, lease, done=bool(rest[0]))
                    model.holder, model.expires = "", 0.0
                    model.done = model.now if rest[0] else model.done
                else:
                    leases.guard(connection, lease)
            except LeaseLost:
                assert not good
            else:
                assert good


@settings(max_examples=200)
@given(st.lists(STEP, max_size=40))
def test_any_sequence_agrees_with_the_model(steps: list[tuple[object, ...]]) -> None:
    engine = sa.create_engine("sqlite://")
    with engine.begin() as connection:
        metadata.create_all(connection)
        model = Model()
        for step in steps:
            attempt(model, connection, step)
            if leases.every(connection):
                assert [(lease.fence, lease.holder, lease.expires) for lease in leases.every(connection)] == [
                    (model.fence, model.holder, model.expires)
                ]
    engine.dispose()
