"""Which limits apply, in which bucket, and what a request costs."""

from __future__ import annotations

import pytest

from gateway.core.errors import Overloaded
from gateway.core.slices import at_once
from gateway.core.specs import LimitMatchSpec, LimitSpec
from gateway.core.types import InferenceRequest, Principal, Usage
from gateway.core.wire import WireApi
from policies.limits import FIELDS, LimitRules, charge, estimate, rules_of

CALLER = Principal("ci", "team", "api_key", ("*",))


@pytest.mark.parametrize(
    ("per", "key"),
    [
        ("key", ("team", "api_key", "ci")),
        ("tenant", ("team",)),
        ("model", ("chat",)),
        ("key_model", ("team", "api_key", "ci", "chat")),
        ("tenant_model", ("team", "chat")),
        ("global", ()),
    ],
)
def test_the_bucket_of_each_per(per: str, key: tuple[str, ...]) -> None:
    limit = LimitSpec(name="l", per=per, concurrent=1)  # type: ignore[arg-type]
    assert LimitRules([limit]).applying(CALLER, "chat") == ((limit, key),)


@pytest.mark.parametrize(
    ("match", "applies"),
    [
        ({}, True),
        ({"tenant": "te*"}, True),
        ({"tenant": "x"}, False),
        ({"key": "ci", "model": "c*"}, True),
        ({"key": "ci", "model": "d*"}, False),
        ({"key": "other"}, False),
    ],
)
def test_matching(match: dict[str, str], applies: bool) -> None:
    limit = LimitSpec(name="l", match=LimitMatchSpec(**match), concurrent=1)
    assert bool(LimitRules([limit]).applying(CALLER, "chat")) is applies


PERSON = Principal("sub-1", "team", "oidc", ("*",), roles=("dev",), user="alice", groups=("red", "blue"), agent="helper", session="s1")


@pytest.mark.parametrize(
    ("per", "keys"),
    [
        ("user", [("team", "alice")]),
        ("group", [("team", "red"), ("team", "blue")]),
        ("agent", [("team", "helper")]),
        ("session", [("team", "alice", "s1")]),
        ("user_model", [("team", "alice", "m")]),
        ("operation", [("chat",)]),
    ],
)
def test_the_buckets_of_a_person(per: str, keys: list[tuple[str, ...]]) -> None:
    limit = LimitSpec(name="l", per=per, concurrent=1)  # type: ignore[arg-type]
    assert [key for _, key in LimitRules([limit]).applying(PERSON, "m", "chat")] == keys


@pytest.mark.parametrize(("per", "count"), [("user", 1), ("group", 0), ("agent", 0), ("session", 0)])
def test_a_key_is_a_user_of_its_own_and_has_no_group_agent_or_session(per: str, count: int) -> None:
    limit = LimitSpec(name="l", per=per, concurrent=1)  # type: ignore[arg-type]
    assert len(LimitRules([limit]).applying(CALLER, "m", "chat")) == count


@pytest.mark.parametrize(
    ("match", "applies"),
    [
        ({"user": "alice"}, True),
        ({"user": "alice@team"}, True),
        ({"user": "alice@other"}, False),
        ({"user": "*@team"}, True),
        ({"group": "bl*"}, True),
        ({"group": "blue@team"}, True),
        ({"group": "blue@x"}, False),
        ({"group": "green"}, False),
        ({"agent": "help*"}, True),
        ({"agent": ""}, False),
        ({"operation": "chat"}, True),
        ({"operation": "infer"}, False),
        ({"role": "d*"}, True),
        ({"role": "ops"}, False),
        ({"role": "dev", "group": "red", "user": "bob"}, False),
    ],
)
def test_matching_a_person(match: dict[str, str], applies: bool) -> None:
    limit = LimitSpec(name="l", match=LimitMatchSpec(**match), concurrent=1)
    assert bool(LimitRules([limit]).applying(PERSON, "m", "chat")) is applies


def test_only_the_groups_that_match_count() -> None:
    limit = LimitSpec(name="l", per="group", match=LimitMatchSpec(group="r*"), concurrent=1)
    assert [key for _, key in LimitRules([limit]).applying(PERSON, "m")] == [("team", "red")]


def test_all_that_apply_in_the_order_of_the_configuration() -> None:
    limits = [LimitSpec(name=name, concurrent=1) for name in "cab"]
    assert [limit.name for limit, _ in LimitRules(limits).applying(CALLER, "chat")] == ["c", "a", "b"]


def test_costs() -> None:
    request = InferenceRequest(WireApi("chat"), b"/", "m", {}, None, prompt_tokens=7, max_tokens=30)
    assert estimate(request) == (7, 30)
    request.prompt_tokens = request.max_tokens = -1
    assert estimate(request) == (0, 0)
    assert charge(Usage(10, 20, cached_tokens=5)) == 30
    assert charge(Usage(-1, -1)) == 0


@pytest.mark.parametrize(
    ("match", "named", "others"), [({"key": ""}, True, False), ({"key": "x", "tenant": "other"}, False, False), ({}, True, True)]
)
def test_a_credential_may_name_a_limit(match: dict[str, str], named: bool, others: bool) -> None:
    """Naming stands for the `key` pattern, not for tenant and model."""
    limit = LimitSpec(name="small", match=LimitMatchSpec(**match), concurrent=1)
    naming = Principal("ci", "team", "api_key", ("*",), limits=("small",))
    assert bool(LimitRules([limit]).applying(naming, "chat")) is named
    assert bool(LimitRules([limit]).applying(CALLER, "chat")) is others


def test_a_credential_that_names_a_missing_limit_is_refused() -> None:
    """Whoever takes the limit away does not make the key unlimited."""
    rules = LimitRules([LimitSpec(name="own", concurrent=1)])
    principal = Principal(id="k", tenant="t", kind="api_key", models=("*",), limits=("own", "gone"))
    assert rules.missing(principal) == ("gone",)
    with pytest.raises(Overloaded, match="'gone'") as caught:
        rules.applying(principal, "m")
    assert (caught.value.status, caught.value.code) == (503, "limit_not_in_force")


def test_places_in_queues_are_a_part_of_their_own() -> None:
    both = LimitSpec(name="both", concurrent=5, queued=2)
    only = LimitSpec(name="only", per="tenant", queued=3, enforce=False)
    plain = LimitSpec(name="plain", concurrent=1)
    caller = Principal("ci", "team", "api_key", ("*",), limits=("only",))
    counted = LimitRules([both, only, plain]).applying(caller, "m")
    assert [(limit.name, limit.concurrent, limit.queued) for limit, _ in counted] == [("both", 5, None), ("plain", 1, None)]
    places = LimitRules([both, only, plain], places=True).applying(caller, "m")
    assert [(limit.name, limit.concurrent, limit.queued, limit.enforce) for limit, _ in places] == [
        ("both", None, 2, True),
        ("only", None, 3, False),
    ]
    assert places[1][1] == ("team",)


@pytest.mark.parametrize("field", FIELDS)
def test_among_many_limits_those_of_a_name_are_found_whatever_field_has_it(field: str) -> None:
    """They are looked up, not looked at: every other one has the caller's own name, a pattern or something else in the other fields."""
    person = Principal(*("n-7",) * 2, "api_key", ("*",), roles=("x", "n-7"), user="n-7", groups=("x", "n-7"), agent="n-7")
    mine = {name: "n-*" for name in FIELDS if name != field}
    limits = [LimitSpec(name=f"l{number}", match=LimitMatchSpec(**{field: f"n-{number}"}, **mine), concurrent=1) for number in range(300)]
    limits.insert(3, LimitSpec(name="all", concurrent=1))
    if field in ("user", "group"):
        limits.append(LimitSpec(name="there", match=LimitMatchSpec(**{field: "n-7@n-7"}), concurrent=1))
        limits.append(LimitSpec(name="elsewhere", match=LimitMatchSpec(**{field: "n-7@n-8"}), concurrent=1))
    for rules in (LimitRules(limits), at_once(rules_of(limits))):
        found = [limit.name for limit, _ in rules.applying(person, "n-7", "n-7")]
        assert found == ["all", "l7", *(["there"] if field in ("user", "group") else [])]


def test_named_limits_are_found_in_their_order() -> None:
    limits = [LimitSpec(name=f"l{number}", match=LimitMatchSpec(key=f"k{number}"), concurrent=1) for number in range(100)]
    caller = Principal("k50", "t", "api_key", ("*",), limits=("l70", "l2", "l50"))
    assert [limit.name for limit, _ in LimitRules(limits).applying(caller, "m")] == ["l2", "l50", "l70"]
    assert not LimitRules(limits, places=True) and LimitRules(limits)
