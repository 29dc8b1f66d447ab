"""E-mail addresses (RFC 5321's dot-atoms, also with letters beyond ASCII)."""

from __future__ import annotations

from typing import Final

from policies.guardrails.recognition.recogniser import Recogniser

_FILES: Final = frozenset({"png", "jpg", "jpeg", "gif", "svg", "webp", "js", "css", "py", "json", "html"})
"""Endings of file names such as `logo@2x.png`; none is a top-level domain."""


def _valid(text: str) -> int:
    local, _, domain = text.partition("@")
    if local[0] == "." or local[-1] == "." or ".." in local:
        return 0
    labels = domain.split(".")
    while len(labels) > 1 and not _is_top(labels[-1]):
        labels.pop()
    if len(labels) < 2 or any(not label or label[0] == "-" or label[-1] == "-" for label in labels):
        return 0
    if labels[-1].lower() in _FILES:
        return 0
    return len(local) + 1 + sum(map(len, labels)) + len(labels) - 1


def _is_top(label: str) -> bool:
    return len(label) >= 2 and (label.replace("\x80", "a").isalpha() or label[:4].lower() == "xn--")


RECOGNISERS: Final = (
    Recogniser(
        "email",
        r"[a-z0-9_\l][a-z0-9._%+'\l-]{0,63}@[a-z0-9\l-]{1,63}(?:\.[a-z0-9\l-]{1,63}){1,4}",
        _valid,
        sign="@",
        local=r"[a-z0-9._%+'\l-]",
    ),
)
