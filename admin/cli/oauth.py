"""Logging in at an OpenID Connect issuer: by device code (RFC 8628), or in a browser by code with PKCE (RFC 8252, RFC 7636)."""

from __future__ import annotations

import html
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import import_module
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import httpx

from admin.cli.client import connection_options, is_loopback
from admin.cli.errors import CommandError
from admin.cli.proofs import ALGORITHM, Holder, reaches
from admin.cli.tls import SYSTEM, Tls

DEVICE: Final = "urn:ietf:params:oauth:grant-type:device_code"
BROWSER_SECONDS: Final = 300.0
"""How long the browser's way back is waited for."""
SPARE_SECONDS: Final = 30.0
"""An access token that ends sooner is refreshed."""
TIMEOUT: Final = 30.0
Say = Callable[[str], None]


@dataclass(frozen=True)
class Method:
    """One issuer where people log in, as the gateway tells it. resource: for which tokens are asked (RFC 8707), or "". proofs: whether the
    gateway takes tokens that are bound to a key."""

    name: str
    issuer: str
    client_id: str
    scopes: tuple[str, ...] = ("openid", "offline_access")
    resource: str = ""
    proofs: bool = False

    def holder(self, metadata: dict[str, Any]) -> Holder | None:
        """A new key, where gateway and issuer know what to do with it (RFC 9449, 5.1)."""
        known = metadata.get("dpop_signing_alg_values_supported")
        return Holder() if self.proofs and isinstance(known, list) and ALGORITHM in known else None


@dataclass(frozen=True)
class Login:
    """What a login gave. expires: of the access token, in seconds since the epoch. holder: the key that both tokens are bound to, or ""."""

    issuer: str
    client_id: str
    token_endpoint: str
    revocation_endpoint: str = ""
    resource: str = ""
    access_token: str = ""
    refresh_token: str = ""
    expires: float = 0.0
    holder: str = ""

    def __repr__(self) -> str:
        return f"Login({self.issuer})"

    @property
    def fresh(self) -> bool:
        return self.expires - SPARE_SECONDS > time.time()


def methods(url: str, tls: Tls = SYSTEM) -> list[Method]:
    """The issuers that a gateway names for logging in. Raises CommandError when it does not answer."""
    try:
        with httpx.Client(timeout=TIMEOUT, **connection_options(url, tls)) as client:
            answer = client.get(f"{url.rstrip('/')}/.well-known/gatehouse-login")
        if answer.status_code == 404:
            return []
        found = answer.json()["issuers"]
        return [
            Method(
                str(one["name"]),
                str(one["issuer"]),
                str(one["client_id"]),
                tuple(map(str, one["scopes"])),
                str(one["resource"] or ""),
                _takes_proofs(url, one.get("dpop")),
            )
            for one in found
        ]
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError) as error:
        raise CommandError(f"no answer from {url}: {error or type(error).__name__}") from None


def _takes_proofs(url: str, dpop: Any) -> bool:
    """dpop: what the gateway says of it; None from one that takes none, or is older."""
    return isinstance(dpop, dict) and ALGORITHM in dpop["algorithms"] and reaches(url, tuple(map(str, dpop["urls"])))


def discover(issuer: str) -> dict[str, Any]:
    """The issuer's metadata (OpenID Connect Discovery 1.0). Raises CommandError."""
    if urlsplit(issuer).scheme != "https" and not is_loopback(issuer):
        raise CommandError(f"{issuer} is not https: no login over it")
    try:
        with httpx.Client(timeout=TIMEOUT, **connection_options(issuer)) as client:
            answer = client.get(f"{issuer.rstrip('/')}/.well-known/openid-configuration")
        found = answer.raise_for_status().json()
    except (httpx.HTTPError, ValueError) as error:
        raise CommandError(f"the issuer {issuer} does not say where to log in: {error or type(error).__name__}") from None
    if not isinstance(found, dict) or found.get("issuer") != issuer:
        raise CommandError(f"the metadata at {issuer} is another issuer's")
    return found


def by_device(method: Method, metadata: dict[str, Any], say: Say, sleep: Callable[[float], None] = time.sleep) -> Login:
    """The person opens an address on any machine and confirms a code. Raises CommandError."""
    endpoint = str(metadata.get("device_authorization_endpoint") or "")
    if not endpoint:
        raise CommandError(f"{method.issuer} has no device flow: use --browser")
    form = {"client_id": method.client_id, "scope": " ".join(method.scopes), **_resource(method)}
    holder = method.holder(metadata)
    try:
        with httpx.Client(timeout=TIMEOUT, **connection_options(endpoint)) as client:
            started = client.post(endpoint, data=form).raise_for_status().json()
        code, interval = str(started["device_code"]), max(1.0, float(started.get("interval", 5)))
        until = time.monotonic() + float(started["expires_in"])
        say(f"Open {started.get('verification_uri_complete') or started['verification_uri']} and confirm the code {started['user_code']}")
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        raise CommandError(f"{method.issuer} refused to begin a login: {error or type(error).__name__}") from None
    while time.monotonic() < until:
        sleep(interval)
        try:
            return _fetched(method, metadata, holder, grant_type=DEVICE, device_code=code)
        except _refused() as error:
            if error.error == "slow_down":
                interval += 5.0
            elif error.error != "authorization_pending":
                raise CommandError(_why(error)) from None
    raise CommandError("the code was not confirmed in time")


def in_browser(method: Method, metadata: dict[str, Any], say: Say, open_page: Callable[[str], object]) -> Login:
    """The person logs in in a browser on this machine, which comes back to a port of ours. Raises CommandError."""
    answers: list[dict[str, str]] = []
    holder = method.holder(metadata)
    bound = {} if holder is None else {"dpop_jkt": holder.thumbprint}  # RFC 9449, 10
    state, verifier = secrets.token_urlsafe(32), secrets.token_urlsafe(48)
    with HTTPServer(("127.0.0.1", 0), _returning(answers, state)) as server:
        back = f"http://127.0.0.1:{server.server_port}/callback"
        with _client(method, redirect_uri=back, code_challenge_method="S256") as client:
            page, _ = client.create_authorization_url(
                metadata["authorization_endpoint"], state=state, code_verifier=verifier, prompt="consent", **_resource(method), **bound
            )
        say(f"Log in at {page}")
        open_page(page)
        server.timeout = 1.0
        until = time.monotonic() + BROWSER_SECONDS
        while not answers and time.monotonic() < until:
            server.handle_request()
    if not answers:
        raise CommandError("nobody came back from the login page in time")
    answer = answers[0]
    if metadata.get("authorization_response_iss_parameter_supported") and answer.get("iss") != method.issuer:
        raise CommandError("the answer is another issuer's (RFC 9207)")
    if "code" not in answer:
        raise CommandError(f"the login was refused: {answer.get('error_description') or answer.get('error') or 'without a reason'}")
    try:
        grant = {"code": answer["code"], "code_verifier": verifier, "redirect_uri": back}
        return _fetched(method, metadata, holder, grant_type="authorization_code", **grant)
    except _refused() as error:
        raise CommandError(_why(error)) from None


def refreshed(login: Login) -> Login:
    """The login with a new access token. Raises CommandError if the login has ended."""
    if not login.refresh_token:
        raise CommandError("the login has expired: gatehouse login")
    method = Method("", login.issuer, login.client_id, resource=login.resource)
    metadata = {"token_endpoint": login.token_endpoint, "revocation_endpoint": login.revocation_endpoint}
    try:
        holder = Holder(login.holder) if login.holder else None
        found = _fetched(method, metadata, holder, grant_type="refresh_token", refresh_token=login.refresh_token)
    except _refused() as error:
        raise CommandError(f"the login has ended ({_why(error)}): gatehouse login") from None
    return found if found.refresh_token else Login(**{**vars(found), "refresh_token": login.refresh_token})


def revoke(login: Login) -> None:
    """Ends the login at the issuer (RFC 7009), as far as it can. Raises CommandError when it does not answer."""
    if not login.revocation_endpoint or not login.refresh_token:
        return
    form = {"token": login.refresh_token, "token_type_hint": "refresh_token", "client_id": login.client_id}
    try:
        with httpx.Client(timeout=TIMEOUT, **connection_options(login.revocation_endpoint)) as client:
            client.post(login.revocation_endpoint, data=form).raise_for_status()
    except httpx.HTTPError as error:
        raise CommandError(f"{login.issuer} did not take the token back: {error or type(error).__name__}") from None


def _fetched(method: Method, metadata: dict[str, Any], holder: Holder | None, **grant: str) -> Login:
    """Raises what `_refused` names for a refusal, CommandError for anything else."""
    endpoint = str(metadata["token_endpoint"])
    try:
        with _client(method, holder) as client:
            found = _asked(client, endpoint, holder, **_resource(method), **grant)
    except httpx.HTTPError as error:
        raise CommandError(f"{method.issuer} does not answer: {error or type(error).__name__}") from None
    token, kind = str(found.get("access_token") or ""), str(found.get("token_type", "bearer")).lower()
    if not token or kind != ("bearer" if holder is None else "dpop"):
        raise CommandError(f"{method.issuer} gave no access token that can be used")
    return Login(
        method.issuer,
        method.client_id,
        endpoint,
        str(metadata.get("revocation_endpoint") or ""),
        method.resource,
        token,
        str(found.get("refresh_token") or ""),
        time.time() + float(found.get("expires_in") or 300),
        "" if holder is None else holder.text,
    )


def _asked(client: Any, endpoint: str, holder: Holder | None, **grant: str) -> Any:
    """The token endpoint's answer; it is asked again when it wants a nonce in the proof (RFC 9449, 8)."""
    if holder is None:
        return client.fetch_token(endpoint, **grant)
    try:
        return client.fetch_token(endpoint, headers=_headers(holder, endpoint), **grant)
    except _refused() as error:
        if error.error != "use_dpop_nonce":
            raise
    return client.fetch_token(endpoint, headers=_headers(holder, endpoint), **grant)


def _headers(holder: Holder, endpoint: str) -> dict[str, str]:
    return {"accept": "application/json", "dpop": holder.proof("POST", endpoint)}


def _client(method: Method, holder: Holder | None = None, **more: Any) -> Any:
    """Authlib's client. It takes half a second to load, so only logins do."""
    options = connection_options(method.issuer)
    hooks = {} if holder is None else {"event_hooks": {"response": [holder.note]}}
    made = import_module("authlib.integrations.httpx_client").OAuth2Client
    scope = " ".join(method.scopes)
    return made(method.client_id, token_endpoint_auth_method="none", scope=scope, timeout=TIMEOUT, **hooks, **options, **more)


def _refused() -> type[Any]:
    found: type[Any] = import_module("authlib.integrations.base_client.errors").OAuthError
    return found


def _why(error: Any) -> str:
    return str(error.description or error.error or "refused")


def _resource(method: Method) -> dict[str, str]:
    return {"resource": method.resource} if method.resource else {}


def _returning(answers: list[dict[str, str]], state: str) -> type[BaseHTTPRequestHandler]:
    """Takes the one request that comes back with our state."""

    class Returning(BaseHTTPRequestHandler):
        timeout = 10.0

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            answer = {name: values[0] for name, values in parse_qs(parts.query).items() if len(values) == 1}
            expected = parts.path == "/callback" and secrets.compare_digest(answer.get("state", "").encode(), state.encode())
            if expected and not answers:
                answers.append(answer)
            text = "You can close this window and go on in the terminal." if expected else "This is not the login that was expected."
            body = f"<!doctype html><meta charset=utf-8><title>Gatehouse</title><p>{html.escape(text)}".encode()
            self.send_response(200 if expected else 400)
            self.send_header("content-type", "text/html; charset=utf-8")
            self.send_header("content-length", str(len(body)))
            self.send_header("cache-control", "no-store")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """The address holds the code."""

    return Returning
