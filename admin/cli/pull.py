"""Downloads a model file for `gatehouse models pull`: from a Hugging Face hub, an Ollama registry or any HTTPS server.

A download continues where it was interrupted (RFC 9110, 14: Range and If-Range), also in a later command, and is a model only once its
length and its checksum are right. Redirects are followed by rules: never from https to http, never from a public server to an address of
this machine or of a private network, and credentials never leave the server that they are for.
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
import re
import shutil
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote, urljoin, urlsplit

import httpx
import msgspec

from admin.cli.client import connection_options, is_loopback
from admin.cli.errors import CommandError, UsageError
from admin.cli.upload import Patience

HUB: Final = "https://huggingface.co"
OLLAMA: Final = "https://registry.ollama.ai"
MANIFEST: Final = "application/vnd.docker.distribution.manifest.v2+json"
MODEL_LAYER: Final = "application/vnd.ollama.image.model"
MAX_MANIFEST: Final = 4 * 1024 * 1024
REDIRECTS: Final = 6
LEFT_FREE: Final = 256 * 1024 * 1024
"""Bytes of the disk that a download does not take: a server may send without an end."""
STEP: Final = 64 * 1024 * 1024
"""Bytes after which the disk is looked at again."""
TIMEOUT: Final = httpx.Timeout(60.0, connect=15.0)
_HEX: Final = re.compile(r"[0-9a-f]{64}")
_HUB_NAME: Final = re.compile(r"hf://(?P<repo>[\w.-]+/[\w.-]+)/(?P<file>[^@?#]+)(?:@(?P<revision>[\w./-]+))?")
_OLLAMA_NAME: Final = re.compile(r"ollama://(?P<name>[\w.-]+(?:/[\w.-]+)?)(?::(?P<tag>[\w.-]+))?")
At = Callable[[int, int | None], None]
"""Called with the bytes that are there, and how many there will be, where that is known."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a file is. name: what the model is called if nobody says otherwise. sha256: that it must have, if known already."""

    url: str
    name: str
    sha256: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


def origin(text: str, environ: Mapping[str, str]) -> Origin:
    """What `hf://ORG/REPO/FILE[@REVISION]`, `ollama://NAME[:TAG]` or a URL stands for. HF_ENDPOINT and OLLAMA_REGISTRY name mirrors,
    HF_TOKEN is sent to the hub. Raises CommandError."""
    if (hub := _HUB_NAME.fullmatch(text)) is not None:
        base = environ.get("HF_ENDPOINT") or HUB
        path = f"{hub['repo']}/resolve/{quote(hub['revision'] or 'main', safe='')}/{quote(hub['file'])}"
        token = environ.get("HF_TOKEN")
        headers = {"authorization": f"Bearer {token}"} if token else {}
        return Origin(_checked(f"{base.rstrip('/')}/{path}"), hub["file"].rpartition("/")[2], None, headers)
    if (image := _OLLAMA_NAME.fullmatch(text)) is not None:
        base = _checked((environ.get("OLLAMA_REGISTRY") or OLLAMA).rstrip("/"))
        name = image["name"] if "/" in image["name"] else f"library/{image['name']}"
        return _layer(f"{base}/v2/{name}", image["tag"] or "latest", name.rpartition("/")[2])
    if text.startswith(("https://", "http://")):
        return Origin(_checked(text), unquote(urlsplit(text).path).rpartition("/")[2])
    raise UsageError(f"{text!r}: write hf://ORG/REPO/FILE[@REVISION], ollama://NAME[:TAG] or https://...")


def _checked(url: str) -> str:
    """Plain http only to this machine. Raises CommandError."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise CommandError(f"{url!r} is no address") from None
    if not parts.hostname or parts.username is not None or (parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(url))):
        raise CommandError(f"{url}: models are pulled over https:// without credentials in the URL, or over http:// from this machine")
    return url


def _layer(repository: str, tag: str, name: str) -> Origin:
    """The layer of an image that is the model (OCI distribution specification, pulling manifests)."""
    with _opened(f"{repository}/manifests/{tag}", {"accept": MANIFEST}) as answer:
        _expect(answer, 200)
        body = b""
        for part in answer.iter_bytes():
            body += part
            if len(body) > MAX_MANIFEST:
                raise CommandError(f"{answer.url}: the manifest is larger than {MAX_MANIFEST} bytes")
    try:
        layers: list[dict[str, Any]] = msgspec.json.decode(body)["layers"]
        digests = [str(layer["digest"]) for layer in layers if layer["mediaType"] == MODEL_LAYER]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError, TypeError):
        raise CommandError(f"{repository}: the answer is not an image manifest") from None
    kind, _, digest = digests[0].partition(":") if digests else ("", "", "")
    if kind != "sha256" or not _HEX.fullmatch(digest):
        raise CommandError(f"{repository}: the image {tag} has no model")
    return Origin(f"{repository}/blobs/sha256:{digest}", f"{name}-{tag}.gguf", digest)


def fetch(source: Origin, folder: Path, at: At, patience: Patience | None = None) -> Path:
    """The file, complete and checked, in this folder. Raises CommandError; what has come so far then stays for the next try, unless it is
    wrong."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    key = hashlib.sha256(source.url.encode()).hexdigest()[:24]
    part, state = folder / f"{key}.part", folder / f"{key}.etag"
    done = folder / f"{key}.done"
    patience = patience or Patience()
    expected = source.sha256
    if expected is not None and done.exists() and _sha256(done) == expected:
        return done  # of an earlier command that could not send it
    while True:
        before = part.stat().st_size if part.exists() else 0
        try:
            expected = _more(source, part, state, at) or expected
            break
        except (httpx.HTTPError, _Cut) as error:
            if part.exists() and part.stat().st_size > before:
                patience.progress()
            patience.wait(CommandError(f"{source.url}: {error or type(error).__name__}"))
    found = _sha256(part)
    if expected is not None and found != expected:
        part.unlink()
        state.unlink(missing_ok=True)
        raise CommandError(f"{source.url}: the sha256 is {found}, not {expected}; what was downloaded is deleted")
    state.unlink(missing_ok=True)
    part.replace(done)
    return done


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class _Cut(Exception):
    """A download ended too early, or its rest is another file's."""


def _more(source: Origin, part: Path, state: Path, at: At) -> str | None:
    """Downloads what is missing; returns the checksum that the server names. Raises CommandError, httpx.HTTPError, _Cut."""
    have = part.stat().st_size if part.exists() else 0
    known = state.read_text() if have and state.exists() else ""
    if not known:
        have = 0  # nothing says that the rest would be the same file's
    headers = {**source.headers, "accept-encoding": "identity"}
    if have:
        headers |= {"range": f"bytes={have}-", "if-range": known}
    named: list[str] = []
    with _opened(source.url, headers, named.append) as answer:
        if have and answer.status_code == 416:
            part.unlink()
            raise _Cut("the server has less than there is here already; it begins again")
        if have and answer.status_code == 206:
            if not answer.headers.get("content-range", "").startswith(f"bytes {have}-"):
                raise CommandError(f"{source.url}: the server answers another range than it was asked for")
            if answer.headers.get("etag", known) != known:
                state.unlink()
                raise _Cut("the server has another file meanwhile; it begins again")
        else:
            _expect(answer, 200)
            have = 0
        length = answer.headers.get("content-length", "")
        total = have + int(length) if length.isdigit() else None
        tag = answer.headers.get("etag", "")
        state.write_text("" if tag.startswith("W/") or not tag.isascii() else tag)
        with part.open("ab" if have else "wb") as file:
            at(have, total)
            _room(source, part, 0 if total is None else total - have)
            looked = have
            for data in answer.iter_raw():
                file.write(data)
                have += len(data)
                at(have, total)
                if have - looked > STEP:
                    _room(source, part, 0)
                    looked = have
        if total is not None and have != total:
            raise _Cut(f"{have} of {total} bytes came")
    return next((one for one in named if _HEX.fullmatch(one)), None)


def _room(source: Origin, part: Path, wanted: int) -> None:
    """Raises CommandError, and deletes the part that has arrived, if the disk lacks room for `wanted` bytes besides LEFT_FREE."""
    free = shutil.disk_usage(part.parent).free - LEFT_FREE
    if max(wanted, 1) > free:
        part.unlink()
        raise CommandError(f"{source.url}: {part.parent} has room for {max(0, free)} bytes, and more are to come; what came is deleted")


def _expect(answer: httpx.Response, status: int) -> None:
    if answer.status_code == status:
        return
    if answer.status_code in (408, 429) or answer.status_code >= 500:
        raise _Cut(f"the server answers {answer.status_code}")
    hint = {401: "; set HF_TOKEN where it asks for a login", 403: "; accept the model's licence there, or set HF_TOKEN"}
    raise CommandError(f"{answer.url}: the server answers {answer.status_code}{hint.get(answer.status_code, '')}")


class _opened:
    """A GET with redirects followed by our rules. linked: called with the checksum that an answer on the way names (`X-Linked-Etag`,
    which the hub sends with its own answer for files in its large storage). Raises CommandError."""

    def __init__(self, url: str, headers: Mapping[str, str], linked: Callable[[str], None] = lambda text: None) -> None:
        self._url, self._headers, self._linked = url, headers, linked
        self._clients: list[httpx.Client] = []

    def __enter__(self) -> httpx.Response:
        url, headers = self._url, dict(self._headers)
        try:
            for _ in range(REDIRECTS):
                client = httpx.Client(timeout=TIMEOUT, follow_redirects=False, **connection_options(url))
                self._clients.append(client)
                answer = client.send(client.build_request("GET", url, headers=headers), stream=True)
                if urlsplit(url).netloc == urlsplit(self._url).netloc:
                    self._linked(answer.headers.get("x-linked-etag", "").strip('"').lower())
                if not answer.is_redirect:
                    return answer
                following = self._following(url, answer.headers.get("location", ""))
                if urlsplit(following).netloc != urlsplit(self._url).netloc:
                    headers.pop("authorization", None)
                url = following
        except BaseException:
            self.__exit__()
            raise
        self.__exit__()
        raise CommandError(f"{self._url}: more than {REDIRECTS - 1} redirects")

    def __exit__(self, *exc: object) -> None:
        for client in self._clients:
            client.close()

    def _following(self, url: str, location: str) -> str:
        """Where a redirect leads. Raises CommandError."""
        try:
            following = urljoin(url, location)
            self._allow(url, following)
        except ValueError:  # no URL, or a host with a name that no host has
            raise CommandError(f"{self._url}: redirects to {location[:200]!r}, which is no address") from None
        return following

    def _allow(self, url: str, following: str) -> None:
        before, after = urlsplit(url), urlsplit(following)
        if after.scheme not in ("http", "https") or not after.hostname or after.username is not None:
            raise CommandError(f"{self._url}: redirects to {following!r}, which models may not come from")
        if (before.scheme, after.scheme) == ("https", "http"):
            raise CommandError(f"{self._url}: redirects from https to http ({after.hostname})")
        if before.netloc != after.netloc and internal(after.hostname) and not internal(urlsplit(self._url).hostname or ""):
            raise CommandError(f"{self._url}: redirects to {after.hostname}, an address of this machine or of a private network")


def internal(host: str) -> bool:
    """Whether a host has an address that is not of the public internet."""
    try:
        found = {entry[4][0] for entry in socket.getaddrinfo(host, None, proto=socket.IPPROTO_TCP)}
    except OSError:
        return False  # then it cannot be connected to either
    return any(not ipaddress.ip_address(str(one).partition("%")[0]).is_global for one in found)


def folder(environ: Mapping[str, str]) -> Path:
    """Where downloads that are not complete wait."""
    base = environ.get("XDG_CACHE_HOME") or os.path.join(environ.get("HOME") or "/tmp", ".cache")
    return Path(base) / "gatehouse" / "pull"
