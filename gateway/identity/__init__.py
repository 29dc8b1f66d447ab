"""The ways to log in. To add one: a file here, a line in ROWS, a row in tests/contract/test_authenticator.py, a heading in
docs/identity.md."""

from __future__ import annotations

from typing import Final

from gateway.core.plugins import AuthenticatorRow
from gateway.core.specs import ApiKeysSpec, LdapSpec, OidcSpec
from gateway.identity import api_key, ldap, oidc

ROWS: Final = (
    AuthenticatorRow(name="oidc", settings=OidcSpec, build=oidc.build),
    AuthenticatorRow(name="ldap", settings=LdapSpec, build=ldap.build),
    AuthenticatorRow(name="api_keys", settings=ApiKeysSpec, build=api_key.build, last=True),
)
