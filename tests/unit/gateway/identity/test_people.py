"""What is remembered of callers, when it is forgotten, and which rights follow from it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import pytest

from gateway.core.clock import FakeClock
from gateway.core.errors import AuthenticationError, Overloaded, StoreUnavailable
from gateway.core.people import GroupRules, OwnKeys, PersonRecord
from gateway.core.storage import KeyRecord
from gateway.core.tasks import TaskOwner
from gateway.core.types import Headers, Peer, Principal, Scope
from gateway.core.waiting import Maybe
from gateway.identity import keys
from gateway.identity.people import MAX_SEEN, People, Rights, entitle_key, entitle_login, entitle_personal
from gateway.identity.stored import StoredKeys

HERE = Peer("192.0.2.1")
RULE = OwnKeys(life=100.0)


class Asked:
    """A store that answers when the test says so. table: by (tenant, user)."""

    def __init__(self) -> None:
        self.table: dict[tuple[str, str], PersonRecord] = {}
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked: list[tuple[str, str, tuple[str, ...]]] = []
        self.error: Exception | None = None

    async def find(self, tenant: str, user: str, groups: tuple[str, ...]) -> PersonRecord:
        self.asked.append((tenant, user, groups))
        read = self.table.get((tenant, user), PersonRecord())
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return read


class Login:
    """A way to log in with one caller for each header."""

    def __init__(self) -> None:
        self.callers: dict[bytes, Principal] = {}
        self.started = self.closed = 0

    async def start(self) -> None:
        self.started += 1

    async def aclose(self) -> None:
        self.closed += 1

    def authenticate(self, headers: Headers, peer: Peer) -> Maybe[Principal | None]:
        return self.callers.get(headers.get(b"authorization", b""))


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def store() -> Asked:
    return Asked()


@pytest.fixture
async def people(store: Asked, clock: FakeClock) -> AsyncIterator[People]:
    tasks = TaskOwner("test")
    yield People(store.find, tasks, clock=clock, capacity=8, max_flights=4)
    await tasks.aclose()


async def rights(people: People, tenant: str = "acme", user: str = "alice", groups: tuple[str, ...] = ()) -> Rights:
    found = people.rights((tenant, user, groups))
    return found if isinstance(found, Rights) else await found


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


class TestRemembering:
    async def test_many_that_ask_at_once_cost_one_question(self, store: Asked, people: People) -> None:
        store.gate.clear()
        waiting = [asyncio.ensure_future(rights(people)) for _ in range(20)]
        await turns()
        waiting[3].cancel()
        await turns()
        store.gate.set()
        answers = await asyncio.gather(*waiting, return_exceptions=True)
        assert isinstance(answers.pop(3), asyncio.CancelledError)
        assert len(set(map(id, answers))) == 1 and store.asked == [("acme", "alice", ())]
        assert (await rights(people)) is answers[0] and len(store.asked) == 1

    @pytest.mark.parametrize(
        ("kind", "name", "dropped"),
        [
            ("users", "alice@acme", {"alice"}),
            ("logins", "alice@acme", {"alice"}),
            ("groups", "staff@acme", {"", "alice", "bob"}),
            ("tenants", "acme", {"", "alice", "bob"}),
            ("users", "alice@globex", set()),
            ("tenants", "globex", set()),
            ("users", "carol@acme", set()),
        ],
    )
    async def test_a_change_drops_whom_it_concerns(self, people: People, kind: str, name: str, dropped: set[str]) -> None:
        held = {user: await rights(people, user=user) for user in ("", "alice", "bob")}
        people.changed(kind, name)
        assert {user for user, found in held.items() if not found.valid} == dropped
        assert kind in ("groups", "tenants") or len(people) == 3 - len(dropped)
        for user in held:
            assert (await rights(people, user=user)).valid

    async def test_every_login_of_a_user_is_dropped_whatever_its_groups(self, people: People) -> None:
        held = [await rights(people, user="J\u00fcrgen", groups=groups) for groups in ((), ("a",), ("a", "b"))]
        people.changed("users", "J%C3%BCrgen@acme")
        assert not any(found.valid for found in held)

    async def test_an_answer_that_a_change_overtook_is_discarded(self, store: Asked, people: People) -> None:
        store.gate.clear()
        waiting = asyncio.ensure_future(rights(people))
        await turns()
        store.table["acme", "alice"] = PersonRecord(roles=("new",))
        people.changed("users", "alice@acme")
        store.gate.set()
        assert (await waiting).record.roles == ("new",) and len(store.asked) == 2

    async def test_missed_changes_drop_everything(self, store: Asked, people: People) -> None:
        held = await rights(people)
        store.gate.clear()
        waiting = asyncio.ensure_future(rights(people, user="bob"))
        await turns()
        store.table["acme", "bob"] = PersonRecord(roles=("new",))
        people.clear()
        store.gate.set()
        assert not held.valid and (await waiting).record.roles == ("new",)

    async def test_it_is_bounded_and_what_is_forgotten_counts_no_more(self, people: People) -> None:
        held = [await rights(people, user=f"u{number}") for number in range(10)]
        assert len(people) == 8 and [found.valid for found in held] == [False] * 2 + [True] * 8

    async def test_questions_under_way_are_bounded(self, store: Asked, people: People) -> None:
        store.gate.clear()
        waiting = [asyncio.ensure_future(rights(people, user=f"u{number}")) for number in range(4)]
        await turns()
        with pytest.raises(Overloaded):
            people.rights(("acme", "one more", ()))
        store.gate.set()
        await asyncio.gather(*waiting)

    async def test_a_store_that_is_away_fails_those_that_wait_and_is_asked_again(self, store: Asked, people: People) -> None:
        store.error = StoreUnavailable("away")
        with pytest.raises(StoreUnavailable):
            await rights(people)
        store.error = ZeroDivisionError("a defect")
        with pytest.raises(StoreUnavailable):
            await rights(people)
        store.error = None
        assert (await rights(people)).valid


class TestLogins:
    @pytest.fixture
    def login(self) -> Login:
        made = Login()
        made.callers[b"a"] = Principal("alice", "acme", "oidc", user="alice", groups=("staff",))
        return made

    async def enter(self, people: People, login: Login, entitled: Any = None) -> Principal:
        answer = (entitled or people.over(login)).authenticate({b"authorization": b"a"}, HERE)
        found = await answer if isinstance(answer, Awaitable) else answer
        assert isinstance(found, Principal)
        return found

    async def test_a_caller_is_one_object_until_something_changes(self, store: Asked, people: People, login: Login) -> None:
        store.table["acme", "alice"] = PersonRecord(groups=("engineers",), roles=("r",))
        over = people.over(login)
        first = await self.enter(people, login, over)
        assert (first.groups, first.roles, first.user) == (("staff", "engineers"), ("r",), "alice")
        assert over.authenticate({b"authorization": b"a"}, HERE) is first
        store.table["acme", "alice"] = PersonRecord()
        people.changed("users", "alice@acme")
        second = await self.enter(people, login, over)
        assert second is login.callers[b"a"] and second is not first

    async def test_a_change_during_the_answer_counts(self, store: Asked, people: People, login: Login) -> None:
        store.table["acme", "alice"] = PersonRecord(roles=("old",))
        store.gate.clear()
        answer = people.over(login).authenticate({b"authorization": b"a"}, HERE)
        assert isinstance(answer, Awaitable)
        waiting = asyncio.ensure_future(answer)
        await turns()
        store.table["acme", "alice"] = PersonRecord(roles=("new",))
        people.changed("users", "alice@acme")
        store.gate.set()
        found = await waiting
        assert found is not None and found.roles == ("new",)

    async def test_a_tenant_whose_name_would_name_two_users_is_refused(self, people: People, login: Login) -> None:
        login.callers[b"a"] = Principal("a", "b@c", "oidc", user="a")
        with pytest.raises(AuthenticationError):
            people.over(login).authenticate({b"authorization": b"a"}, HERE)

    async def test_each_login_is_noted_once(self, people: People, login: Login, clock: FakeClock) -> None:
        over = people.over(login)
        for _ in range(3):
            await self.enter(people, login, over)
        people.changed("users", "alice@acme")
        await self.enter(people, login, over)
        (seen,) = people.take_seen()
        assert (seen.tenant, seen.user, seen.method, seen.groups, seen.time) == ("acme", "alice", "oidc", ("staff",), clock.wall())
        assert people.take_seen() == []

    async def test_who_acts_for_somebody_does_not_log_them_in(self, people: People) -> None:
        people.saw(Principal("alice", "acme", "oidc", user="alice", agent="bot"))
        people.saw(Principal("service", "acme", "plugin"))
        assert people.take_seen() == []

    async def test_what_is_noted_is_bounded(self, people: People) -> None:
        for number in range(MAX_SEEN + 10):
            people.saw(Principal("x", "acme", "oidc", user=f"u{number}"))
        people.saw(Principal("x", "acme", "oidc", user="u0", groups=("late",)))
        seen = people.take_seen()
        assert len(seen) == MAX_SEEN and seen[0].groups == ("late",)

    async def test_it_lives_as_long_as_the_way_to_log_in(self, people: People, login: Login) -> None:
        over: Any = people.over(login)
        await over.start()
        await over.aclose()
        assert (login.started, login.closed) == (1, 1)
        assert over.authenticate({}, HERE) is None


class TestRights:
    def test_the_models_of_groups_are_given_and_bound(self) -> None:
        login = Principal("alice", "acme", "oidc", user="alice", groups=("a", "b", "none"))
        record = PersonRecord(
            models=("demo-*",),
            rules={"a": GroupRules(models=("demo-a",), operations=("chat",)), "b": GroupRules(models=("b",)), "none": GroupRules()},
        )
        found = entitle_login(login, record)
        assert found.models == ("demo-a", "b") and found.operations == ()
        assert shown(found) == [[(("demo-*",), ())], [(("demo-a",), ("chat",)), (("b",), ())]]

    def test_a_login_that_says_its_models_gets_no_others_by_a_group(self) -> None:
        login = Principal("svc", "acme", "mtls", ("m1",), user="svc", groups=("a",))
        found = entitle_login(login, PersonRecord(rules={"a": GroupRules(models=("*",))}))
        assert found.models == ("m1",) and shown(found) == [[(("*",), ())]]

    def test_a_tenant_bounds_its_keys(self) -> None:
        key = Principal("k", "acme", "api_key", ("*",))
        assert shown(entitle_key(key, PersonRecord(models=("demo-*",)))) == [[(("demo-*",), ())]]
        assert entitle_key(key, PersonRecord(models=("*",))) is key is entitle_key(key, PersonRecord())
        assert shown(entitle_key(key, PersonRecord(models=()))) == [[((), ())]], "a tenant without a model has none"

    def test_a_personal_key_does_at_most_what_its_user_may(self) -> None:
        person = PersonRecord(
            models=("demo-*",),
            made=5.0,
            groups=("g",),
            roles=("chatter", "admin"),
            login_groups=("said",),
            login_roles=("viewer",),
            rules={"g": GroupRules(models=("m",)), "said": GroupRules(own_keys=RULE)},
        )
        found = entitle_personal(own(roles=("viewer", "operator")), person)
        assert found is not None and found.made == 10.0
        assert found is not None and found.personal and found.user == "alice" and found.groups == ("g", "said")
        assert found.models == ("m",), "what is given is the groups'"
        assert shown(found) == [[(("x-*",), ("chat",))], [(("demo-*",), ())], [(("m",), ())]]
        assert found.roles == ("chatter", "viewer"), "those of the admin API only where the key has them, and the user too"
        assert found.expires == 110.0

    @pytest.mark.parametrize(
        "person",
        [
            PersonRecord(groups=("g",), rules={"g": GroupRules(own_keys=RULE)}),
            PersonRecord(made=11.0, groups=("g",), rules={"g": GroupRules(own_keys=RULE)}),
            PersonRecord(made=5.0, groups=(), rules={"g": GroupRules(own_keys=RULE)}),
            PersonRecord(made=5.0, groups=("g",), rules={"g": GroupRules()}),
            PersonRecord(made=5.0, groups=("g",)),
        ],
    )
    def test_it_does_not_count_without_its_user_or_a_group_that_allows_it(self, person: PersonRecord) -> None:
        assert entitle_personal(own(), person) is None

    def test_its_life_is_what_the_groups_allow_now(self) -> None:
        def ends(rule: OwnKeys, last_login: float | None = 50.0, **more: Any) -> float | None:
            rules = {"g": GroupRules(own_keys=rule)}
            found = entitle_personal(own(**more), PersonRecord(made=5.0, groups=("g",), last_login=last_login, rules=rules))
            assert found is not None
            return found.expires

        assert ends(RULE) == 110.0 and ends(RULE, issued=60.0) == 160.0
        assert ends(RULE, expires=70.0) == 70.0
        assert ends(OwnKeys(life=1000.0, login_within=30.0)) == 80.0
        assert ends(OwnKeys(life=1000.0, login_within=30.0), last_login=None) == 30.0


def own(**more: Any) -> KeyRecord:
    fields: dict[str, Any] = {"id": "k", "tenant": "acme", "user": "alice", "models": ("x-*",), "operations": ("chat",), "created": 10.0}
    return KeyRecord(**{**fields, "prefix": "gh_", "version": 1, "updated": 0.0, "actor": "x", **more})


def shown(principal: Principal) -> list[list[tuple[tuple[str, ...], tuple[str, ...]]]]:
    assert all(isinstance(scope, Scope) for bound in principal.bounds for scope in bound)
    return [[(scope.models, scope.operations) for scope in bound] for bound in principal.bounds]


class TestKeys:
    """A cached key with the rights of its tenant or user."""

    @pytest.fixture
    async def known(self, people: People, clock: FakeClock) -> AsyncIterator[StoredKeys]:
        self.table = {"plain": own(id="plain", user="", models=("*",)), "own": own(id="own", created=clock.wall())}

        async def find(digest: bytes, key: str) -> KeyRecord | None:
            return self.table.get(key)

        tasks = TaskOwner("test")
        yield StoredKeys(find, tasks, people, clock=clock)
        await tasks.aclose()

    async def get(self, known: StoredKeys, key: str) -> Principal | None:
        answer = known.lookup(keys.digest(key), key, HERE)
        return await answer if isinstance(answer, Awaitable) else answer

    async def test_narrowing_the_tenant_counts_for_a_cached_key(self, store: Asked, people: People, known: StoredKeys) -> None:
        first = await self.get(known, "plain")
        assert first is not None and first.bounds == ()
        assert known.remembered(keys.digest("plain"), HERE) is first
        store.table["acme", ""] = PersonRecord(models=("demo-*",))
        people.changed("tenants", "acme")
        assert known.remembered(keys.digest("plain"), HERE) is None
        second = await self.get(known, "plain")
        assert second is not None and second is not first and shown(second) == [[(("demo-*",), ())]]
        assert first.made == second.made == 10.0
        assert known.remembered(keys.digest("plain"), HERE) is second

    async def test_waiting_requests_get_one_principal(self, store: Asked, people: People, known: StoredKeys) -> None:
        await self.get(known, "plain")
        people.changed("tenants", "acme")
        store.gate.clear()
        waiting = [asyncio.ensure_future(self.get(known, "plain")) for _ in range(9)]
        await turns()
        store.gate.set()
        answers = await asyncio.gather(*waiting)
        assert len(set(map(id, answers))) == 1 and answers[0] is not None

    async def test_a_key_revoked_while_rights_are_asked_for_is_refused(self, store: Asked, people: People, known: StoredKeys) -> None:
        await self.get(known, "plain")
        people.changed("tenants", "acme")
        store.gate.clear()
        waiting = asyncio.ensure_future(self.get(known, "plain"))
        await turns()
        self.table.clear()
        known.changed("plain", "revoked")
        store.gate.set()
        assert await waiting is None

    async def test_an_own_key_dies_with_its_user_and_with_the_group_that_allows_it(
        self, store: Asked, people: People, known: StoredKeys, clock: FakeClock
    ) -> None:
        person = PersonRecord(made=clock.wall() - 1, groups=("g",), rules={"g": GroupRules(own_keys=OwnKeys())})
        store.table["acme", "alice"] = person
        assert await self.get(known, "own") is not None
        for without in (PersonRecord(), PersonRecord(made=person.made, rules=person.rules)):
            store.table["acme", "alice"] = without
            people.changed("users", "alice@acme")
            assert await self.get(known, "own") is None
            store.table["acme", "alice"] = person
            people.changed("groups", "g@acme")
            assert await self.get(known, "own") is not None

    async def test_a_store_that_is_away_is_no_refusal(self, store: Asked, people: People, known: StoredKeys) -> None:
        held = await self.get(known, "plain")
        store.error = StoreUnavailable("away")
        assert known.remembered(keys.digest("plain"), HERE) is held
        people.changed("tenants", "acme")
        with pytest.raises(StoreUnavailable):
            await self.get(known, "plain")
