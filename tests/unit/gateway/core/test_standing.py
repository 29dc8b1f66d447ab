"""Stops: whom each target concerns, on which listener, and who hears of a change."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import ConfigError, PermissionDenied
from gateway.core.standing import Standing, Stop, check_target, halt
from gateway.core.types import Acting, Login, Principal

KEY = Principal("ci", "acme", "api_key", user="alice", agent="bot")
PERSON = Principal("alice", "acme", "oidc")
OTHER = Principal("alice", "globex", "api_key")


@pytest.mark.parametrize(
    ("target", "stopped"),
    [
        ("all", [KEY, PERSON, OTHER]),
        ("tenant/acme", [KEY, PERSON]),
        ("key/ci", [KEY]),
        ("key/alice", [OTHER]),
        ("user/alice", [KEY, PERSON]),
        ("user/alice@acme", [KEY, PERSON]),
        ("user/alice@globex", []),
        ("agent/bot", [KEY]),
        ("model/m", []),
    ],
)
def test_a_target_concerns_these_callers(target: str, stopped: list[Principal]) -> None:
    standing = Standing()
    standing.replace("halts", [halt(target)])
    assert [who for who in (KEY, PERSON, OTHER) if standing.of(who) is not None] == stopped


@pytest.mark.parametrize(
    ("target", "stopped"), [("user/robot", True), ("user/robot@acme", True), ("user/plain", True), ("user/bot", False)]
)
def test_a_user_who_is_stopped_acts_for_nobody(target: str, stopped: bool) -> None:
    acting = (Acting("bot", "robot", "idp", "t1", 1.0), Acting("plain", "", "idp", "t2", 1.0))
    standing = Standing()
    standing.replace("suspensions", [Stop(target, "suspended", admin=True)])
    assert (standing.of(Principal("alice", "acme", "gateway_token", agent="bot", login=Login(acting=acting))) is not None) == stopped


@pytest.mark.parametrize(("target", "stopped"), [("agent/bot", True), ("agent/first", True), ("agent/other", False)])
def test_an_agent_who_is_stopped_has_nobody_act_in_its_place(target: str, stopped: bool) -> None:
    standing = Standing()
    standing.replace("halts", [halt(target)])
    who = Principal("alice", "acme", "gateway_token", agent="bot", login=Login(actors=("bot", "first")))
    assert (standing.of(who) is not None) == stopped


@pytest.mark.parametrize("target", ["all", "tenant/acme", "model/m"])
def test_a_halt_that_everybody_shares_does_not_lock_administrators_out(target: str) -> None:
    standing = Standing()
    standing.replace("halts", [halt(target)])
    standing.admit(KEY, admin=True)


@pytest.mark.parametrize("target", ["key/ci", "user/alice", "agent/bot"])
def test_a_halted_caller_cannot_administrate(target: str) -> None:
    standing = Standing()
    standing.replace("halts", [halt(target)])
    with pytest.raises(PermissionDenied) as refused:
        standing.admit(KEY, admin=True)
    assert refused.value.code == "halted"


def test_what_two_sources_stop_goes_on_only_when_both_allow_it() -> None:
    standing = Standing()
    heard: list[str] = []
    standing.changed.append(heard.append)
    assert standing.replace("file", [halt("key/ci")])
    assert standing.replace("store", [halt("key/ci"), Stop("tenant/acme", "suspended", admin=True)])
    assert not standing.replace("store", [Stop("tenant/acme", "suspended", admin=True), halt("key/ci")]), "no change"
    standing.replace("file", [])
    assert standing.of(KEY) == Stop("tenant/acme", "suspended", admin=True)
    standing.replace("store", [halt("key/ci")])
    with pytest.raises(PermissionDenied, match="halted"):
        standing.admit(KEY)
    standing.replace("store", [])
    assert (standing.of(KEY), standing.active, standing.sources()) == (None, False, {})
    assert heard == ["file", "store", "file", "store", "store"]


def test_a_model_is_stopped_under_any_of_its_names() -> None:
    standing = Standing()
    standing.replace("halts", [halt("model/small")])
    standing.admit_model("big", "large")
    with pytest.raises(PermissionDenied):
        standing.admit_model("tiny", "small")


def test_rows_make_equal_stops_in_another_process() -> None:
    standing, other = Standing(), Standing()
    standing.replace("halts", [halt("all"), Stop("user/alice", "suspended", interrupts=False, admin=True)])
    for source, rows in standing.sources().items():
        other.replace(source, map(Stop.of, rows))
    assert other.sources() == standing.sources()
    assert other.of(PERSON) == standing.of(PERSON) == halt("all")


@pytest.mark.parametrize(
    "target", ["", "all/x", "key", "key/", "KEY/x", "keys/x", "key/a\nb", "key/ x", "user/" + "x" * 257, "*", "agent/\0"]
)
def test_what_is_no_target_is_refused(target: str) -> None:
    with pytest.raises(ConfigError):
        check_target(target)


@pytest.mark.parametrize("target", ["all", "key/ci", "user/alice@example.com@acme", "model/org/name:7b", "agent/a b", "tenant/acme"])
def test_targets(target: str) -> None:
    assert check_target(target) == target


STOPS = st.builds(
    Stop,
    st.sampled_from(["all", "key/ci", "tenant/acme", "user/alice", "model/m"]),
    st.sampled_from(["halted", "suspended"]),
    admin=st.booleans(),
)
TARGETS = st.lists(st.sampled_from(["all", "key/ci", "tenant/acme", "key/none"]), max_size=3)
CHANGES = st.lists(
    st.tuples(st.sampled_from(["halts", "halts file", "suspensions"]), st.booleans(), st.lists(STOPS, max_size=4), TARGETS), max_size=12
)


@given(CHANGES)
def test_whatever_has_changed_it_says_what_a_new_one_says_and_tells_what_changed(
    changes: list[tuple[str, bool, list[Stop], list[str]]],
) -> None:
    standing, follower = Standing(), Standing()

    def follow(source: str, put: list[Stop], dropped: list[str]) -> None:
        assert follower.change(source, put, dropped), "told of nothing"

    standing.exchanged.append(follow)
    wanted: dict[str, set[Stop]] = {}
    for source, whole, stops, dropped in changes:
        touched = {stop.target for stop in stops} | set(dropped)
        kept = set() if whole else {stop for stop in wanted.get(source, set()) if stop.target not in touched}
        before, wanted[source] = wanted.get(source, set()), kept | set(stops)
        changed = standing.replace(source, stops) if whole else standing.change(source, stops, dropped)
        assert changed is (wanted[source] != before)
        fresh = Standing()
        for name, found in wanted.items():
            fresh.replace(name, found)
        for one in (standing, follower):
            assert (one.sources(), one._stops, one.active) == (fresh.sources(), fresh._stops, fresh.active)
