"""Where names and passwords are known: settings that are wrong."""

from __future__ import annotations

import pytest

from gateway.config.convert import PluginSchemas
from gateway.config.load import parse
from gateway.core.errors import ConfigError

SALT_AND_TAG = "c2FsdHNhbHRzYWx0c2FsdA$+v0rf6ETYAIpqJIjJyARZ3W3zqJlkf+0TRXzsLHmR6o"
HASH = f"$argon2id$v=19$m=19456,t=2,p=1${SALT_AND_TAG}"


def users(*entries: str) -> str:
    return f"version: 1\naudit: {{sinks: [{{type: file}}]}}\nidentity: {{local_users: {{users: [{', '.join(entries)}]}}}}\n"


def user(name: str = "alice", encoded: str = HASH, more: str = "") -> str:
    return f"{{name: '{name}', tenant: t, password_hash: '{encoded}'{more}}}"


def cost(parameters: str) -> str:
    return user(encoded=f"$argon2id$v=19${parameters}${SALT_AND_TAG}")


def test_users_are_enough_to_let_somebody_in() -> None:
    spec = parse(users(user(), user("bob", more=", groups: [staff]")), file="c.yaml", environ={})
    assert spec.identity.local_users is not None
    assert HASH not in repr(spec)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            users(user(), user()),
            "identity.local_users.users[1].name: the user 'alice' appears twice; the first is identity.local_users.users[0]",
        ),
        (users(user("a:b")), "users[0].name: 'a:b' holds a colon"),
        (users(user(encoded="alice-secret")), "users[0].password_hash: is not a hash"),
        (users(user(encoded="$2b$12$abcdefghijklmnopqrstuv")), "`gatehouse users hash-password` prints one"),
        (users(cost("m=64,t=1,p=1")), "users[0].password_hash: needs m from 7168 to 262144"),
        (users(cost("m=19456,t=1,p=1")), "m times t from 35000"),
        (users(cost("m=262144,t=5,p=1")), "m times t from 35000"),
        (users(cost("m=19456,t=2,p=9")), "p from 1 to 8"),
        (users(cost("m=19456,t=2,p=0")), "p from 1 to 8"),
        (users(user(more=", roles: [admn]")), "users[0].roles[0]: there is no role 'admn'"),
        (users(), "identity.local_users.users"),
        (
            "version: 1\nidentity:\n  ldap:\n  - {name: local_users, servers: ['ldaps://h'], tenant: {value: t},"
            " users: {dn: 'uid={username}'}}\n",
            "identity.ldap[0].name: 'local_users' means the users of identity.local_users",
        ),
    ],
)
def test_what_is_wrong_is_said_where_it_is(text: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text, file="c.yaml", environ={}, schemas=PluginSchemas(roles=("admin",)))
    assert expected in str(caught.value) and "alice-secret" not in str(caught.value)
