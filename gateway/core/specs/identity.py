"""Settings of who may log in and what they may do: `identity`, `roles`, `bindings` (gateway.core.specs has all others)."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import Meta

from gateway.core.secret import Secret
from gateway.core.specs.base import ClientTlsSpec, Name, Seconds, Spec, Timeout
from gateway.core.specs.mtls import MtlsSpec

MIN_KEY_LENGTH: Final = 32
"""Characters of a key of the configuration."""


class StaticKeySpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An API key that lives in the configuration: the key itself (32 characters or more) or its SHA-256 in hex.

    user, groups: of whoever uses it, such as a service, for roles, limits and conditions.
    """

    id: Name
    tenant: Name
    models: tuple[str, ...]
    key: Secret | None = None
    key_sha256: Annotated[str, Meta(pattern=r"^[0-9a-fA-F]{64}$")] | None = None
    priority: Literal["interactive", "standard", "batch"] = "standard"
    roles: tuple[str, ...] = ()
    user: str = ""
    groups: tuple[str, ...] = ()


class ApiKeysSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """API keys of the configuration; all others live in the store. rely_on_store: start without a key in the configuration."""

    static: tuple[StaticKeySpec, ...] = ()
    rely_on_store: bool = False


Binding = Literal["optional", "dpop", "certificate", "either"]
"""Whether tokens must be bound to something that their sender has: a key (RFC 9449), a client certificate (RFC 8705). One that is bound
always needs it."""
Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519"]


class DpopSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Tokens that are bound to a key of their sender (RFC 9449). urls: those that clients call the listeners by. algorithms: of proofs.

    max_age: how long a proof counts. leeway: how far a client's clock may be ahead. nonce: whether a proof must hold a number that the
    gateway has given out. on_failure: with `redis`, whether proofs count while it cannot be asked who has used them.
    """

    urls: Annotated[tuple[str, ...], Meta(min_length=1, max_length=16)]
    algorithms: Annotated[tuple[Algorithm, ...], Meta(min_length=1)] = ("ES256", "EdDSA", "Ed25519")
    max_age: Timeout = 60.0
    leeway: Seconds = 10.0
    nonce: Literal["off", "required"] = "off"
    on_failure: Literal["closed", "local"] = "closed"


class ClaimSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where something is read from a token: `value`, a constant; or `path` in the claims, with a prefix put before what is found."""

    value: str | None = None
    path: str | None = None
    prefix: str = ""


class ClaimsSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What of a token's claims is what of the caller. Texts are paths (`act.sub`), or the whole name of a claim."""

    subject: str | ClaimSpec = "sub"
    tenant: str | ClaimSpec = "tenant"
    user: str | ClaimSpec | None = None
    groups: str | ClaimSpec | None = "groups"
    roles: str | ClaimSpec | None = None
    scopes: str | ClaimSpec | None = "scope"
    agent: str | ClaimSpec | None = "act.sub"
    session: str | ClaimSpec | None = "sid"


class IntrospectionSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where an issuer says what an opaque token is worth (RFC 7662).

    cache: how long it is believed. check_audience: the answer must name one of the audiences; else one that names none is believed too.
    """

    url: Annotated[str, Meta(min_length=1)]
    client_id: Annotated[str, Meta(min_length=1)]
    client_secret: Secret
    cache: Seconds = 30.0
    check_audience: bool = True


class LoginSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How people log in at an issuer with `gatehouse login`. client_id: of a public client there. resource: which tokens are asked for (RFC
    8707), where the issuer wants it named."""

    client_id: Annotated[str, Meta(min_length=1)]
    scopes: tuple[str, ...] = ("openid", "offline_access")
    resource: str | None = None


class OidcSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One issuer of access tokens (OpenID Connect Discovery 1.0, RFC 9068). jwks_url: instead of discovery. leeway: for the two clocks.

    max_lifetime: tokens that are valid for longer are refused. require: claims and the values they must have. binding: to what its tokens
    must be bound. tls: towards the issuer.
    """

    name: Name
    issuer: Annotated[str, Meta(min_length=1)]
    audiences: Annotated[tuple[str, ...], Meta(min_length=1)]
    algorithms: Annotated[tuple[Algorithm, ...], Meta(min_length=1)] = ("RS256", "ES256", "EdDSA", "Ed25519")
    binding: Binding = "optional"
    claims: ClaimsSpec = ClaimsSpec()
    require: dict[str, Any] = {}
    jwks_url: str | None = None
    introspection: IntrospectionSpec | None = None
    login: LoginSpec | None = None
    leeway: Seconds = 30.0
    max_lifetime: Timeout = 86400.0
    tls: ClientTlsSpec | None = None


class LdapBindSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The account that searches."""

    dn: Annotated[str, Meta(min_length=1)]
    password: Secret


class LdapUsersSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a login name becomes an entry: by a search (`base` and `filter`), or directly (`dn`). `{username}` stands for the name, escaped.

    name: the attribute with the name that the user then has.
    """

    base: str | None = None
    filter: str = "(uid={username})"
    dn: str | None = None
    name: Name = "uid"


class LdapGroupsSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The search for a user's groups, which are named by their `cn`. `{dn}` stands for the user's, and (nested) for each group's that is
    found."""

    base: str
    filter: str = "(member={dn})"
    nested: bool = False


class LdapTenantSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A constant, or an attribute of the user's entry."""

    value: Name | None = None
    attribute: Name | None = None


class LdapTlsSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """ca: a file with the authorities that are trusted, instead of the system's."""

    ca: str


class LdapSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One directory (RFC 4511). servers: asked in this order, the one that answered last first. timeout: for a whole login.

    cache: how long a login that succeeded is believed.
    """

    name: Name
    servers: Annotated[tuple[str, ...], Meta(min_length=1)]
    tenant: LdapTenantSpec
    users: LdapUsersSpec
    starttls: bool = False
    bind: LdapBindSpec | None = None
    groups: LdapGroupsSpec | None = None
    tls: LdapTlsSpec | None = None
    cache: Seconds = 120.0
    timeout: Timeout = 5.0


class LocalUserSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Somebody who logs in by name and password. password_hash: as `gatehouse users hash-password` prints it."""

    name: Name
    tenant: Name
    password_hash: Secret
    groups: tuple[Annotated[str, Meta(min_length=1, max_length=256)], ...] = ()
    roles: tuple[str, ...] = ()


class LocalUsersSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """People whose passwords the gateway checks itself. cache: how long a login that succeeded is believed."""

    users: Annotated[tuple[LocalUserSpec, ...], Meta(min_length=1, max_length=10_000)]
    cache: Seconds = 120.0


MAX_TOKEN_SECONDS: Final = 86400.0
"""The longest life of a gateway token."""


class GatewayTokensSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Tokens that the gateway itself issues (`POST /auth/token`). issuer: its address; "" issues none. audience: for whom they are, the
    issuer if it says nothing else. ttl: how long one is valid at most. rotate: the age at which the signing key is replaced. binding: to
    what they must be bound.
    """

    issuer: str = ""
    audience: str | None = None
    binding: Binding = "optional"
    ttl: Timeout = 600.0
    rotate: Timeout = 30 * 86400.0

    @property
    def enabled(self) -> bool:
        return bool(self.issuer)


class StepUpSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Administrators' actions that need a fresh or a strong login (RFC 9470). permissions: patterns such as `keys:*`, `*:delete`.

    max_age: seconds since the person proved who they are. acr, amr: one of these values. exempt: credentials that need no such login,
    `key/ID`.
    """

    permissions: Annotated[tuple[str, ...], Meta(min_length=1)]
    max_age: Timeout | None = None
    acr: tuple[str, ...] = ()
    amr: tuple[str, ...] = ()
    exempt: tuple[str, ...] = ()


class UsersSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Users in the store. create: the first login makes a record. max: while there are fewer users than this."""

    create: bool = True
    max: Annotated[int, Meta(ge=0, le=10_000_000)] = 100_000


class OpenWebUiSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Users whom Open WebUI names in headers. keys: ids of the API keys whose requests may, from trusted peers. user: which header names
    the user."""

    keys: Annotated[tuple[str, ...], Meta(min_length=1, max_length=256)]
    user: Literal["email", "id"] = "email"


class IdentitySpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Who may log in and how. plugins: settings of third-party authenticators, by name."""

    api_keys: ApiKeysSpec = ApiKeysSpec()
    oidc: tuple[OidcSpec, ...] = ()
    ldap: tuple[LdapSpec, ...] = ()
    local_users: LocalUsersSpec | None = None
    mtls: MtlsSpec | None = None
    gateway_tokens: GatewayTokensSpec = GatewayTokensSpec()
    dpop: DpopSpec | None = None
    step_up: tuple[StepUpSpec, ...] = ()
    users: UsersSpec = UsersSpec()
    open_webui: OpenWebUiSpec | None = None
    plugins: dict[str, Any] = {}


class RoleSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What its holders may do: permissions such as `infer:chat:model/demo-*` and `admin:keys:read`.

    confined: on the admin listener, what belongs to a tenant is reached in the holder's own tenant only.
    """

    permissions: Annotated[tuple[Annotated[str, Meta(max_length=512)], ...], Meta(min_length=1, max_length=1024)]
    description: Annotated[str, Meta(max_length=4096)] = ""
    confined: bool = True


class BindingSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Who has a role, or (effect `deny`) from whom its permissions are taken; where the condition `when` (CEL) is true.

    role: one of `roles`, or a built-in one of the admin listener. subjects: `key/ID`, `user/NAME`, `group/NAME`, `tenant/NAME`,
    `agent/NAME`, `principal/ID`; names are patterns with `*`. tenant: of the callers that it applies to. name: as the audit log names it.
    """

    role: Name
    subjects: Annotated[tuple[Annotated[str, Meta(max_length=512)], ...], Meta(min_length=1, max_length=1024)]
    effect: Literal["allow", "deny"] = "allow"
    when: Annotated[str, Meta(max_length=4096)] | None = None
    tenant: Annotated[str, Meta(min_length=1, max_length=128)] = "*"
    name: Name | None = None
