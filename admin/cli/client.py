"""The admin API over HTTP, with errors as one line each."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import quote, urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx

from admin.cli.errors import CommandError, UsageError
from admin.cli.proofs import credentials
from admin.cli.tls import SYSTEM, Tls

PREFIX: Final = "/admin/v1"
PROBLEM: Final = "application/problem+json"
TIMEOUT: Final = 30.0
LONG: Final = 900.0
"""Seconds for requests that load models or read a whole log."""


HINTS: Final = (
    ("WRONG_VERSION_NUMBER", "it does not use TLS: try http://"),
    ("CERTIFICATE_VERIFY_FAILED", "--ca FILE names the CAs to trust"),
    ("Server disconnected without sending a response", "if it uses TLS: https://"),
)
"""What may be the matter, by a piece of the error."""


class ApiError(CommandError):
    """A problem that the API reported."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def is_url(text: str) -> bool:
    """Whether a text is the URL of a server."""
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False


def is_loopback(url: str) -> bool:
    """Whether a URL leads to this machine; then the environment's proxy is not used."""
    host = (urlsplit(url).hostname or "").rstrip(".")
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def connection_options(url: str, tls: Tls = SYSTEM) -> dict[str, Any]:
    """How httpx connects: no proxy to this machine; the CAs of the system, or of SSL_CERT_FILE. Raises CommandError."""
    if tls.cert and not url.startswith("https:"):
        raise CommandError(f"a client certificate needs https, and the URL is {url}")
    verify = {"verify": tls.context()} if url.startswith("https:") else {}
    return {"trust_env": not is_loopback(url), **verify}


def proxy_of(url: str) -> str | None:
    """The proxy of the environment (HTTP_PROXY and the like) that requests to a URL go through, without its password."""
    parts = urlsplit(url)
    if is_loopback(url) or not parts.hostname or proxy_bypass(parts.netloc):
        return None
    known = getproxies()
    proxy = known.get(parts.scheme) or known.get("all")
    return None if proxy is None else urlsplit(proxy if "://" in proxy else f"http://{proxy}").netloc.rpartition("@")[2]


def with_key(url: str, key: str, holder: str, tls: Tls = SYSTEM) -> dict[str, Any]:
    """How httpx connects to where it sends a key. holder: what the key is bound to (admin.cli.proofs). Raises CommandError, also where a
    proxy would read the key."""
    if key and urlsplit(url).scheme != "https" and (proxy := proxy_of(url)) is not None:
        host = urlsplit(url).hostname
        raise CommandError(f"the key would go through the proxy {proxy} unencrypted: use https, or name {host} in NO_PROXY")
    return {**credentials(key, holder), **connection_options(url, tls)}


class Client:
    """One connection to an admin listener. holder: what the key is bound to (admin.cli.proofs). Use as a context manager."""

    def __init__(self, url: str, key: str, transport: httpx.BaseTransport | None = None, tls: Tls = SYSTEM, holder: str = "") -> None:
        self.url, self._heard = url.rstrip("/"), False
        try:
            options = with_key(self.url, key, holder, tls)
            self._http = httpx.Client(base_url=self.url + PREFIX, timeout=TIMEOUT, transport=transport, **options)
        except (httpx.InvalidURL, UnicodeEncodeError, ValueError) as error:
            raise CommandError(f"the URL or the key cannot be used: {type(error).__name__}") from None

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: object) -> None:
        self._http.close()

    def request(self, method: str, path: str, *, timeout: float = TIMEOUT, **options: Any) -> httpx.Response:
        """A successful response. Raises ApiError with the problem's detail, CommandError if no answer comes."""
        try:
            response = self._http.request(method, path, timeout=timeout, **options)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise no_answer(self.url, error, hints=not self._heard) from None
        self._heard = True
        if not response.is_success:
            elsewhere = response.status_code == 404 and not response.headers.get("content-type", "").startswith(PROBLEM)
            raise ApiError(response.status_code, explain(response) + (f" Is {self.url} the admin listener?" if elsewhere else ""))
        return response

    def json(self, method: str, path: str, *, timeout: float = TIMEOUT, **options: Any) -> Any:
        response = self.request(method, path, timeout=timeout, **options)
        try:
            return response.json()
        except ValueError:
            raise CommandError(f"{self.url} did not answer with JSON: is it the admin listener?") from None

    def get(self, path: str, **params: Any) -> Any:
        return self.json("GET", path, params={name: value for name, value in params.items() if value is not None})

    def post(self, path: str, body: Any = None, *, timeout: float = TIMEOUT, dry_run: bool = False, **flags: bool) -> Any:
        """flags: query parameters, sent where they are true."""
        params = {**_dry(dry_run), **{name: "true" for name, on in flags.items() if on}}
        return self.json("POST", path, timeout=timeout, params=params, **({} if body is None else {"json": body}))

    def patch(self, path: str, changes: dict[str, Any], *, version: int | None = None, dry_run: bool = False) -> Any:
        """Changes the named settings of a resource if it is unchanged since it was read here, or has this version. null: the default."""
        seen = self.request("GET", path).headers.get("etag") if version is None else f'"{version}"'
        return self.json("PATCH", path, json=changes, params=_dry(dry_run), headers={} if seen is None else {"if-match": seen})

    def delete(self, path: str, *, dry_run: bool = False) -> Any:
        return self.json("DELETE", path, params=_dry(dry_run))

    def items(self, path: str, **params: Any) -> list[dict[str, Any]]:
        """All pages of a list."""
        found: list[dict[str, Any]] = []
        cursor = None
        while True:
            page = self.get(path, **params) if cursor is None else self.get(path, cursor=cursor, **params)
            found += page["items"]
            cursor = page["cursor"]
            if cursor is None:
                return found

    def lines(self, path: str, params: dict[str, Any]) -> Iterator[bytes]:
        """The parts of a long answer as they come."""
        try:
            with self._http.stream("GET", path, params=params, timeout=LONG) as response:
                if not response.is_success:
                    response.read()
                    raise ApiError(response.status_code, explain(response))
                yield from response.iter_bytes()
        except httpx.ConnectError as error:
            raise no_answer(self.url, error) from None
        except httpx.HTTPError as error:
            raise CommandError(f"the answer of {self.url} broke off: {error or type(error).__name__}") from None


def no_answer(url: str, error: Exception, *, hints: bool = True) -> CommandError:
    """What to say where nothing listens, or where it speaks something else. hints: not where it has answered before."""
    hint = next((f" ({hint})" for piece, hint in HINTS if hints and piece in str(error)), "")
    return CommandError(f"no answer from {url}: {str(error) or type(error).__name__}{hint}")


def explain(response: httpx.Response) -> str:
    """One line for an error: the detail of problem details, or the status."""
    try:
        problem = response.json()
        detail = problem.get("detail") or problem["error"]["message"]
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{response.status_code} {response.reason_phrase} from {response.url.host}"
    param = problem.get("param")
    line = f"{param}: {detail}" if param and str(param) not in str(detail) else str(detail)
    return " ".join(line.split())


def name(text: str) -> str:
    """A name as one segment of a path. Raises UsageError for what would lead to another path."""
    if text in ("", ".", ".."):
        raise UsageError(f"{text!r} is not a name")
    return quote(text, safe="")


def _dry(dry_run: bool) -> dict[str, str]:
    return {"dry_run": "true"} if dry_run else {}
