"""What every Authenticator keeps to: gateway.core.ports.Authenticator and the contract's errors."""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519

from gateway.app.configuration.plugins import OURS
from gateway.core.clock import SystemClock
from gateway.core.errors import AuthenticationError, GatehouseError, RequestError
from gateway.core.plugins import AuthenticatorContext
from gateway.core.ports import Authenticator
from gateway.core.secret import Secret
from gateway.core.specs import ApiKeysSpec, ClaimSpec, ClaimsSpec, GatewayTokensSpec, OidcSpec, Spec, StaticKeySpec
from gateway.core.specs.identity import IntrospectionSpec, LdapSpec, LdapTenantSpec, LdapUsersSpec, LocalUserSpec, LocalUsersSpec
from gateway.core.specs.mtls import CertificateMatchSpec, MtlsPrincipalSpec, MtlsSpec
from gateway.core.tokens import Grant
from gateway.core.types import Headers, Peer, Principal
from gateway.identity.chain import chain
from gateway.identity.directory import Directory, Found, Refused
from gateway.identity.gateway_tokens import claims_of, encoded
from gateway.identity.introspection import IntrospectionAuthenticator
from gateway.identity.jwks import keys_of
from gateway.identity.ldap import LdapAuthenticator
from gateway.identity.oidc import OidcAuthenticator
from gateway.identity.token_keys import TokenKeys, name_of, text_of
from tests.pki import DAY, SERVER, Authority, now
from tests.unit.gateway.identity import issuing

KEY = "k" * 40
PEER = Peer("192.0.2.1")


@dataclass(frozen=True)
class Case:
    """An authenticator by what makes it. good: headers of `ci` of the tenant `t`, from `peer`. bad: credentials of its kind that are not;
    bad_peers: connections that are not."""

    make: Callable[[], Authenticator]
    good: Headers
    bad: tuple[Headers, ...]
    peer: Peer = PEER
    bad_peers: tuple[Peer, ...] = ()


def built(name: str, settings: Spec) -> Authenticator:
    return OURS.authenticator(f"identity.{name}", OURS.authenticators[name], settings, AuthenticatorContext(name=name))


def api_keys() -> Authenticator:
    return built("api_keys", ApiKeysSpec(static=(StaticKeySpec(id="ci", tenant="t", models=("*",), key=Secret(KEY)),)))


def oidc() -> Authenticator:
    """Over one issuer whose keys were fetched."""
    spec = OidcSpec(name="corp", issuer=issuing.ISSUER, audiences=("gatehouse",), claims=ClaimsSpec(tenant=ClaimSpec(value="t")))
    made = built("oidc", spec)
    assert isinstance(made, OidcAuthenticator)
    made._issuer.keys._take(keys_of(issuing.jwks(issuing.jwk(issuing.RSA, "RS256"))))
    return made


class OneUser:
    """A directory with one user. tests/integration/test_ldap.py asks a real one."""

    def login(self, username: str, password: str) -> Found:
        if (username, password) != ("ci", "secret"):
            raise Refused("no")
        return Found("uid=ci", {"uid": "ci"}, (), 0.0)

    def close(self) -> None:
        return None


def ldap() -> Authenticator:
    spec = LdapSpec(
        name="corp", servers=("ldaps://dc.example",), tenant=LdapTenantSpec(value="t"), users=LdapUsersSpec(dn="uid={username}"), cache=60.0
    )
    return LdapAuthenticator(spec, cast(Directory, OneUser()), SystemClock())


HASH = "$argon2id$v=19$m=64,t=1,p=1$c2FsdHNhbHRzYWx0c2FsdA$+v0rf6ETYAIpqJIjJyARZ3W3zqJlkf+0TRXzsLHmR6o"
"""Of "secret"; cheaper than any that the configuration accepts."""


def local_users() -> Authenticator:
    """A chain of one, which refuses a name that no user has."""
    users = (LocalUserSpec(name="ci", tenant="t", password_hash=Secret(HASH)),)
    return chain([built("local_users", LocalUsersSpec(users=users))])


def basic(text: str) -> Headers:
    return {b"authorization": b"Basic " + b64encode(text.encode())}


def mtls() -> Authenticator:
    entry = MtlsPrincipalSpec(match=CertificateMatchSpec(common_name="ci"), tenant="t")
    return built("mtls", MtlsSpec(principals=(entry,)))


def certificates() -> tuple[Peer, tuple[Peer, ...]]:
    """Connections with a good certificate, and with bad ones."""
    with TemporaryDirectory() as folder:
        authority = Authority(Path(folder))
        bad = (authority.issue("ci", usage=[SERVER]), authority.issue("ci", expires=now() - DAY / 2), authority.issue("ci", ca=True))
        good = authority.issue("ci")
    return Peer("192.0.2.1", certificate=good.der), (*(Peer("192.0.2.1", certificate=one.der) for one in bad), Peer("x", certificate=b"x"))


class Nobody:
    """Knows no credential of any kind."""

    def authenticate(self, headers: Headers, peer: Peer) -> None:
        return None


KEYS: tuple[Headers, tuple[Headers, ...]] = (
    {b"authorization": b"Bearer " + KEY.encode(), b"host": b"x"},
    tuple({b"authorization": b"Bearer " + value} for value in (b"wrong", b"", KEY.encode()[:-1], b"\xff", b"gh_" + b"x" * 39)),
)


def oidc_tokens() -> tuple[Headers, tuple[Headers, ...]]:
    age = {"sub": "ci", "iat": time.time() - 10, "exp": time.time() + 3600}
    bad = (
        issuing.token(age, key=issuing.OTHER_RSA),
        issuing.token({**age, "aud": "other"}),
        issuing.token({**age, "exp": time.time() - 3600}),
        issuing.token(age)[:-8] + b"AAAAAAAA",
    )
    return {b"authorization": b"Bearer " + issuing.token(age)}, tuple({b"authorization": b"Bearer " + value} for value in bad)


def opaque() -> Authenticator:
    """Over an issuer that knows one token."""
    asking = IntrospectionSpec(url=f"{issuing.ISSUER}/introspect", client_id="gw", client_secret=Secret("s"))
    spec = OidcSpec(
        name="corp", issuer=issuing.ISSUER, audiences=("gatehouse",), claims=ClaimsSpec(tenant=ClaimSpec(value="t")), introspection=asking
    )
    made = built("introspection", spec)
    assert isinstance(made, IntrospectionAuthenticator)

    async def question(value: bytes) -> dict[str, Any]:
        return {"active": value == b"good", "sub": "ci", "aud": "gatehouse", "exp": time.time() + 600}

    made._question = question  # type: ignore[method-assign]  # tests/e2e/test_oidc.py asks a real one
    return made


SIGNER = ed25519.Ed25519PrivateKey.generate()
PUBLIC = text_of(SIGNER.public_key().public_bytes_raw())
TOKENS_SPEC = GatewayTokensSpec(issuer="https://gw.example", ttl=3000.0)


def gateway_tokens() -> Authenticator:
    keys = TokenKeys()
    keys.replace({name_of(PUBLIC): PUBLIC})
    context = AuthenticatorContext(name="gateway_tokens", token_keys=keys)
    return OURS.authenticator("identity.gateway_tokens", OURS.authenticators["gateway_tokens"], TOKENS_SPEC, context)


def own_token(kid: str = name_of(PUBLIC), spec: GatewayTokensSpec = TOKENS_SPEC, key: Any = SIGNER, now: float | None = None) -> Headers:
    claims = claims_of(Grant(subject="ci", tenant="t"), spec, "one", time.time() if now is None else now)
    return {b"authorization": b"Bearer " + encoded(claims, kid, key).encode()}


def own_tokens() -> tuple[Headers, tuple[Headers, ...]]:
    bad = (
        own_token("../" + name_of(PUBLIC)),
        own_token(spec=GatewayTokensSpec(issuer="https://other.example")),
        own_token(spec=GatewayTokensSpec(issuer="https://gw.example", audience="https://other.example")),
        own_token(key=ed25519.Ed25519PrivateKey.generate()),
        own_token(now=time.time() - 3600),
        own_token(now=time.time() + 3600),
    )
    return own_token(), bad


IMPLEMENTATIONS: dict[str, Callable[[], Case]] = {
    "mtls": lambda: Case(mtls, {}, (), *certificates()),
    "gateway_tokens": lambda: Case(gateway_tokens, *own_tokens()),
    "oidc": lambda: Case(oidc, *oidc_tokens()),
    "ldap": lambda: Case(ldap, basic("ci:secret"), (basic("ci:wrong"), basic("eve:secret"), basic("ci:"), basic("ci"), basic(":secret"))),
    "local_users": lambda: Case(
        local_users, basic("ci:secret"), (basic("ci:wrong"), basic("eve:secret"), basic("ci:"), basic("ci"), basic(":secret"))
    ),
    "api_keys": lambda: Case(lambda: chain([api_keys()]), *KEYS),
    "introspection": lambda: Case(
        lambda: chain([opaque()]),
        {b"authorization": b"Bearer good"},
        tuple({b"authorization": b"Bearer " + value} for value in (b"bad", b"go od", b"\xff", b"x" * 20_000)),
    ),
    "a chain of one": lambda: Case(lambda: chain([api_keys()]), *KEYS),
    "a chain of several": lambda: Case(lambda: chain([Nobody(), api_keys()]), *KEYS),
}
"""To add an authenticator, add one under its name in the table. Each test makes its own tokens: a long run of all tests outlives them."""
CHAINS = [name for name in IMPLEMENTATIONS if "chain" in name]


@pytest.fixture(params=IMPLEMENTATIONS)
def case(request: pytest.FixtureRequest) -> Case:
    return IMPLEMENTATIONS[request.param]()


@pytest.fixture
def authenticator(case: Case) -> Authenticator:
    return case.make()


async def ask(authenticator: Authenticator, headers: Headers, peer: Peer = PEER) -> Principal | None:
    found = authenticator.authenticate(headers, peer)
    return await found if isinstance(found, Awaitable) else found


def test_every_type_is_held_to_this_contract() -> None:
    assert {row.name for row in OURS.authenticators} <= set(IMPLEMENTATIONS)


async def test_a_good_credential_is_one_principal_object(authenticator: Authenticator, case: Case) -> None:
    principal = await ask(authenticator, case.good, case.peer)
    assert principal is not None and principal.id == "ci" and principal.tenant == "t"
    assert await ask(authenticator, case.good, case.peer) is principal


async def test_a_bad_credential_is_rejected_and_not_shown(authenticator: Authenticator, case: Case) -> None:
    for headers, peer in (*((headers, PEER) for headers in case.bad), *(({}, peer) for peer in case.bad_peers)):
        with pytest.raises(AuthenticationError) as caught:
            await ask(authenticator, headers, peer)
        assert caught.value.status == 401 and any(name == "www-authenticate" for name, _ in caught.value.headers)
        sent = [value.rpartition(b" ")[2].decode("latin-1") for value in headers.values()]
        assert not any(value and value in str(caught.value) for value in sent)


@pytest.mark.parametrize("headers", [{}, {b"authorization": b""}, {b"authorization": b"Digest x"}, {b"cookie": b"key=" + KEY.encode()}])
async def test_no_credential_is_nobody(authenticator: Authenticator, headers: Headers) -> None:
    try:
        assert await ask(authenticator, headers) is None
    except AuthenticationError as error:
        assert error.code == "missing_credentials"


@pytest.mark.parametrize("name", CHAINS)
async def test_a_chain_always_decides(name: str) -> None:
    with pytest.raises(AuthenticationError) as caught:
        await ask(IMPLEMENTATIONS[name]().make(), {})
    assert caught.value.code == "missing_credentials"


@pytest.mark.parametrize("name", ["api_keys", *CHAINS])
async def test_two_credentials_are_ambiguous(name: str) -> None:
    authenticator = IMPLEMENTATIONS[name]().make()
    with pytest.raises(RequestError) as caught:
        await ask(authenticator, {b"authorization": b"Bearer " + KEY.encode(), b"x-api-key": b"other"})
    assert caught.value.code == "ambiguous_credentials"


async def test_only_errors_of_the_tree_come_out(authenticator: Authenticator) -> None:
    for value in (b"Bearer", b" ", b"Bearer \x00", b"Basic \xff", b"Bearer " + b"a" * 100_000, b"Bearer a.b.c", b"Bearer eyJ.a.b"):
        try:
            await ask(authenticator, {b"authorization": value})
        except GatehouseError:
            pass
