"""The guardrail `content`: how long texts may be, and which addresses (URLs) may stand in them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import unescape
from typing import Annotated, Final, Literal

from msgspec import Meta

from gateway.core.errors import GuardrailViolation
from gateway.core.plugins import Context
from gateway.core.slices import Steps
from gateway.core.specs import Spec
from gateway.core.types import ALLOW, Finding, Verdict
from policies.guardrails.recognition.actions import ANNOTATE, Actions
from policies.guardrails.recognition.finder import Finder
from policies.guardrails.recognition.guardrail import EntityGuardrail
from policies.guardrails.recognition.recogniser import Recogniser
from policies.guardrails.recognition.stream import EntityStream

TOO_LONG: Final = "A text is longer than is allowed here."
_Host = Annotated[str, Meta(pattern=r"^(\*\.)?[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$")]
_NUMBERS: Final = re.compile(r"\[.*|(?:0x[0-9a-f]+|\d+)(?:\.(?:0x[0-9a-f]*|\d*)){0,3}\.?")
_LOADED: Final = r"(?:https?|ftps?|wss?)"
"""Schemes of addresses that browsers load: they take a backslash for a slash, skip slashes beyond two, and need none."""
_SCHEMES: Final = rf"(?:{_LOADED}\\?:[/\\]{{2,8}}|(?:sftp|file|gopher|ldaps?|ssh|telnet)\\?:(?:\\?/){{2}})"
"""Markdown takes away a backslash before a sign."""
_OPEN: Final = r"\](?:\(|:)\s{0,28}"
"""Before the destination of a link or an image in Markdown, which may stand elsewhere (`[name]: //host`)."""
_LINKS: Final = rf"(?:\]\(\s{{0,28}}<?(?:\\?/){{2,4}}|{_OPEN}<?{_LOADED}\\?:[/\\]{{0,8}})"
_LEAD: Final = rf"(?:{_SCHEMES}|{_LINKS})"
"""Two in one: each recogniser that needs a lead is looked for by itself. Where one is, the other cannot be."""
_FIRST: Final = r"[^\s/?#<>\"\\\[\]]"
_SIGNS: Final = r"[^\s/?#<>\"\[\]]"
_SIX: Final = r"\[[0-9a-f:.%]{2,60}\](?::\d{1,5})?"
_AUTHORITY: Final = rf"(?:{_FIRST}{_SIGNS}{{0,252}}(?:#x?[0-9a-f]{{1,7}}(?:;{_SIGNS}{{0,80}})?|{_SIX})?|{_SIX})"
_REST: Final = r"A-Za-z0-9_\-.~:/?#@!$&*+,;=%|\x80\x81"
_IMAGE: Final = r"!\[[^\]]{0,120}\]\(\s{0,8}<?"
_TAG: Final = r"<(?:img|iframe|video|audio|source|embed|object|link|script)[ \t\n][^>]{0,120}(?:src|href|data)[ \t]{0,2}=[ \t]{0,2}"
_CODED: Final = r"(?:#x?[0-9a-f]|colon;|sol;|bsol;)"
"""Behind &: what Markdown and HTML read as a sign of an address, or as a letter of its scheme."""
_APART: Final = "'(){}|^,;`"
"""Signs that end a host in prose, but not for a browser: it may read on to an @, or to a longer host."""
_SPLIT: Final = re.compile(f"[{re.escape(_APART)}]")
UNKNOWN: Final = "\x80"
"""A host that goes on behind what is read of it."""
_ENDS: Final = re.compile(r"['(){}|^,;`\\#]|&(?:#|[a-z]{2,31};)", re.IGNORECASE)
_ESCAPE: Final = re.compile(r"\\([!-/:-@\[-`{-~])")
_OVER: Final = re.compile(r"[\s/?#\\\"<>]")
_LAST: Final = re.compile(r"[^.]*\.([a-z0-9_-]+(?:\.[a-z0-9_-]+)+)\.?", re.IGNORECASE)
_UNREAD: Final = re.compile(r"\\(?=[A-Za-z0-9\x80-\xff]|$)")
_PLACE: Final = re.compile(rf"\s*<?(?:{_LOADED}\\?:)?[/\\]{{0,8}}", re.IGNORECASE)
_SOURCE: Final = re.compile(rf"=[ \t]*[\"']?(?:{_LOADED}:)?[/\\]{{2,8}}([^\s/?#<>\"\\]+)", re.IGNORECASE)


class UrlSettings(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """allow: hosts that may be named; without any, all but those in `deny`. `*.example.com` stands for all below. userinfo: a name or a
    password may stand before the host. international: letters beyond ASCII, and their form `xn--`. numeric: hosts that are IP addresses,
    however written. images: `listed`: images and the like, which a client loads by itself, only from hosts in `allow`; `any`: like all
    other addresses."""

    allow: Annotated[tuple[_Host, ...], Meta(max_length=10_000)] = ()
    deny: Annotated[tuple[_Host, ...], Meta(max_length=10_000)] = ()
    userinfo: bool = False
    international: bool = False
    numeric: bool = False
    images: Literal["listed", "any"] = "listed"


class ContentSettings(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """max_length: characters of one text. urls: without it, addresses are not looked at. action: what is done; `mask` shortens a text that
    is too long, and puts `[URL]` in the place of an address's host and what follows it."""

    max_length: Annotated[int, Meta(ge=1, le=100_000_000)] | None = None
    urls: UrlSettings | None = None
    action: Literal["block", "mask", "annotate", "label"] = "block"


class Hosts:
    """Which hosts may be named."""

    def __init__(self, settings: UrlSettings) -> None:
        self._settings = settings
        self._allow, self._deny = _patterns(settings.allow), _patterns(settings.deny)

    def refused(self, authority: str) -> int:
        """Of what stands between `//` and the path: its length if it may not be named, else 0. Where it can be read in several ways, it is
        named in each of them."""
        end = _ENDS.search(authority)
        if end is None:
            return len(authority) if self._denied(authority) else 0
        first = authority[: end.start()]
        if first and self._denied(first):
            return len(first)
        return len(authority.rstrip(_APART + "\\")) if any(map(self._denied, _otherwise(authority))) else 0

    def referred(self, authority: str) -> int:
        """The same behind `]:`, where what is no host may be a comment of a program."""
        return self.refused(authority) if "." in authority or "&" in authority else 0

    def _denied(self, authority: str) -> bool:
        user, at, place = authority.rpartition("@")
        host = place if place.startswith("[") else place.partition(":")[0]
        host = host.lower().rstrip(".!*_~$&+=%")
        if not host or (at and not self._settings.userinfo and user):
            return bool(at)
        if not self._settings.international and (not host.isascii() or "xn--" in host or "\x80" in host or "\x81" in host):
            return True
        if not self._settings.numeric and _NUMBERS.fullmatch(host):
            return True
        return "%" in host or _matched(host, self._deny) or bool(self._settings.allow and not _matched(host, self._allow))

    def unlisted(self, text: str) -> int:
        """Of an image in Markdown up to its path: its length if it may not be loaded, else 0."""
        place = text.rindex("](") + 2
        if (found := _PLACE.match(text, place)) is not None:
            place = found.end()
        length = self._unlisted(text[place:])
        return place + length if length else 0

    def unlisted_source(self, text: str) -> int:
        """The same of a tag, which may name several addresses."""
        return len(text.rstrip(_APART)) if any([self._unlisted(found) for found in _SOURCE.findall(text)]) else 0

    def _unlisted(self, authority: str) -> int:
        if length := self.refused(authority):
            return length
        end = _ENDS.search(authority)
        first = authority if end is None else authority[: end.start()]
        host = first.rpartition("@")[2].partition(":")[0].lower().rstrip(".")
        return 0 if self._settings.images == "any" or _matched(host, self._allow) else len(first) or len(authority)


def _otherwise(authority: str) -> Iterator[str]:
    """What browsers may read as the host where signs beyond letters, digits and dots stand in an address: as it is, with `\\` for `/`, and
    as Markdown and HTML give it to them. A letter behind a backslash is an escape of JSON."""
    plain = _UNREAD.split(authority, maxsplit=1)[0]
    if "&#" in plain and plain.endswith("&"):
        yield UNKNOWN
    decoded = unescape(_ESCAPE.sub(r"\1", plain))
    for text in dict.fromkeys([_OVER.split(authority, maxsplit=1)[0], _OVER.split(decoded, maxsplit=1)[0]]):
        parts = _SPLIT.split(text.rpartition("@")[2])
        if parts[0]:
            yield parts[0]
        if len(parts) > 1 and (last := _LAST.fullmatch(parts[-1].partition(":")[0])) is not None:
            yield last[1]


def _patterns(hosts: Sequence[str]) -> tuple[frozenset[str], tuple[str, ...]]:
    return frozenset(host for host in hosts if host[0] != "*"), tuple(host[1:] for host in hosts if host[0] == "*")


def _matched(host: str, patterns: tuple[frozenset[str], tuple[str, ...]]) -> bool:
    exact, below = patterns
    return host in exact or bool(below and host.endswith(below))


def recognisers(hosts: Hosts) -> list[Recogniser]:
    def always(text: str) -> int:
        return len(text)

    return [
        Recogniser("image", rf"{_IMAGE}{_LOADED}\\?:[/\\]{{0,8}}{_AUTHORITY}", hosts.unlisted, tail=_REST),
        Recogniser("image", rf"{_IMAGE}(?:\\?/){{2,4}}{_AUTHORITY}", hosts.unlisted, tail=_REST),
        Recogniser("image", rf"{_TAG}[\"']?(?:{_LOADED}:)?[/\\]{{2,8}}{_FIRST}{{1,253}}(?:{_SIX})?", hosts.unlisted_source, tail=_REST),
        Recogniser("image", rf"{_TAG}[\"'](?:{_LOADED}:)?[/\\]{{2,8}}[^\s/?#<>\"'\\]{{1,253}}\s", always, tail=_REST),
        Recogniser("image", rf"{_TAG}[\"']?[a-z]{{0,6}}:?[/\\]{{0,8}}&{_CODED}", always, tail=_REST),
        Recogniser("url", _AUTHORITY, hosts.refused, behind=_LEAD, tail=_REST),
        Recogniser("url", _AUTHORITY, hosts.referred, behind=r"\]:\s{0,28}<?(?:\\?/){2,4}", tail=_REST),
        Recogniser("url", _CODED, always, behind=rf"{_OPEN}<?[a-z]{{0,6}}:?[/\\]{{0,8}}&", tail=_REST),
        Recogniser("url", r"[^\s/?#<>\"\\]{1,253}[ \t]", always, behind=rf"{_OPEN}<(?:{_LOADED}\\?:[/\\]{{0,8}}|[/\\]{{2,8}})", tail=_REST),
        Recogniser("url", r"[^\s)]{1,8}", always, behind=rf"{_OPEN}<?(?:javascript|vbscript|data|file|blob)\\?:", tail=_REST),
    ]


class Content:
    """The guardrail. Immutable. inner: looks for addresses."""

    def __init__(self, name: str, settings: ContentSettings, inner: EntityGuardrail | None) -> None:
        self.name, self._inner = name, inner
        self._most, self._action = settings.max_length, settings.action
        self.longest = 0 if inner is None else inner.longest

    def check(self, texts: Sequence[str]) -> Verdict | Steps[Verdict]:
        long = [] if self._most is None else [number for number, text in enumerate(texts) if len(text) > self._most]
        if not long:
            return ALLOW if self._inner is None else self._inner.check(texts)
        assert self._most is not None
        findings = tuple(Finding("length", self._most, len(texts[number]), "", number) for number in long[:8])
        if self._action == "block":
            return Verdict("block", self.name, TOO_LONG, (), findings)
        return self._too_long(texts, self._most, findings)

    def _too_long(self, texts: Sequence[str], most: int, findings: tuple[Finding, ...]) -> Steps[Verdict]:
        cut = tuple(text[:most] for text in texts) if self._action == "mask" else tuple(texts)
        verdict = ALLOW if self._inner is None else self._inner.check(cut)
        if not isinstance(verdict, Verdict):
            verdict = yield from verdict
        if verdict.action == "block":
            return verdict
        reason = f"{TOO_LONG} {verdict.reason}".strip()
        if self._action == "mask":
            return Verdict("rewrite", self.name, reason, verdict.texts or cut, (*findings, *verdict.findings))
        return Verdict("annotate", self.name, reason, (), (*findings, *verdict.findings), None, self._action == "label")

    def stream(self) -> ContentStream:
        return ContentStream(self.name, self._most, self._action, None if self._inner is None else self._inner.stream())


class ContentStream:
    """Follows one text."""

    __slots__ = ("_action", "_inner", "_most", "_name", "_own", "_seen")

    def __init__(self, name: str, most: int | None, action: str, inner: EntityStream | None) -> None:
        self._name, self._most, self._action, self._inner = name, most, action, inner
        self._seen = 0
        self._own: list[Finding] = []

    @property
    def held(self) -> str:
        return "" if self._inner is None else self._inner.held

    @property
    def findings(self) -> list[Finding]:
        return self._own if self._inner is None else [*self._own, *self._inner.findings]

    @property
    def verdict(self) -> str:
        if self._own and self._action == "mask":
            return "rewrite"
        return ANNOTATE if self._inner is None else self._inner.verdict

    @property
    def reason(self) -> str:
        found = TOO_LONG if self._own else ""
        return found if self._inner is None or not self._inner.found else f"{found} {self._inner.reason}".strip()

    def feed(self, text: str) -> str:
        before, self._seen = self._seen, self._seen + len(text)
        if self._most is not None and self._seen > self._most:
            if not self._own:
                self._own.append(Finding("length", self._most, self._seen))
            self._own[0].end = self._seen
            if self._action == "block":
                raise GuardrailViolation(TOO_LONG, code=self._name)
            if self._action == "mask":
                text = text[: max(0, self._most - before)]
        return text if self._inner is None else self._inner.feed(text)

    def finish(self) -> str:
        return "" if self._inner is None else self._inner.finish()


def build(settings: ContentSettings, context: Context) -> Content:
    """Raises ValueError with one sentence."""
    if settings.max_length is None and settings.urls is None:
        raise ValueError("it has no rule; set max_length or urls")
    inner = None
    if settings.urls is not None:
        finder = Finder(recognisers(Hosts(settings.urls)))
        actions = dict.fromkeys(("image", "url"), settings.action)
        inner = EntityGuardrail(Actions(context.name, finder, actions, b"", (), "addresses"))
    return Content(context.name, settings, inner)
