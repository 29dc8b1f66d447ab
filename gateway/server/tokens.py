"""`POST /auth/token`: a login by name and password, or a token of another issuer, for a gateway token (RFC 6749, RFC 8693).

Without a body, the credential in the headers is the login. A form is a token exchange, or `grant_type=client_credentials` for a login that
asks for a part of the scope. The new token never allows more than the one that was sent: its scope is at most the same, it ends no later,
and tenant, groups, roles and actors are the same. It is bound to whatever the other one is bound to, and a DPoP proof (RFC 9449, 5) binds
it to the key of the proof.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from time import time
from typing import Any, Final
from urllib.parse import parse_qsl

import msgspec

from gateway.core.errors import GatehouseError, NotFound, RequestError
from gateway.core.proofs import PROVED
from gateway.core.specs import GatewayTokensSpec
from gateway.core.tokens import MAX_ACTORS, MAX_SOURCES, Grant, Mint, TokenDesk, acting_of, as_actor, recipient_of, sources_of
from gateway.core.types import Headers, Login, OutcomeRecord, Peer, Principal
from gateway.pipeline.plane import DataPlane
from gateway.pipeline.statuses import outcome_of
from gateway.server.asgi import Message, Receive
from gateway.wire.table import OPERATIONS
from policies.scopes import narrowed

PATH: Final = b"/auth/token"
MAX_BODY: Final = 64 * 1024
FORM: Final = "application/x-www-form-urlencoded"
EXCHANGE: Final = "urn:ietf:params:oauth:grant-type:token-exchange"
ACCESS_TOKEN: Final = "urn:ietf:params:oauth:token-type:access_token"
JWT: Final = "urn:ietf:params:oauth:token-type:jwt"
NO_STORE: Final = ((b"cache-control", b"no-store"), (b"pragma", b"no-cache"))
KINDS: Final = ("oidc", "ldap", "local_user", "gateway_token")
"""Logins that a token can be had for: those whose rights all come from their tenant, user, groups and roles, which the token names."""
_CREDENTIALS: Final = (b"authorization", b"x-api-key", b"api-key")
Identify = Callable[[Message, Headers], Awaitable[Principal]]
"""(scope, headers) -> the caller. Raises AuthenticationError and the like; a failure is counted and recorded as everywhere."""


Prove = Callable[[Message], Awaitable[bytes]]
"""scope -> the thumbprint of the key that the sender has proved to have; b"" without a proof. Raises AuthenticationError."""


class TokenEndpoint:
    """identify: who the credentials in some headers are."""

    def __init__(self, plane: DataPlane, desk: TokenDesk, identify: Identify, prove: Prove) -> None:
        self._plane, self._desk, self._identify, self._prove = plane, desk, identify, prove

    async def answer(self, scope: Message, receive: Receive) -> tuple[int, bytes, list[tuple[bytes, bytes]]]:
        """Raises GatehouseError."""
        settings = self._plane.current().spec.identity.gateway_tokens
        if not settings.enabled:
            raise NotFound("This gateway issues no tokens.")
        form = await _form(scope, receive)
        if form is not None and form.get("grant_type") == EXCHANGE:
            self._alone(scope)
            key = await self._prove(scope)
            method, principal, actor = "exchange", *await self._exchanged(scope, form, key)
        else:
            if form is not None and form.get("grant_type") != "client_credentials":
                raise _refused("unsupported_grant_type", f"grant_type must be {EXCHANGE} or client_credentials.", "grant_type")
            headers: Headers = scope["state"]["headers"]
            method, principal, actor = "login", await self._identify(scope, headers), None
            key = b"" if PROVED in headers else await self._prove(scope)  # a bound token's proof has been used
        try:
            grant = granted(principal, actor, form or {}, settings, key.decode())
            minted = await self._desk.issue(
                Mint(
                    grant=grant,
                    method=method,
                    peer=scope["state"]["peer"].address,
                    request_id=scope["state"]["request_id"].decode(),
                )
            )
        except GatehouseError as error:
            self._denied(scope, principal, error)
            raise
        body: dict[str, Any] = {
            "access_token": minted.token.reveal(),
            "issued_token_type": ACCESS_TOKEN,
            "token_type": "DPoP" if grant.key else "Bearer",
            "expires_in": int(minted.lifetime),
        }
        if grant.scope is not None:
            body["scope"] = " ".join(grant.scope)
        return 200, msgspec.json.encode(body), list(NO_STORE)

    def _alone(self, scope: Message) -> None:
        if any(name in scope["state"]["headers"] for name in _CREDENTIALS):
            raise RequestError(
                "The subject_token is the credential of an exchange; send no other one.",
                code="ambiguous_credentials",
                param="subject_token",
            )

    async def _exchanged(self, scope: Message, form: Mapping[str, str], key: bytes) -> tuple[Principal, Principal | None]:
        """The subject and the actor of an exchange. key: that the sender has proved to have."""
        subject = await self._token(scope, form, "subject_token", key, needed=True)
        assert subject is not None
        return subject, await self._token(scope, form, "actor_token", key, needed=False)

    async def _token(self, scope: Message, form: Mapping[str, str], name: str, key: bytes, *, needed: bool) -> Principal | None:
        token, kind = form.get(name, ""), form.get(f"{name}_type", "")
        if not token and not kind and not needed:
            return None
        if not token or not kind:
            raise _refused("invalid_request", f"{name} and {name}_type belong together.", name if not token else f"{name}_type")
        if kind not in (ACCESS_TOKEN, JWT):
            raise _refused("invalid_request", f"{name}_type must be {ACCESS_TOKEN} or {JWT}.", f"{name}_type")
        if not token.isascii() or not token.isprintable() or " " in token:
            raise _refused("invalid_request", f"{name} has characters that a token cannot have.", name)
        headers = {b"authorization": b"Bearer " + token.encode()}
        return await self._identify(scope, {**headers, PROVED: key} if key else headers)

    def _denied(self, scope: Message, principal: Principal, error: GatehouseError) -> None:
        """Records that a known caller asked for what there is not for them."""
        peer: Peer = scope["state"]["peer"]
        self._plane.current().audit.outcome(
            OutcomeRecord(
                time(),
                scope["state"]["request_id"].decode(),
                outcome_of(error),
                error.status,
                error.code,
                tenant=principal.tenant,
                principal=principal.id,
                peer=peer.address,
                operation="token",
                user=principal.user,
                agent=principal.agent,
                session=principal.session,
            )
        )


def granted(principal: Principal, actor: Principal | None, form: Mapping[str, str], settings: GatewayTokensSpec, key: str = "") -> Grant:
    """What the token may say. key: the thumbprint of the key that the sender has proved to have. Raises RequestError with the codes of
    RFC 6749, 5.2 and RFC 8693, 2.2.2."""
    login = principal.login
    if login is None or principal.kind not in KINDS:
        raise _refused("invalid_request", "Tokens are issued for a person's login or token; use an API key directly.", None)
    recipient = recipient_of(settings)
    for name in ("audience", "resource"):
        if form.get(name, recipient) not in (recipient, settings.issuer):
            raise _refused("invalid_target", f"Tokens are for {recipient} alone.", name)
    if form.get("requested_token_type", ACCESS_TOKEN) not in (ACCESS_TOKEN, JWT):
        raise _refused("invalid_request", f"requested_token_type must be {ACCESS_TOKEN}.", "requested_token_type")
    sources = sources_of(principal)
    if len(sources) > MAX_SOURCES:
        raise _refused("invalid_request", f"A token can be exchanged {MAX_SOURCES - 1} times in a row.", "subject_token")
    certificate, key = _bound(login, actor, settings, key)
    ends = [one.expires for one in (principal, actor) if one is not None and one.expires is not None]
    return Grant(
        subject=principal.id,
        tenant=principal.tenant,
        user=principal.user,
        groups=login.groups,
        roles=login.roles,
        scopes=principal.scopes,
        scope=narrowed(principal.reach, form.get("scope", ""), OPERATIONS),
        agent=principal.agent if actor is None else actor.id,
        actors=login.actors if actor is None else _acting(principal, login, actor),
        session=principal.session,
        strength=login.strength,
        auth_time=login.auth_time,
        acr=login.acr,
        amr=login.amr,
        may_act=login.may_act,
        may_act_issuer=login.may_act_issuer,
        acting=(() if actor is None else as_actor(actor)) + acting_of(principal),
        certificate=certificate,
        key=key,
        sources=sources,
        latest=min(ends, default=None),
    )


def _bound(login: Login, actor: Principal | None, settings: GatewayTokensSpec, key: str) -> tuple[str, str]:
    """The certificate or the key that the token is bound to: that of what was sent, else of the proof."""
    logins = [login] if actor is None or actor.login is None else [login, actor.login]
    certificate = next((one.certificate for one in logins if one.certificate), "")
    key = key or next((one.key for one in logins if one.key), "")
    if certificate and key:
        raise _refused("invalid_request", "The token would be bound to a certificate and to a key; send no DPoP proof.", None)
    wanted = settings.binding
    if (wanted == "dpop" and not key) or (wanted == "certificate" and not certificate) or (wanted == "either" and not (key or certificate)):
        what = {"dpop": "a DPoP proof", "certificate": "a token that is bound to a client certificate"}.get(wanted, "a DPoP proof")
        raise _refused("invalid_request", f"This gateway's tokens are bound to their sender: send {what}.", None)
    return certificate, key


def _acting(principal: Principal, login: Login, actor: Principal) -> tuple[str, ...]:
    """All actors, with the new one first."""
    if actor.kind not in KINDS or actor.agent:
        raise _refused("invalid_request", "The actor_token must be the actor's own.", "actor_token")
    if actor.tenant != principal.tenant:
        raise _refused("invalid_request", "The actor belongs to another tenant.", "actor_token")
    named, issuer = login.may_act, login.may_act_issuer
    if named and (named != actor.id or (issuer and all(one.issuer != issuer for one in sources_of(actor)))):
        raise _refused("invalid_request", "The subject_token names somebody else who may act.", "actor_token")
    if actor.id in (principal.id, principal.user, *login.actors):
        raise _refused("invalid_request", "The actor already acts in this token, or is its subject.", "actor_token")
    if len(login.actors) >= MAX_ACTORS:
        raise _refused("invalid_request", f"At most {MAX_ACTORS} can act for each other.", "actor_token")
    return actor.id, *login.actors


async def _form(scope: Message, receive: Receive) -> dict[str, str] | None:
    """The fields of the body; None without one. Raises RequestError."""
    headers: Headers = scope["state"]["headers"]
    if b"transfer-encoding" in headers:
        raise RequestError("Send the form with its Content-Length.", code="invalid_header", status=411)
    length = int(headers.get(b"content-length", b"0"))
    if length == 0:
        return None
    if length > MAX_BODY:
        raise RequestError(f"The body is larger than {MAX_BODY} bytes.", code="request_too_large", status=413)
    if headers.get(b"content-type", b"").partition(b";")[0].strip().lower() != FORM.encode():
        raise RequestError(f"Send the body as {FORM}.", code="unsupported_media_type", status=415)
    message = await receive()
    try:
        pairs = parse_qsl(
            message.get("body", b"").decode("ascii"), keep_blank_values=False, strict_parsing=True, max_num_fields=64, errors="strict"
        )
    except ValueError:
        raise _refused("invalid_request", "The body is not a form.", None) from None
    form = dict(pairs)
    if len(form) != len(pairs):
        raise _refused("invalid_request", "A field appears twice.", None)
    return form


def error_body(error: GatehouseError) -> bytes:
    """The error as everywhere, and its text once more where OAuth's clients look for it (RFC 6749, 5.2)."""
    plain = {"message": error.message, "type": error.type, "param": error.param, "code": error.code}
    return msgspec.json.encode({"error": plain, "error_description": error.message})


def _refused(code: str, message: str, param: str | None) -> RequestError:
    return RequestError(message, code=code, param=param)
