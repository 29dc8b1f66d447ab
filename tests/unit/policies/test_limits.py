"""Which limits apply, in which bucket, and what a request costs."""

from __future__ import annotations

import pytest

from gateway.core.errors import Overloaded
from gateway.core.specs import LimitMatchSpec, LimitSpec
from gateway.core.types import InferenceRequest, Principal, Usage
from gateway.core.wire import WireApi
from policies.limits import LimitRules, charge, estimate

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
