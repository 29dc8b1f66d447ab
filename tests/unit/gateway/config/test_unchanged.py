"""A configuration that is read again shares what has not changed with the one in force, and is otherwise what was read."""

from __future__ import annotations

import gc

import msgspec
import pytest

from admin.values import diff, named
from gateway.config.load import describe, parse
from gateway.config.unchanged import apart, let_go, members, sharing
from gateway.core.specs import Spec

TEXT = """
version: 1
engines:
  - {name: a, runtime: external, url: "http://10.0.0.1:8000"}
  - {name: b, runtime: external, url: "http://10.0.0.2:8000"}
models: [{name: m, pool: [a, b]}, {name: n, pool: [b]}]
roles: {chatter: {permissions: ["infer:*"]}, other: {permissions: ["infer:chat"]}}
limits: [{name: l, per: key, requests: {rate: 5, per: 1s}}]
identity:
  api_keys:
    static:
      - {id: k, key_sha256: "ONE", tenant: t, models: ["*"]}
      - {id: l, key_sha256: "TWO", tenant: t, models: ["*"]}
""".replace("ONE", "1" * 64).replace("TWO", "2" * 64)


def read(text: str = TEXT):
    return parse(text, file=None, environ={})


def test_the_same_text_gives_other_settings_of_the_same_parts():
    before, after = read(), read()
    shared = sharing(before, after)
    assert shared == after and shared is not before
    assert all(getattr(shared, name) is getattr(before, name) for name in ("engines", "models", "roles", "limits", "identity", "listen"))


def test_what_has_changed_is_as_it_was_read_and_its_neighbours_are_shared():
    before = read()
    after = read(TEXT.replace("10.0.0.2", "10.0.0.3").replace("infer:chat", "infer:embeddings").replace("2" * 64, "3" * 64))
    shared = sharing(before, after)
    assert shared == after
    assert shared.engines[0] is before.engines[0] and shared.engines[1] is after.engines[1]
    assert shared.models is before.models
    assert shared.roles["chatter"] is before.roles["chatter"] and shared.roles["other"] is after.roles["other"]
    keys = [spec.identity.api_keys.static for spec in (before, after, shared)]
    assert keys[2][0] is keys[0][0] and keys[2][1] is keys[1][1]


def test_members_are_found_by_name_when_their_order_or_number_changes():
    before = read()
    after = msgspec.structs.replace(read(), engines=tuple(reversed(read().engines)), models=read().models[1:], roles={})
    shared = sharing(before, after)
    assert shared == after
    assert [id(engine) for engine in shared.engines] == [id(engine) for engine in reversed(before.engines)]
    assert shared.models == after.models and shared.models[0] is before.models[1]
    assert shared.roles == {}


@pytest.mark.parametrize(
    "change",
    [
        ("10.0.0.2", "10.0.0.3"),
        ('  - {name: b, runtime: external, url: "http://10.0.0.2:8000"}\n', ""),
        ("\nmodels:", '\n  - {name: c, runtime: external, url: "http://10.0.0.4:8000"}\nmodels:'),
    ],
    ids=["changed", "removed", "added"],
)
def test_what_differs_is_the_same_without_most_of_what_does_not(change: tuple[str, str]):
    text = TEXT.replace("pool: [a, b]", "pool: [a]").replace("pool: [b]", "pool: [a]")
    text = text.replace("engines:", 'engines:\n  - {name: z, runtime: external, url: "http://10.0.0.9:8000"}')
    before = read(text)
    after = sharing(before, read(text.replace(*change)))
    old, new = apart(before, after)
    assert len(old.engines) < len(before.engines) and len(new.engines) < len(after.engines)
    assert diff(named(describe(old)), named(describe(new))) == diff(named(describe(before)), named(describe(after))) != []


def test_what_was_read_ends_member_by_member():
    spec = read()
    found = members(spec)
    assert {id(one) for one in (*spec.engines, *spec.models, *spec.roles.values(), *spec.limits, *spec.identity.api_keys.static)} <= {
        id(one) for one in found
    }
    let_go(found)
    assert found == [] and len(spec.engines) == 2


def test_the_collector_never_looks_at_settings():
    spec = read()
    assert not any(gc.is_tracked(one) for one in (spec, *spec.engines, *spec.models, spec.listen, *members(spec)) if isinstance(one, Spec))
