"""Keys that people make for themselves: what they may do, how they end, and what attackers try; over one process, workers and replicas."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from gateway.app.main import app
from tests.e2e.adminapi import KEYS, admin
from tests.e2e.test_people import Place, place  # noqa: F401 - a fixture
from tests.integration.postgres import postgres  # noqa: F401 - a fixture
from tests.waiting import until

KEYED = {"name": "keyed@initech", "own_keys": {"count": 3, "life": "30d"}}


class Person:
    """Somebody who has logged in, at the admin listener of the first gateway."""

    def __init__(self, place: Place, name: str, *groups: str, **claims: Any) -> None:  # noqa: F811
        self.place, self.name = place, name
        self.token = place.issuer.token(name, *groups, **claims)
        self.api = admin(place.gateways[0], key=self.token)

    def make(self, **body: Any) -> dict[str, Any]:
        made = self.api.post("/my/keys", json=body)
        assert made.status_code == 201, made.text
        found: dict[str, Any] = made.json()
        return found

    def refused(self, code: str, **body: Any) -> httpx.Response:
        answer = self.api.post("/my/keys", json=body)
        assert answer.status_code in (400, 403, 409) and answer.json()["code"] == code, answer.text
        return answer


@pytest.fixture(scope="module")
def keyed(place: Place) -> Iterator[Place]:  # noqa: F811
    place.post("/groups", KEYED, 201)
    yield place


@pytest.fixture
def alice(keyed: Place) -> Iterator[Person]:
    made = Person(keyed, "alice", "engineers", "keyed")
    with made.api:
        yield made
        for one in made.api.get("/my/keys").json().get("items", []):
            made.api.post(f"/my/keys/{one['id']}/revoke")


def test_a_person_makes_uses_rotates_and_revokes_a_key(alice: Person, keyed: Place) -> None:
    assert alice.api.get("/my/key-rules").json() == {"allowed": True, "count": 3, "life": "30d", "login_within": None}
    made = alice.make(description="laptop")
    assert (made["user"], made["tenant"], made["models"], made["roles"]) == ("alice", "initech", ["*"], [])
    keyed.soon(made["secret"], 200)  # other replicas hear later which groups the login had that made it
    rotated = alice.api.post(f"/my/keys/{made['id']}/rotate", json={"overlap": "0s"}).json()
    keyed.soon(made["secret"], 401)
    assert rotated["id"] == made["id"] and keyed.statuses(rotated["secret"]) == {200}
    assert [one["id"] for one in alice.api.get("/my/keys").json()["items"] if one["state"] == "active"] == [made["id"]]
    assert alice.api.post(f"/my/keys/{made['id']}/revoke").json()["state"] == "revoked"
    keyed.soon(rotated["secret"], 401)


def test_an_explanation_knows_the_bounds_of_its_user(alice: Person, keyed: Place) -> None:
    """`policies explain --key-id` says what the gateway does."""
    made = alice.make()

    def asked(model: str, key: str = made["id"], **request: Any) -> tuple[bool, str]:
        with admin(keyed.gateways[0]) as root:
            said = root.post("/policies:explain", json={"key": key, "request": {"model": model, **request}}).json()
        return said["allow"], said["reason"] if said["rule"] == "credential" else said["rule"]

    assert asked("m1")[0] and asked("m2")[0]
    keyed.patch("/groups/keyed%40initech", models=["m2"])
    keyed.soon(made["secret"], 404)
    assert not asked("m1")[0] and asked("m2")[0]
    keyed.patch("/groups/keyed%40initech", models=[])
    keyed.post("/users/alice%40initech/suspend", {}, 200)
    keyed.soon(made["secret"], 403)
    assert asked("m1") == (False, "The key is suspended.")
    keyed.post("/users/alice%40initech/resume", {}, 200)
    keyed.soon(made["secret"], 200)
    alice.api.post(f"/my/keys/{made['id']}/revoke")
    assert asked("m1") == (False, "The key is revoked.")
    with admin(keyed.gateways[0]) as root:
        near = root.post("/keys", json={"tenant": "initech", "models": ["*"], "cidrs": ["127.0.0.0/8"]}).json()["id"]
    assert asked("m1", near, source="127.0.0.1")[0]
    assert asked("m1", near, source="192.0.2.1") == (False, "The key is not valid from 192.0.2.1: the key's networks.")
    keyed.patch("/tenants/initech", models=["m2"])
    assert not asked("m1", near, source="127.0.0.1")[0] and asked("m2", near, source="127.0.0.1")[0]
    keyed.patch("/tenants/initech", models=["*"])


def test_it_may_do_what_its_user_may_as_it_is_now(alice: Person, keyed: Place) -> None:
    made, narrow = alice.make(), alice.make(models=["m2"], operations=["embeddings"])
    keyed.soon(made["secret"], 200)
    assert keyed.statuses(narrow["secret"], each=3) == {404}
    assert keyed.statuses(narrow["secret"], "m2", each=3) == {404}, "its operation is not one of the role's, so none is left"
    keyed.patch("/groups/keyed%40initech", models=["m2"])
    keyed.soon(made["secret"], 404)
    assert keyed.statuses(made["secret"], "m2", each=3) == {200}
    keyed.patch("/groups/keyed%40initech", models=[])
    keyed.soon(made["secret"], 200)
    assert keyed.gateways[0].chat(key=keyed.issuer.token("alice", "keyed")).status_code == 404, "the issuer has taken the role's group"
    keyed.soon(made["secret"], 404)


def test_it_ends_with_its_group_its_tenant_and_its_user(alice: Person, keyed: Place) -> None:
    secret = alice.make()["secret"]
    keyed.soon(secret, 200)
    keyed.patch("/groups/keyed%40initech", own_keys=None)
    keyed.soon(secret, 401)
    alice.refused("own_keys_not_allowed")
    keyed.patch("/groups/keyed%40initech", own_keys=KEYED["own_keys"])
    keyed.soon(secret, 200)
    keyed.patch("/tenants/initech", models=["m2"])
    keyed.soon(secret, 404)
    keyed.patch("/tenants/initech", models=["*"])
    keyed.post("/users/alice%40initech/suspend")
    keyed.soon(secret, 403)
    assert alice.api.get("/my/keys").status_code == 403
    keyed.post("/users/alice%40initech/resume")
    keyed.soon(secret, 200)
    assert keyed.api.delete("/users/alice%40initech").status_code == 200
    keyed.soon(secret, 401)
    again = Person(keyed, "alice", "engineers", "keyed")
    made = again.make()["id"]
    active = [one["id"] for one in again.api.get("/my/keys").json()["items"] if one["state"] == "active"]
    assert active == [made], "nobody inherits keys"
    again.api.close()
    assert keyed.statuses(secret, each=3) == {401}


def test_nobody_gets_more_by_a_key_of_their_own(alice: Person, keyed: Place) -> None:
    alice.refused("policy_denied", roles=["admin"])
    for wrong in ({"tenant": "acme"}, {"user": "bob"}, {"id": "ci"}, {"priority": "interactive"}, {"limits": []}, {"issued": 1}):
        assert alice.api.post("/my/keys", json=wrong).status_code == 400, wrong
    alice.refused("invalid_value", expires="2099-01-01T00:00:00Z")
    alice.refused("invalid_value", expires="2001-01-01T00:00:00Z")
    alice.refused("invalid_value", cidrs=["nonsense"])
    mine = alice.make()
    for path in ("/keys", "/users", f"/keys/{mine['id']}"):
        assert alice.api.get(path).status_code in (403, 404)
    other = Person(keyed, "mallory", "engineers", "keyed")
    for verb in ("rotate", "revoke"):
        assert other.api.post(f"/my/keys/{mine['id']}/{verb}", json={}).status_code == 404
        assert other.api.post(f"/my/keys/test/{verb}", json={}).status_code == 404
    same = Person(keyed, "alice", "keyed", tenant="globex")
    assert same.api.get("/my/keys").json()["items"] == [] and same.api.post(f"/my/keys/{mine['id']}/revoke").status_code == 404
    same.refused("own_keys_not_allowed")
    other.api.close()
    same.api.close()
    with admin(keyed.gateways[0], key=mine["secret"]) as by_key, admin(keyed.gateways[0], "admin") as root:
        assert by_key.post("/my/keys", json={}).status_code == 403, "a key makes no keys"
        assert root.post("/my/keys", json={}).json()["code"] == "login_required"
        assert root.post(f"/keys/{mine['id']}/rotate", json={}).json()["code"] == "own_key"
        assert root.patch(f"/keys/{mine['id']}", json={"user": "root"}).status_code == 400
        changed = root.patch(f"/keys/{mine['id']}", json={"roles": ["admin"], "models": ["*"]})
        assert changed.json()["user"] == "alice"
        assert by_key.get("/keys").status_code == 403, "a role that the user lacks gives the key nothing"
    with admin(keyed.gateways[0], key=keyed.issuer.token("alice", "keyed", act={"sub": "bot"})) as agent:
        assert agent.post("/my/keys", json={}).json()["code"] == "login_required"


def test_no_more_than_are_allowed_also_at_once(alice: Person) -> None:
    answers: list[int] = []

    def make() -> None:
        answers.append(
            httpx.post(f"{alice.api.base_url}my/keys", json={}, headers=alice.api.headers, trust_env=False, timeout=60).status_code
        )

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == [201] * 3 + [409] * 5
    alice.refused("too_many_keys")


def test_the_command_line(alice: Person, keyed: Place) -> None:
    def cli(*arguments: str) -> str:
        environ = {
            "GATEHOUSE_URL": keyed.gateways[0].admin_url,
            "GATEHOUSE_KEY": alice.token,
            "NO_COLOR": "1",
            "XDG_CONFIG_HOME": "/nowhere",
        }
        done = CliRunner().invoke(app, ["my-keys", *arguments, "-o", "json"], env=environ)
        assert done.exit_code == 0, (done.stdout, done.stderr)
        return done.stdout

    assert '"allowed": true' in cli("rules")
    made = cli("create", "--model", "m1", "--expires", "7d", "--description", "mine")
    id = made.split('"id": "')[1].split('"')[0]
    assert id in cli("list") and '"description": "mine"' in cli("show", id)
    assert '"secret": "gh_' in cli("rotate", id, "--overlap", "0s")
    assert '"state": "revoked"' in cli("revoke", id)


def test_administrators_see_whose_keys_they_are(alice: Person, keyed: Place) -> None:
    made = alice.make()
    until(lambda: keyed.api.get("/keys", params={"user": "alice"}).json()["items"])
    listed = [one["id"] for one in keyed.api.get("/keys", params={"user": "alice", "state": "active"}).json()["items"]]
    assert listed == [made["id"]] and KEYS
    keyed.post(f"/keys/{made['id']}/suspend")
    keyed.soon(made["secret"], 403)
