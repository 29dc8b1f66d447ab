"""`gatehouse login` and `gatehouse logout`."""

from __future__ import annotations

import webbrowser
from dataclasses import asdict
from typing import Annotated, Any

import typer

from admin.cli import oauth, output, tls
from admin.cli import profile as profiles
from admin.cli.client import Client
from admin.cli.errors import CommandError, UsageError
from admin.cli.session import DEFAULT_URL, Key, ProfileName, Url, fail


def login(
    url: Url = None,
    key: Key = None,
    profile: ProfileName = profiles.DEFAULT,
    ca: tls.Ca = None,
    cert: tls.Cert = None,
    cert_key: tls.CertKey = None,
    issuer: Annotated[str, typer.Option("--issuer", help="The issuer's name, if the gateway has several.")] = "",
    browser: Annotated[
        bool, typer.Option("--browser", help="Log in with a browser on this machine, instead of a code on any machine.")
    ] = False,
    gateway_url: Annotated[str, typer.Option("--gateway-url", help="The data listener, for `chat`; default: ask the gateway.")] = "",
    api_key: Annotated[str, typer.Option("--api-key", help="Another key for `chat`.")] = "",
) -> None:
    """Logs in at the gateway's issuer, with --key by an API key, or with --cert by a client certificate, and saves that, with the URL, in a
    profile that only you can read."""
    try:
        where = url or typer.prompt("Admin URL", default=DEFAULT_URL)
        files = tls.absolute(tls.given(ca, cert, cert_key))
        found = None if key or (cert and not issuer) else _at_issuer(where, issuer, browser, files)
        secret = key or (found.access_token if found else "" if cert else typer.prompt("API key", hide_input=True))
        with Client(where, secret, tls=files, holder=found.holder if found else "") as client:
            caller = client.get("/whoami")
        saved = profiles.Profile(where, "" if found else secret, gateway_url, api_key, found, **asdict(files))
        place = profiles.save(profile, saved)
    except CommandError as error:
        raise fail(error) from None
    typer.echo(f"{_shown(caller)} saved in {place}")


def logout(profile: ProfileName = profiles.DEFAULT) -> None:
    """Ends a login at its issuer and deletes the profile."""
    try:
        saved = profiles.load(profile)
        profiles.forget(profile)
        if saved is None:
            raise CommandError(f"there is no profile {profile!r}")
        if saved.login is not None:
            oauth.revoke(saved.login)
    except CommandError as error:
        raise fail(error) from None
    typer.echo(f"the profile {profile} is forgotten")


def _at_issuer(url: str, name: str, browser: bool, files: tls.Tls) -> oauth.Login | None:
    """None where the gateway names no issuer. Raises CommandError."""
    found = {method.name: method for method in oauth.methods(url, files)}
    if not found and not (name or browser):
        return None
    if name and name not in found:
        raise UsageError(f"there is no issuer {name!r} to log in at; the gateway has: {', '.join(found) or 'none'}")
    if not found or (not name and len(found) > 1):
        raise UsageError(f"name an issuer with --issuer; the gateway has: {', '.join(found) or 'none'}")
    method = found[name or next(iter(found))]
    metadata = oauth.discover(method.issuer)
    if browser:
        return oauth.in_browser(method, metadata, _say, webbrowser.open)
    return oauth.by_device(method, metadata, _say)


def _say(text: str) -> None:
    typer.echo(output.clean(text), err=True)


def _shown(caller: dict[str, Any]) -> str:
    roles = ", ".join(sorted({grant["role"] for grant in caller["grants"]})) or "no role yet"
    return f"{output.clean(caller['tenant'])}/{output.clean(caller['id'])} ({roles})"
