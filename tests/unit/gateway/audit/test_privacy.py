"""What records say of people: each field in each way, in requests, denials and events, and what must not change by it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gateway.audit.privacy import OMITTED, Privacy, privacy_of, truncated
from gateway.core.specs.audit import PrivacySpec
from gateway.core.types import EventRecord, IntentRecord, OutcomeRecord

KEY = bytes(range(32))


def intent(**changes: Any) -> IntentRecord:
    made = IntentRecord(
        1.0, "r1", "acme", "alice@idp", "oidc", "192.0.2.77", "chat", "m", False, 4, user="alice", agent="bot", session="s1"
    )
    return msgspec.structs.replace(made, **changes)


def outcome(**changes: Any) -> OutcomeRecord:
    made = OutcomeRecord(2.0, "r1", "ok", 200, tenant="acme", principal="alice@idp", user="alice", agent="bot", session="s1")
    return msgspec.structs.replace(made, **changes)


def private(**settings: Any) -> Privacy:
    return Privacy(PrivacySpec(**settings), KEY)


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.77", "192.0.2.0/24"),
        ("2001:db8:1:2:3::4", "2001:db8:1::/48"),
        ("fe80::1%eth0", "fe80::/48"),
        ("::ffff:192.0.2.77", "192.0.2.0/24"),
        ("192.0.2.0/24", "192.0.2.0/24"),
        ("a-unix-socket", OMITTED),
    ],
)
def test_addresses_are_truncated_to_their_networks(address: str, network: str) -> None:
    assert truncated(address) == network


def test_nothing_is_done_where_everything_is_kept() -> None:
    assert privacy_of(PrivacySpec(), lambda: KEY) is None
    assert privacy_of(PrivacySpec(user="hash"), lambda: KEY) is not None


def test_each_field_is_hidden_in_its_own_way() -> None:
    found: Any = private(peer="truncate", user="hash", principal="hash", agent="omit", session="omit")(intent())
    assert (found.peer, found.agent, found.session) == ("192.0.2.0/24", OMITTED, OMITTED)
    assert found.user.startswith("h:") and found.principal.startswith("h:") and "alice" not in found.user + found.principal
    assert (found.tenant, found.model, found.request_id) == ("acme", "m", "r1")


def test_a_hash_groups_records_and_needs_the_key() -> None:
    hidden = private(user="hash", agent="hash")
    one: Any = hidden(intent())
    other: Any = hidden(outcome())
    assert one.user == other.user and len(one.user) == 34
    assert Privacy(PrivacySpec(user="hash"), bytes(32)).hide("user", "alice") != one.user
    assert hidden.hide("agent", "alice") != one.user, "the same word in another field is not recognised"


def test_keys_of_the_api_are_no_people() -> None:
    hidden = private(principal="hash")
    of_key: Any = hidden(intent(principal="ci", credential="api_key"))
    assert of_key.principal == "ci"
    later: Any = hidden(outcome(principal="ci"))
    assert later.principal == "ci"
    person: Any = hidden(outcome())
    assert person.principal.startswith("h:"), "of somebody unknown, too"


def test_an_outcome_whose_intent_has_the_peer_still_says_so() -> None:
    hidden = private(peer="omit")
    denied: Any = hidden(outcome(peer="192.0.2.77"))
    assert denied.peer == OMITTED
    ended: Any = hidden(outcome())
    assert ended.peer == ""


def test_groups_are_left_out_of_what_decided_and_that_is_said() -> None:
    hidden = private(groups="omit")
    for _ in range(2):
        found: Any = hidden(intent(caller=msgspec.Raw(b'{"groups":["works-council"],"roles":["r"]}')))
        assert msgspec.json.decode(found.caller) == {"roles": ["r"], "unrecorded": ["groups"]}
    without: Any = hidden(intent(caller=msgspec.Raw(b'{"roles":["r"]}')))
    assert msgspec.json.decode(without.caller) == {"roles": ["r"]}


def test_events_are_private_too() -> None:
    hidden = private(peer="hash", user="omit")
    detail = {"peer": "192.0.2.77", "user": "alice", "peers": ["192.0.2.0/24"], "code": "x", "agent": "bot"}
    found: Any = hidden(EventRecord(1.0, "token_issued", "acme/alice", "t1", detail=detail))
    assert found.detail["user"] == OMITTED and found.detail["peer"].startswith("h:") and found.detail["peers"][0].startswith("h:")
    assert (found.detail["code"], found.detail["agent"], found.actor) == ("x", "bot", "acme/alice")
    flood: Any = hidden(EventRecord(1.0, "denials", "gatehouse", "192.0.2.77", "denied", {"count": 3}))
    assert flood.target == found.detail["peer"]
    assert private(peer="hash")(EventRecord(1.0, "halted", "ops/a", "user/alice")) == EventRecord(1.0, "halted", "ops/a", "user/alice")
    omitted: Any = private(peer="omit")(EventRecord(1.0, "connections_refused", detail={"peers": ["192.0.2.0/24"]}))
    assert omitted.detail["peers"] == [OMITTED]
