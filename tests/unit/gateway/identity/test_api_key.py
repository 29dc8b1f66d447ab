"""API keys: which headers carry one, and what happens to one that is not known."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable

import pytest

from gateway.core.clock import FakeClock, SystemEntropy
from gateway.core.errors import AuthenticationError, RequestError
from gateway.core.ports import Authenticator
from gateway.core.secret import Secret
from gateway.core.specs import StaticKeySpec
from gateway.core.types import Headers, Peer, Principal
from gateway.core.waiting import Maybe
from gateway.identity import keys
from gateway.identity.api_key import ApiKeyAuthenticator
from gateway.identity.chain import chain

KEY = "k" * 40
PEER = Peer("192.0.2.1")
JWT = b"eyJhbGciOiJub25lIn0.eyJzdWIiOiJhIn0.c2ln"


class Store:
    """A key store that answers what the test says, at once or later; `known` is what it remembers."""

    def __init__(self, answer: Principal | None, later: bool = False) -> None:
        self.answer, self.later = answer, later
        self.asked: list[tuple[bytes, str]] = []
        self.known: dict[bytes, Principal] = {}

    def remembered(self, digest: bytes, peer: Peer) -> Principal | None:
        return self.known.get(digest)

    def lookup(self, digest: bytes, key: str, peer: Peer) -> Maybe[Principal | None]:
        self.asked.append((digest, key))
        return self._wait() if self.later else self.answer

    async def _wait(self) -> Principal | None:
        return self.answer


def static() -> ApiKeyAuthenticator:
    return ApiKeyAuthenticator(
        [
            StaticKeySpec(id="ci", tenant="team", models=("demo-*",), key=Secret(KEY), priority="batch", roles=("dev",)),
            StaticKeySpec(id="hashed", tenant="team", models=("*",), key_sha256=hashlib.sha256(b"h" * 32).hexdigest().upper()),
        ]
    )


def who(authenticator: Authenticator, headers: Headers) -> Principal | None:
    found = authenticator.authenticate(headers, PEER)
    assert not isinstance(found, Awaitable)
    return found


def test_a_key_of_the_file_may_stand_for_a_user_in_groups() -> None:
    spec = StaticKeySpec(id="ci", tenant="team", models=("*",), key=Secret(KEY), user="nightly", groups=("jobs", "eu"))
    found = who(ApiKeyAuthenticator([spec]), {b"x-api-key": KEY.encode()})
    assert found is not None and (found.user, found.groups, found.personal) == ("nightly", ("jobs", "eu"), False)


@pytest.mark.parametrize(
    "headers",
    [
        {b"authorization": b"Bearer " + KEY.encode()},
        {b"authorization": b"bearer " + KEY.encode()},
        {b"authorization": b"BEARER  " + KEY.encode() + b" "},
        {b"x-api-key": KEY.encode()},
        {b"api-key": KEY.encode()},
        {b"authorization": b"Bearer " + KEY.encode(), b"x-api-key": KEY.encode(), b"api-key": KEY.encode()},
    ],
)
def test_the_ways_to_send_a_key(headers: Headers) -> None:
    principal = who(static(), headers)
    assert principal is not None
    assert (principal.id, principal.tenant, principal.kind, principal.models) == ("ci", "team", "api_key", ("demo-*",))
    assert (principal.priority, principal.roles, principal.expires) == ("batch", ("dev",), None)


def test_one_key_is_always_the_same_principal() -> None:
    authenticator = static()
    first = who(authenticator, {b"authorization": b"Bearer " + KEY.encode()})
    assert first is not None and first is who(authenticator, {b"api-key": KEY.encode()})


def test_the_hash_of_a_key_is_remembered_for_that_very_value_of_one_connection() -> None:
    """As a connection whose head comes again hands over the same object; an equal one is hashed, and so is any other key."""
    authenticator, peer = static(), Peer("192.0.2.1")
    value, other, unknown = (b"Bearer " + key for key in (KEY.encode(), b"h" * 32, b"u" * 40))
    for given, name in ((value, "ci"), (value, "ci"), (other, "hashed"), (value, "ci"), (unknown, None), (bytes(bytearray(value)), "ci")):
        found = authenticator.authenticate({b"authorization": given}, peer)
        assert not isinstance(found, Awaitable) and (None if found is None else found.id) == name
        assert peer.bearer is given and peer.bearer_digest == hashlib.sha256(given[7:]).digest()
    assert PEER.bearer is not value


def test_a_key_given_as_its_hash() -> None:
    principal = who(static(), {b"x-api-key": b"h" * 32})
    assert principal is not None and principal.id == "hashed"


@pytest.mark.parametrize("text", [b"", b"0", b"s" * 31])
@pytest.mark.parametrize("header", [b"authorization", b"x-api-key"])
def test_a_shorter_text_is_no_key_even_if_the_file_has_its_hash(text: bytes, header: bytes) -> None:
    spec = StaticKeySpec(id="short", tenant="team", models=("*",), key_sha256=hashlib.sha256(text).hexdigest(), roles=("admin",))
    with pytest.raises(AuthenticationError, match="The credential is not valid"):
        who(chain([ApiKeyAuthenticator([spec])]), {header: b"Bearer " + text if header == b"authorization" else text})


@pytest.mark.parametrize("headers", [{}, {b"authorization": b"Basic dTpw"}, {b"authorization": b"Bearer " + JWT}, {b"x-api-key": JWT}])
def test_what_belongs_to_others_is_left_to_them(headers: Headers) -> None:
    assert who(static(), headers) is None


@pytest.mark.parametrize(
    "value",
    [b"", b"x", b"K" * 40, KEY.encode() + b"x", KEY.encode()[:-1], b"\xff\xfe", b"eyJ.no-token", b"x" * 20_000, b"gh_" + b"0" * 39, b" "],
)
@pytest.mark.parametrize("name", [b"authorization", b"x-api-key"])
def test_a_bad_key_is_rejected_always_in_the_same_words(name: bytes, value: bytes) -> None:
    with pytest.raises(AuthenticationError) as caught:
        who(chain([static()]), {name: b"Bearer " + value if name == b"authorization" else value})
    error = caught.value
    assert (error.status, error.code, error.message) == (401, "invalid_api_key", "The credential is not valid.")
    assert error.headers == (("www-authenticate", 'Bearer realm="gatehouse"'),)


@pytest.mark.parametrize(
    "headers",
    [
        {b"authorization": b"Bearer " + KEY.encode(), b"x-api-key": b"other"},
        {b"x-api-key": b"a", b"api-key": b"b"},
        {b"authorization": b"Basic dTpw", b"x-api-key": KEY.encode()},
        {b"authorization": b"Bearer " + JWT, b"x-api-key": KEY.encode()},
    ],
)
def test_two_different_credentials_are_refused(headers: Headers) -> None:
    with pytest.raises(RequestError) as caught:
        who(static(), headers)
    assert (caught.value.status, caught.value.code) == (400, "ambiguous_credentials")


@pytest.mark.parametrize(
    "headers",
    [
        {b"authorization": b"Bearer " + KEY.encode(), b"x-api-key": b"", b"api-key": b" "},
        {b"authorization": b"Bearer ", b"x-api-key": KEY.encode()},
        {b"authorization": b"", b"x-api-key": KEY.encode()},
        {b"x-api-key": b"", b"api-key": KEY.encode()},
    ],
)
def test_a_header_without_a_value_is_no_second_credential(headers: Headers) -> None:
    found = who(static(), headers)
    assert found is not None and found.id == "ci"


def gh_key() -> str:
    return keys.generate(SystemEntropy())


def test_a_key_of_the_store() -> None:
    principal, key = Principal("k1", "t", "api_key", ("*",)), gh_key()
    store = Store(principal)
    assert who(ApiKeyAuthenticator([], store), {b"x-api-key": key.encode()}) is principal
    assert store.asked == [(hashlib.sha256(key.encode()).digest(), key)]


def test_a_key_that_the_store_remembers_is_not_asked_for() -> None:
    principal, key = Principal("k1", "t", "api_key", ("*",)), gh_key()
    store = Store(None)
    store.known[keys.digest(key)] = principal
    authenticator = ApiKeyAuthenticator([], store)
    assert who(authenticator, {b"authorization": b"Bearer " + key.encode()}) is principal
    assert store.asked == []


async def test_a_key_of_the_store_that_must_be_waited_for() -> None:
    principal = Principal("k1", "t", "api_key", ("*",))
    found = ApiKeyAuthenticator([], Store(principal, later=True)).authenticate({b"x-api-key": gh_key().encode()}, PEER)
    assert isinstance(found, Awaitable)
    assert await found is principal
    found = ApiKeyAuthenticator([], Store(None, later=True)).authenticate({b"x-api-key": gh_key().encode()}, PEER)
    assert isinstance(found, Awaitable)
    with pytest.raises(AuthenticationError, match="not valid"):
        await found


def test_the_store_is_not_asked_for_what_cannot_be_a_key() -> None:
    store = Store(Principal("k1", "t", "api_key"))
    key = gh_key()
    damaged = key[:-1] + ("a" if key[-1] != "a" else "b")
    for value in (damaged, key[:-1], "gh_ü"):
        with pytest.raises(AuthenticationError):
            who(ApiKeyAuthenticator([], store), {b"x-api-key": value.encode()})
    assert who(ApiKeyAuthenticator([], store), {b"x-api-key": b"x" * 42}) is None, "others may know it"
    assert store.asked == []


def test_an_expired_key_of_the_store_is_rejected_like_an_unknown_one() -> None:
    clock = FakeClock()
    store = Store(Principal("k1", "t", "api_key", expires=clock.wall() + 10))
    authenticator = ApiKeyAuthenticator([], store, clock)
    headers = {b"x-api-key": gh_key().encode()}
    assert who(authenticator, headers) is store.answer
    clock.advance(10)
    with pytest.raises(AuthenticationError) as caught:
        who(authenticator, headers)
    assert caught.value.code == "invalid_api_key"


def test_no_key_is_kept() -> None:
    authenticator = static()
    kept = {name: getattr(authenticator, name) for name in dir(authenticator) if not name.startswith("__")}
    assert KEY not in repr(kept) and KEY.encode() not in b"".join(authenticator._principals)
