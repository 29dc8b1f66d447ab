"""Which gateway tokens count: the table of attacks. One line a case; all get the same answer."""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from gateway.core.errors import AuthenticationError
from gateway.core.specs import GatewayTokensSpec, OidcSpec
from gateway.core.tokens import MAX_ACTORS, MAX_SOURCES, ActorSource, Grant, Source, acting_of, sources_of
from gateway.core.types import Peer, Principal
from gateway.identity.gateway_tokens import LEEWAY, PREFIX, TYPE, GatewayTokenAuthenticator, claims_of, encoded
from gateway.identity.oidc import OidcAuthenticator
from gateway.identity.revocations import Revocations
from gateway.identity.token_keys import TokenKeys, name_of, text_of
from tests.unit.gateway.identity import issuing
from tests.unit.gateway.identity.issuing import NOW, b64
from tests.unit.gateway.identity.test_oidc import Time

PEER = Peer("192.0.2.1")
SPEC = GatewayTokensSpec(issuer="https://gw.example", ttl=600.0)
KEY = ed25519.Ed25519PrivateKey.generate()
OTHER = ed25519.Ed25519PrivateKey.generate()
X = text_of(KEY.public_key().public_bytes_raw())
KID = name_of(X)
GRANT = Grant(
    subject="alice",
    tenant="acme",
    user="alice",
    groups=("engineers",),
    scopes=("openid",),
    scope=("infer:chat:model/m1",),
    agent="bot",
    actors=("bot", "older"),
    session="s1",
    strength="mfa",
    auth_time=NOW - 60,
    acr="high",
    amr=("pwd", "mfa"),
    may_act="bot",
    may_act_issuer="https://idp.example",
    acting=(ActorSource(kind="oidc", id="bot", user="robot", issuer="https://idp.example", token_id="bots", issued=NOW - 30),),
    sources=(Source(kind="oidc", issuer="https://idp.example", token_id="src", issued=NOW - 60),),
)


class World:
    def __init__(self, spec: GatewayTokensSpec = SPEC) -> None:
        self.clock, self.keys, self.revocations = Time(), TokenKeys(), Revocations()
        self.keys.replace({KID: X})
        self.made = GatewayTokenAuthenticator(spec, self.clock, self.keys, self.revocations)

    def login(self, token: str | bytes) -> Principal | None:
        value = token.encode() if isinstance(token, str) else token
        found = self.made.authenticate({b"authorization": b"Bearer " + value}, PEER)
        assert found is None or isinstance(found, Principal)
        return found

    def refused(self, token: str | bytes) -> str:
        """The code; the text is the same for all."""
        try:
            if self.login(token) is None:
                return "nobody's"
        except AuthenticationError as error:
            assert error.status == 401 and error.message in ("The credential is not valid.", "The token has expired.")
            return error.code
        raise AssertionError("it counted")


def good(grant: Grant = GRANT, spec: GatewayTokensSpec = SPEC, now: float = NOW, key: Any = KEY, kid: str = KID) -> str:
    return encoded(claims_of(grant, spec, "id-1", now), kid, key)


def forged(head: dict[str, Any] | bytes | None = None, changed: dict[str, Any] | bytes | None = None, key: Any = KEY) -> bytes:
    """A token with another header or other claims, signed by the gateway's own key."""
    if not isinstance(head, bytes):
        head = json.dumps({"typ": TYPE, "alg": "EdDSA", "kid": KID, **(head or {})}, separators=(",", ":")).encode()
    if not isinstance(changed, bytes):
        said = {**msgspec.to_builtins(claims_of(GRANT, SPEC, "id-1", NOW)), **(changed or {})}
        changed = json.dumps({name: value for name, value in said.items() if value is not None}).encode()
    message = b64(head) + b"." + b64(changed)
    return message + b"." + b64(key.sign(message))


def test_a_token_says_what_was_granted() -> None:
    found = World().login(good())
    assert found is not None and found.login is not None and found.login.source is not None
    assert (found.id, found.tenant, found.kind, found.user, found.groups, found.session) == (
        "alice",
        "acme",
        "gateway_token",
        "alice",
        ("engineers",),
        "s1",
    )
    assert (found.reach, found.scopes, found.agent, found.login.actors) == (("infer:chat:model/m1",), ("openid",), "bot", ("bot", "older"))
    assert (found.login.acr, found.login.amr, found.login.auth_time, found.login.strength) == ("high", ("pwd", "mfa"), NOW - 60, "mfa")
    assert (found.login.source.issuer, found.login.source.token_id) == ("https://idp.example", "src")
    assert found.expires == NOW + 600 and found.login.may_act == "bot"
    assert [source.token_id for source in sources_of(found)] == ["id-1", "src"]
    assert found.login.may_act_issuer == "https://idp.example"
    assert [(one.id, one.user, one.token_id, one.issued) for one in acting_of(found)] == [("bot", "robot", "bots", NOW - 30)]


def test_all_tokens_begin_alike_and_are_one_principal() -> None:
    world, token = World(), good()
    assert token.encode().startswith(PREFIX)
    assert world.login(token) is world.login(token)


def test_its_life_ends_with_its_source() -> None:
    assert claims_of(msgspec.structs.replace(GRANT, latest=NOW + 5.9), SPEC, "x", NOW).exp == NOW + 5
    with pytest.raises(ValueError, match="expired"):
        claims_of(msgspec.structs.replace(GRANT, latest=NOW + 0.5), SPEC, "x", NOW)


PUBLIC_PEM = KEY.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def symmetric() -> bytes:
    """HS256 with the public key as the secret (CVE-2015-9256 and its kin)."""
    head = json.dumps({"typ": TYPE, "alg": "HS256", "kid": KID}, separators=(",", ":")).encode()
    message = b64(head) + b"." + good().split(".")[1].encode()
    return message + b"." + b64(hmac.digest(PUBLIC_PEM, message, hashlib.sha256))


class Curve:
    """Signs with a key of another curve."""

    def sign(self, data: bytes) -> bytes:
        return ec.generate_private_key(ec.SECP256R1()).sign(data, ec.ECDSA(hashes.SHA256()))


def act(depth: int) -> dict[str, Any]:
    return {"sub": f"a{depth}", **({"act": act(depth - 1)} if depth else {})}


OTHER_X = text_of(OTHER.public_key().public_bytes_raw())
TWICE = json.dumps(msgspec.to_builtins(claims_of(GRANT, SPEC, "i", NOW))).replace("{", '{"sub":"root",', 1).encode()
ATTACKS: dict[str, bytes] = {
    "alg none": forged({"alg": "none"}),
    "alg none without a signature": forged({"alg": "none"}).rpartition(b".")[0] + b".",
    "HS256 with the public key": symmetric(),
    "another algorithm by name": forged({"alg": "ES256"}),
    "another curve": forged(key=Curve()),
    "alg Ed25519, which is not what it signs with": forged({"alg": "Ed25519"}),
    "somebody else's key": good(key=OTHER).encode(),
    "kid of a file": forged({"kid": "../../dev/null"}),
    "kid of an address": forged({"kid": "https://evil.example/jwks"}),
    "kid of SQL": forged({"kid": "x' UNION SELECT 'k"}),
    "kid in another case": forged({"kid": KID.swapcase()}),
    "kid of 10,000 characters": forged({"kid": "k" * 10_000}),
    "kid empty": forged({"kid": ""}),
    "kid a list": forged({"kid": [KID]}),
    "no kid": forged(json.dumps({"typ": TYPE, "alg": "EdDSA"}).encode()),
    "its own key in the header": forged({"jwk": {"kty": "OKP", "crv": "Ed25519", "x": OTHER_X}}, key=OTHER),
    "jku": forged({"jku": "https://evil.example/jwks"}, key=OTHER),
    "crit": forged({"crit": ["x"], "x": 1}),
    "typ of an access token": forged({"typ": "at+jwt"}),
    "typ of nothing": forged({"typ": "JWT"}),
    "duplicate header": forged(f'{{"typ":"{TYPE}","alg":"EdDSA","kid":"{KID}","kid":"{KID}"}}'.encode()),
    "duplicate claim": forged(None, TWICE),
    "another issuer": forged(None, {"iss": "https://other.example"}),
    "issuer with a slash": forged(None, {"iss": "https://gw.example/"}),
    "another audience": forged(None, {"aud": "https://other.example"}),
    "several audiences": forged(None, {"aud": ["https://gw.example", "https://other.example"]}),
    "no audience": forged(None, {"aud": None}),
    "no end": forged(None, {"exp": None}),
    "end as text": forged(None, {"exp": "never"}),
    "end as a fraction": forged(None, {"exp": NOW + 0.5}),
    "end at infinity": forged(None, json.dumps({"exp": float("inf")}).encode()),
    "from the far future": forged(None, {"iat": int(NOW + LEEWAY + 60)}),
    "no subject": forged(None, {"sub": ""}),
    "no tenant": forged(None, {"gh_tenant": ""}),
    "no id": forged(None, {"jti": ""}),
    "groups as text": forged(None, {"gh_groups": "admins"}),
    "claims that are a list": forged(None, b"[]"),
    "claims that are no JSON": forged(None, b"{"),
    "claims nested deeply": forged(None, b'{"a":' * 3000 + b"1" + b"}" * 3000),
    "a loop of actors": forged(None, {"act": act(MAX_ACTORS)}),
    "an actor without a name": forged(None, {"act": {"act": {"sub": "x"}}}),
    "an actor that is a text": forged(None, {"act": "bot"}),
    "too many sources": forged(None, {"gh_sources": [["k", "i", "t", 1.0]] * (MAX_SOURCES + 1)}),
    "truncated": good().encode()[:-4],
    "two parts": good().encode().rpartition(b".")[0],
    "padding": good().encode() + b"==",
    "not base64": good().encode()[:-3] + b"*!*",
    "another spelling of the same bytes": good().encode()[:-1] + bytes([good().encode()[-1] + 1]),
    "huge": PREFIX + b"A" * 20_000,
    "only how all begin": PREFIX,
    "of a gateway with the same name and other keys": good(key=OTHER, kid=name_of(OTHER_X)).encode(),
}  # fmt: skip


@pytest.mark.parametrize("name", ATTACKS)
def test_what_is_no_token_of_ours_does_not_count(name: str) -> None:
    world = World()
    assert world.refused(ATTACKS[name]) in ("invalid_credentials", "nobody's")
    assert not world.made._known, "nothing is remembered"


def test_tokens_of_issuers_are_left_to_others_and_ours_are_nothing_to_them() -> None:
    world = World()
    assert world.login(issuing.token()) is None
    assert world.login(b"gh_" + b"x" * 39) is None
    # An issuer that is configured with our name and our key still does not take our tokens for its own.
    spec = OidcSpec(name="confused", issuer=SPEC.issuer, audiences=(SPEC.issuer,), algorithms=("EdDSA",))
    oidc = OidcAuthenticator(spec, world.clock)
    oidc._issuer.keys._take({KID: [{"kty": "OKP", "crv": "Ed25519", "x": X, "kid": KID}]})
    with pytest.raises(AuthenticationError):
        oidc.authenticate({b"authorization": b"Bearer " + forged(None, {"scope": "x", "tenant": "acme"})}, PEER)


def test_an_expired_token_is_called_so_without_leeway() -> None:
    world, token = World(), good()
    assert world.login(token) is not None
    world.clock.now = NOW + 599.9
    assert world.login(token) is not None
    world.clock.now = NOW + 600
    assert world.refused(token) == "expired_token" and not world.made._known
    assert world.refused(token) == "expired_token"


def test_a_clock_that_is_a_little_ahead_makes_no_token_fail() -> None:
    world = World()
    world.clock.now = NOW - LEEWAY + 1
    assert world.login(good()) is not None


def test_a_revoked_token_does_not_count_though_it_is_remembered() -> None:
    world, token = World(), good()
    assert world.login(token) is not None
    world.revocations.replace([("token", SPEC.issuer, "id-1", NOW, NOW + 900)])
    assert world.refused(token) == "invalid_credentials"
    world.revocations.replace([])
    assert world.login(token) is not None


@pytest.mark.parametrize(
    "row",
    [
        ("token", "https://idp.example", "src", NOW, NOW + 900),
        ("subject", "https://idp.example", "alice", NOW - 60, NOW + 900),
        ("token", "https://idp.example", "bots", NOW, NOW + 900),
        ("subject", "https://gw.example", "alice", NOW, NOW + 900),
        ("issuer", "https://idp.example", "", NOW, NOW + 900),
        ("issuer", "https://gw.example", "", NOW, NOW + 900),
        ("all", "", "", NOW - 60, NOW + 900),
    ],
)
def test_what_is_revoked_takes_along_what_was_issued_for_it(row: tuple[str, str, str, float, float]) -> None:
    world = World()
    world.revocations.replace([row])
    assert world.refused(good()) == "invalid_credentials"


def test_a_key_that_is_withdrawn_takes_along_what_is_remembered() -> None:
    world, token = World(), good()
    assert world.login(token) is not None
    world.keys.replace({"another": text_of(OTHER.public_key().public_bytes_raw())})
    assert world.refused(token) == "invalid_credentials"


def test_a_new_key_leaves_what_is_remembered() -> None:
    world, token = World(), good()
    before = world.login(token)
    world.keys.replace({KID: X, "another": text_of(OTHER.public_key().public_bytes_raw())})
    assert world.login(token) is before


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.identity.gateway_tokens.REMEMBERED", 4)
    world = World()
    for number in range(10):
        world.login(encoded(claims_of(GRANT, SPEC, f"id-{number}", NOW), KID, KEY))
    assert len(world.made._known) <= 4


def test_a_token_stays_bound_to_the_certificate_of_its_source() -> None:
    world, thumbprint = World(), "ab" * 32
    token = good(msgspec.structs.replace(GRANT, certificate=thumbprint)).encode()
    mine = Peer("192.0.2.1")
    mine.thumbprint = thumbprint
    headers = {b"authorization": b"Bearer " + token}
    assert isinstance(world.made.authenticate(headers, mine), Principal)
    with pytest.raises(AuthenticationError):
        world.made.authenticate(headers, PEER)
