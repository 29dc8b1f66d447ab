"""Tenants, users and groups against running gateways: one, one with two workers, and two replicas on one PostgreSQL with two each."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from gateway.core.people import full_name
from tests.e2e.adminapi import admin, config
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import Gatehouse, errors_of
from tests.fakes.issuer import Issuer
from tests.integration.postgres import PostgresServer, postgres  # noqa: F401 - a fixture
from tests.waiting import until

PEPPER = "a pepper that two replicas share in the tests"


class Place:
    """Gateways on one store. What is changed at the first must count at all."""

    def __init__(self, gateways: list[Gatehouse], issuer: Issuer) -> None:
        self.gateways, self.issuer = gateways, issuer
        self.api = admin(gateways[0])

    def statuses(self, key: str, model: str = "m1", each: int = 6) -> set[int]:
        """Of requests on connections of their own to every gateway, so that every worker gets some."""
        return {gateway.chat(key=key, model=model).status_code for gateway in self.gateways for _ in range(each)}

    def soon(self, key: str, status: int, model: str = "m1") -> None:
        """Of two workers, ten connections miss one in one of five hundred cases."""
        until(lambda: self.statuses(key, model, each=10) == {status}, what=f"{status} everywhere")

    def key(self, **settings: Any) -> tuple[str, str]:
        made = self.api.post("/keys", json={"tenant": "initech", "models": ["*"], **settings})
        assert made.status_code == 201, made.text
        return made.json()["id"], made.json()["secret"]

    def user(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.api.get(f"/users/{quote(name, safe='')}").json()
        return found

    def known(self, name: str) -> dict[str, Any]:
        """The user's record, once the first login has made it."""
        return until(lambda: found if "name" in (found := self.user(name)) else None, what=f"the record of {name}")

    def post(self, path: str, body: Any = None, status: int = 200) -> dict[str, Any]:
        """Answers once it is in force in every process of the first gateway."""
        answer = self.api.post(path, json={} if body is None else body, params={"wait": 60})
        assert answer.status_code == status, answer.text
        assert answer.headers["x-gatehouse-in-force"] == "true"
        made: dict[str, Any] = answer.json()
        return made

    def patch(self, path: str, **settings: Any) -> httpx.Response:
        """Answers once it is in force in every process of the first gateway."""
        answer = self.api.patch(path, json=settings, params={"wait": 60})
        assert (answer.status_code, answer.headers["x-gatehouse-in-force"]) == (200, "true"), answer.text
        return answer


@pytest.fixture(scope="module", params=["one", "replicas"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, engine: EngineThread) -> Iterator[Place]:
    directory: Path = tmp_path_factory.mktemp("people")
    issuer = Issuer()
    oidc = [{"name": "corp", "issuer": issuer.url, "jwks_url": issuer.url, "audiences": ["gatehouse"]}]
    roles = {"chatter": {"permissions": ["infer:chat"]}}
    bindings = [{"role": "chatter", "subjects": ["group/engineers", "user/bound"], "tenant": "initech"}]
    store, count, workers = {}, 1, [] if request.param == "one" else ["--workers", "2"]
    if request.param == "replicas":
        server: PostgresServer = request.getfixturevalue("postgres")
        store, count = {"url": server.database()}, 2
    gateways = []
    for number in range(count):
        (directory / f"g{number}").mkdir()
        models = [{"name": "m1", "pool": ["fake"]}, {"name": "m2", "pool": ["fake"]}]
        settings = config(directory / f"g{number}" / "state", engine.port, models=models, store={"upstreams": ["127.0.0.0/8"], **store})
        settings["identity"]["oidc"] = oidc
        settings |= {"roles": roles, "bindings": bindings}
        gateways.append(Gatehouse(directory / f"g{number}", settings, {"GATEHOUSE_PEPPER": PEPPER}, workers))
    try:
        for gateway in gateways:
            gateway.launch()
        for gateway in gateways:
            gateway.await_start()
        found = Place(gateways, issuer)
        assert found.api.post("/tenants", json={"name": "initech"}).status_code == 201
        yield found
        found.api.close()
    finally:
        issuer.close()
        codes = [gateway.stop() for gateway in gateways if gateway.process is not None]
    assert codes == [0] * count, [line for gateway in gateways for line in gateway.lines]


def test_narrowing_a_tenant_withdraws_models_from_its_keys_at_once(place: Place) -> None:
    _, key = place.key()
    assert place.statuses(key) == {200} == place.statuses(key, "m2")
    place.patch("/tenants/initech", models=["m2"])
    assert {place.gateways[0].chat(key=key).status_code for _ in range(8)} == {404}, "in force in every worker"
    place.soon(key, 404)
    assert place.statuses(key, "m2") == {200}
    for gateway in place.gateways:
        assert errors_of(gateway.chat(key=key))["code"] == "model_not_found"
        with gateway.client(key) as client:
            assert [model["id"] for model in client.get("/v1/models").json()["data"]] == ["m2"]
    place.patch("/tenants/initech", models=["*"])
    place.soon(key, 200)


class TestUsers:
    def test_the_first_login_makes_the_user_and_later_ones_are_noted(self, place: Place) -> None:
        token = place.issuer.token("first", "engineers")
        assert place.gateways[0].chat(key=token).status_code == 200
        found = place.known("first@initech")
        assert (found["origin"], found["version"], found["updated_by"], found["groups"]) == ("oidc", 1, "login", [])
        assert found["login_groups"] == ["engineers"] and found["first_login"] == found["last_login"]
        assert place.gateways[-1].chat(key=place.issuer.token("first", "sales")).status_code == 404
        until(lambda: place.user("first@initech")["login_groups"] == ["sales"], what="the second login")
        assert place.user("first@initech")["version"] == 1, "a login is no write"

    @pytest.mark.parametrize("name", ["J\u00fcrgen Gro\u00df", "a@b@c", "../admin", "Alice", "\U0001f600", "a%2Fb", "-x", "o'hara\"<"])
    def test_odd_names(self, place: Place, name: str) -> None:
        id = full_name(name, "initech")
        assert place.gateways[0].chat(key=place.issuer.token(name, "engineers")).status_code == 200
        assert place.known(id)["name"] == id
        place.post(f"/users/{quote(id, safe='')}/suspend")
        assert {g.chat(key=place.issuer.token(name, "engineers")).status_code for g in place.gateways[:1]} == {403}
        assert place.gateways[0].chat(key=place.issuer.token(name.upper() + "x", "engineers")).status_code == 200
        place.post(f"/users/{quote(id, safe='')}/resume")
        assert place.gateways[0].chat(key=place.issuer.token(name, "engineers")).status_code == 200

    def test_a_group_given_and_taken_counts_at_once_for_a_cached_login(self, place: Place) -> None:
        token = place.issuer.token("grouped")
        assert place.statuses(token) == {404}, "no role, no model"
        place.known("grouped@initech")
        place.post("/groups", {"name": "engineers@initech"}, 201)
        place.post("/groups/engineers%40initech/add-member", {"user": "grouped@initech"})
        assert {place.gateways[0].chat(key=token).status_code for _ in range(6)} == {200}
        place.soon(token, 200)
        refused = place.api.delete("/groups/engineers%40initech")
        assert (refused.status_code, refused.json()["code"]) == (409, "in_use")
        assert [one["name"] for one in place.api.get("/groups/engineers%40initech/members").json()["items"]] == ["grouped@initech"]
        place.post("/groups/engineers%40initech/remove-member", {"user": "grouped@initech"})
        assert {place.gateways[0].chat(key=token).status_code for _ in range(6)} == {404}
        place.soon(token, 404)
        refused = place.api.delete("/groups/engineers%40initech")
        assert refused.json()["code"] == "in_use" and "binding" in refused.json()["detail"]

    def test_operators_who_change_one_user_or_key_at_once_all_do(self, place: Place) -> None:
        place.post("/users", {"name": "shared@initech"}, 201)
        for group in ("one", "two"):
            place.post("/groups", {"name": f"{group}@initech"}, 201)
        key, _ = place.key()
        with admin(place.gateways[0]) as first, admin(place.gateways[-1]) as second, ThreadPoolExecutor(2) as threads:

            def both(*calls: Callable[[], httpx.Response]) -> set[int]:
                return {answer.status_code for answer in threads.map(lambda call: call(), calls)}

            for round in range(10):
                for verb in ("add", "remove"):
                    assert both(
                        lambda: first.post(f"/groups/one%40initech/{verb}-member", json={"user": "shared@initech"}),  # noqa: B023
                        lambda: second.post(f"/groups/two%40initech/{verb}-member", json={"user": "shared@initech"}),  # noqa: B023
                    ) == {200}
                    assert sorted(place.user("shared@initech")["groups"]) == (["one", "two"] if verb == "add" else [])
                assert both(
                    lambda: first.patch(f"/keys/{key}", json={"description": f"{round}"}),  # noqa: B023
                    lambda: second.patch(f"/keys/{key}", json={"models": [f"m{round}"]}),  # noqa: B023
                ) == {200}
                found = place.api.get(f"/keys/{key}").json()
                assert (found["description"], found["models"]) == (f"{round}", [f"m{round}"])

    def test_the_models_of_a_group_bound_what_roles_give(self, place: Place) -> None:
        place.post("/groups", {"name": "narrow@initech", "models": ["m2"]}, 201)
        token = place.issuer.token("bound", "narrow")
        assert place.statuses(token, "m2") == {200} and place.statuses(token) == {404}
        place.patch("/groups/narrow%40initech", models=["m1"], operations=["embeddings"])
        place.soon(token, 404, "m2")
        assert place.statuses(token) == {404}, "the group's operation is not one of the role's, so none is left"
        place.patch("/groups/narrow%40initech", models=[], operations=[])
        place.soon(token, 200)

    def test_a_role_given_to_a_user_counts_and_one_that_is_not_there_is_refused(self, place: Place) -> None:
        token = place.issuer.token("roled")
        assert place.statuses(token, each=2) == {404}
        place.known("roled@initech")
        wrong = place.api.patch("/users/roled%40initech", json={"roles": ["chattr"]})
        assert wrong.status_code == 400 and "chatter" in wrong.json()["detail"]
        wrong = place.api.patch("/users/roled%40initech", json={"groups": ["nobody"]})
        assert (wrong.status_code, wrong.json()["param"]) == (400, "groups[0]")
        place.patch("/users/roled%40initech", roles=["chatter"])
        place.soon(token, 200)
        place.patch("/users/roled%40initech", roles=None)
        place.soon(token, 404)


class TestSuspensions:
    def test_a_suspended_user_is_refused_at_once_also_with_a_new_login(self, place: Place) -> None:
        token = place.issuer.token("bad", "engineers")
        assert place.statuses(token) == {200}
        place.known("bad@initech")
        place.post("/users/bad%40initech/suspend", {"reason": "left in anger"})
        for _ in range(6):
            error = errors_of(place.gateways[0].chat(key=token))
            assert error["code"] == "suspended" and "anger" not in error["message"]
        place.soon(token, 403)
        assert place.statuses(place.issuer.token("bad", "engineers")) == {403}
        assert place.user("bad@initech")["suspended"] is True
        assert place.api.delete("/users/bad%40initech").status_code == 200
        assert place.statuses(place.issuer.token("bad", "engineers")) == {403}, "a record that is made anew changes nothing"
        place.post("/users/bad%40initech/resume")
        place.soon(token, 200)

    def test_a_wrong_credential_learns_nothing_of_a_suspension(self, place: Place) -> None:
        id, key = place.key()
        place.post(f"/keys/{id}/suspend")
        place.soon(key, 403)
        wrong = key[:-1] + ("a" if key[-1] != "a" else "b")
        assert errors_of(place.gateways[0].chat(key=wrong))["code"] == "invalid_api_key"
        listed = {one["id"]: one["suspended"] for one in place.api.get("/keys", params={"tenant": "initech"}).json()["items"]}
        assert listed[id] is True and sum(listed.values()) == 1
        place.post(f"/keys/{id}/resume")
        place.soon(key, 200)

    def test_a_tenant_with_its_keys_and_users(self, place: Place) -> None:
        _, key = place.key()
        token = place.issuer.token("someone", "engineers")
        assert place.statuses(key) == {200} == place.statuses(token)
        place.post("/tenants/initech/suspend", {"reason": "unpaid"})
        place.soon(key, 403)
        assert place.statuses(token) == {403}
        assert place.api.get("/tenants/initech").json()["suspended"] is True
        assert place.statuses("other-key-0123456789abcdef0123456789abcde") == {200}, "other tenants are not concerned"
        place.post("/tenants/initech/resume")
        place.soon(key, 200)

    def test_a_stream_under_way_ends(self, place: Place, engine: EngineThread) -> None:
        id, key = place.key()
        engine.play("hang:at=mid,chunks=3")
        with place.gateways[-1].client(key) as client:
            body = {"model": "m1", "messages": [{"role": "user", "content": "hi"}], "stream": True}
            with client.stream("POST", "/v1/chat/completions", json=body) as answer:
                lines = answer.iter_lines()
                assert next(lines).startswith("data: ")
                place.post(f"/keys/{id}/suspend")
                rest = "\n".join(lines)  # the engine would hang for ever
        assert '"suspended"' in rest and rest.rstrip().endswith("[DONE]")

    def test_nobody_suspends_themselves_or_one_with_more_rights(self, place: Place) -> None:
        for path in ("/keys/a-admin", "/tenants/acme"):
            refused = place.api.post(f"{path}/suspend", json={})
            assert (refused.status_code, refused.json()["code"]) == (409, "own_suspension")
        with admin(place.gateways[0], "tenant-admin") as confined:
            assert confined.post("/keys/a-admin/suspend", json={}).status_code == 403
            assert confined.post("/keys/a-none/suspend", json={}, params={"dry_run": True}).json()["result"]["suspended"] is True
            assert confined.post("/tenants/acme/suspend", json={}).status_code == 403
            assert confined.post("/users/bad%40initech/suspend", json={}).status_code == 404
        for role in ("operator", "auditor", "viewer"):
            with admin(place.gateways[0], role) as client:
                assert client.post("/keys/a-none/suspend", json={}).status_code == 403

    def test_it_is_recorded_with_who_and_why(self, place: Place) -> None:
        place.post("/users/nobody%40initech/suspend", {"reason": "never seen"})
        place.post("/users/nobody%40initech/resume")
        records = place.api.get("/audit/records").json()["items"]
        found = [r for r in records if r.get("event") == "admin.users.suspend" and r.get("outcome", "ok") == "ok"]
        assert found[-2]["target"] == "users/nobody@initech" and found[-2]["actor"] == "acme/a-admin"
        assert "never seen" in json.dumps(found[-2])


def test_a_suspension_outlives_a_restart(tmp_path: Path, engine: EngineThread) -> None:
    gatehouse = Gatehouse(tmp_path, config(tmp_path / "state", engine.port))
    for expected in (200, 403):
        with gatehouse:
            assert gatehouse.chat().status_code == expected
            with admin(gatehouse) as api:
                assert api.post("/keys/test/suspend", json={}).status_code == 200, "a key of the configuration file too"
