"""Common to all commands: the gateway's address, the key, the output format, and the one place where errors become one line."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

import typer

from admin.cli import profile as profiles
from admin.cli import tls
from admin.cli.client import Client, is_loopback, is_url, proxy_of
from admin.cli.ending import understood
from admin.cli.errors import CommandError, UsageError
from admin.cli.output import Format, Output, clean

DEFAULT_URL: Final = "http://127.0.0.1:8081"
Url = Annotated[str | None, typer.Option("--url", help="The admin listener.", envvar="GATEHOUSE_URL", show_default=DEFAULT_URL)]
Key = Annotated[str | None, typer.Option("--key", help="An API key with a role.", envvar="GATEHOUSE_KEY", show_envvar=True)]
ProfileName = Annotated[
    str,
    typer.Option("--profile", help="A profile that `login` saved.", envvar="GATEHOUSE_PROFILE", autocompletion=profiles.suggested),
]
OutputFormat = Annotated[Format, typer.Option("--output", "-o", help="The output format.")]
Wide = Annotated[bool, typer.Option("--wide", help="Show all columns in full, even if wider than the terminal.")]
IfVersion = Annotated[int | None, typer.Option("--if-version", help="Only if it has this version; default: the one just read.", min=0)]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would change; change nothing.")]


@dataclass
class Session:
    """The gateway that a command talks to, and where it prints."""

    profile: profiles.Profile
    out: Output

    def client(self) -> Client:
        return self.client_of(self.profile.url)

    def client_of(self, url: str) -> Client:
        """A client of another listener, which the user named, with the same credentials. Raises UsageError unless it is a URL."""
        if not is_url(url):
            raise UsageError(f"{url!r} is not the URL of an admin listener, such as {DEFAULT_URL}")
        if (proxy := proxy_of(url)) is not None:
            self.out.remark(f"through the proxy {proxy} of the environment")
        if self.profile.key and urlsplit(url).scheme != "https" and not is_loopback(url):
            self.out.remark(f"the key goes to {urlsplit(url).hostname} unencrypted: use https (listen.admin_tls)")
        return Client(url, self.profile.key, tls=self.profile.tls, holder=self.profile.holder)


def resolve(
    url: str | None, key: str | None, name: str, ca: str | None = None, cert: str | None = None, cert_key: str | None = None
) -> profiles.Profile:
    """Options and environment override the profile. A profile's key and certificate are for its own URL only."""
    saved = profiles.load(name) if key else profiles.current(name)
    if saved is None:
        if name != profiles.DEFAULT:
            raise CommandError(f"there is no profile {name!r}: gatehouse login --profile {name}")
        return profiles.Profile(url or DEFAULT_URL, key or "", **asdict(tls.given(ca, cert, cert_key)))
    if url is None or _same(url, saved.url):
        files = asdict(tls.given(ca, cert, cert_key, saved.tls))
        return profiles.Profile(saved.url, key or saved.key, saved.gateway_url, saved.api_key, None if key else saved.login, **files)
    return profiles.Profile(url, key or "", **asdict(tls.given(ca, cert, cert_key)))


def _same(url: str, other: str) -> bool:
    """Whether two URLs lead to the same listener; all names of this machine count as the same."""
    try:
        first, second = urlsplit(url), urlsplit(other)
        hosts = first.hostname == second.hostname or (is_loopback(url) and is_loopback(other))
        return hosts and (first.scheme, first.port, first.path.rstrip("/")) == (second.scheme, second.port, second.path.rstrip("/"))
    except ValueError:
        return False


def changed(given: dict[str, Any], cleared: Iterable[str]) -> dict[str, Any]:
    """The settings that the options of an `update` name: those that were given (not None), and null for those to clear.

    Raises typer.BadParameter (exit code 2) for a setting that is both set and cleared, for an unknown one, and when none is given.
    """
    wanted = {name: value for name, value in given.items() if value is not None}
    for name in cleared:
        if name not in given:
            raise typer.BadParameter(f"there is no setting {name!r} to clear: {', '.join(given)}")
        if name in wanted:
            raise typer.BadParameter(f"{name} is both set and cleared")
        wanted[name] = None
    if not wanted:
        raise typer.BadParameter("there is nothing to change: name a setting")
    return wanted


def fail(error: CommandError, trouble: int = 1) -> typer.Exit:
    """Says why, on one line. trouble: the exit code unless the usage was wrong."""
    typer.echo(f"error: {' '.join(clean(str(error)).split())}", err=True)
    return typer.Exit(2 if isinstance(error, UsageError) else trouble)


def connected(command: Callable[..., Any], trouble: int = 1) -> Callable[..., Any]:
    """Adds the common options to a command that takes a Session, after its own. trouble: the exit code where it fails."""
    signature = inspect.signature(command, eval_str=True)
    own = list(signature.parameters.values())[1:]
    keyword = inspect.Parameter.KEYWORD_ONLY
    common = [
        inspect.Parameter("url", keyword, default=None, annotation=Url),
        inspect.Parameter("key", keyword, default=None, annotation=Key),
        inspect.Parameter("profile", keyword, default=profiles.DEFAULT, annotation=ProfileName),
        inspect.Parameter("ca", keyword, default=None, annotation=tls.Ca),
        inspect.Parameter("cert", keyword, default=None, annotation=tls.Cert),
        inspect.Parameter("cert_key", keyword, default=None, annotation=tls.CertKey),
        inspect.Parameter("output", keyword, default=Format.table, annotation=OutputFormat),
        inspect.Parameter("wide", keyword, default=False, annotation=Wide),
    ]

    @functools.wraps(command)
    def run(
        *,
        url: str | None,
        key: str | None,
        profile: str,
        ca: str | None,
        cert: str | None,
        cert_key: str | None,
        output: Format,
        wide: bool,
        **given: Any,
    ) -> None:
        try:
            session = Session(resolve(url, key, profile, ca, cert, cert_key), Output(output, wide))
            with understood(session.profile.url):
                command(session, **given)
        except CommandError as error:
            raise fail(error, trouble) from None
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the reader has gone
            raise typer.Exit(trouble) from None

    parameters = [p.replace(kind=keyword) for p in own] + common
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run
