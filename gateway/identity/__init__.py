"""The ways to log in. To add one: a file here, a line in ROWS, a row in tests/contract/test_authenticator.py, a heading in
docs/identity.md."""

from __future__ import annotations

from typing import Final

from gateway.core.plugins import AuthenticatorRow
from gateway.core.specs import ApiKeysSpec, GatewayTokensSpec, LdapSpec, OidcSpec
from gateway.core.specs.identity import LocalUsersSpec
from gateway.core.specs.mtls import MtlsSpec
from gateway.identity import api_key, gateway_tokens, introspection, ldap, local_users, mtls, oidc

ROWS: Final = (
    AuthenticatorRow(name="mtls", settings=MtlsSpec, build=mtls.build),  # first: it verifies certificates that tokens may be bound to
    AuthenticatorRow(name="gateway_tokens", settings=GatewayTokensSpec, build=gateway_tokens.build),
    AuthenticatorRow(name="oidc", settings=OidcSpec, build=oidc.build),
    AuthenticatorRow(name="local_users", settings=LocalUsersSpec, build=local_users.build),  # before directories, which decide
    AuthenticatorRow(name="ldap", settings=LdapSpec, build=ldap.build),
    AuthenticatorRow(name="api_keys", settings=ApiKeysSpec, build=api_key.build, last=1),
    AuthenticatorRow(name="introspection", settings=OidcSpec, build=introspection.build, last=2, within="oidc"),
)
