"""E-mail addresses (RFC 5321's dot-atoms, also with letters beyond ASCII)."""

from __future__ import annotations

from typing import Final

from policies.guardrails.recognition.recogniser import Recogniser

_FILES: Final = frozenset({"png", "jpg", "jpeg", "gif", "svg", "webp", "js", "css", "py", "json", "html"})
"""Endings of file names such as `logo@2x.png`; none is a top-level domain."""


def _valid(text: str) -> int:
    at = text.find("@")
    if text[0] == "." or text[at - 1] == "." or ".." in text[:at]:
        return 0
    end, labels = len(text), text[at + 1 :].split(".")
    while len(labels) > 1 and not _is_top(labels[-1]):
        end -= len(labels.pop()) + 1
    if len(labels) < 2 or labels[-1].lower() in _FILES:
        return 0
    for label in labels:
        if not label or label[0] == "-" or label[-1] == "-":
            return 0
    return end


def _is_top(label: str) -> bool:
    if len(label) < 2:
        return False
    return (label if label.isascii() else label.replace("\x80", "a")).isalpha() or label[:4].lower() == "xn--"


RECOGNISERS: Final = (
    Recogniser(
        "email",
        r"[a-z0-9_\l][a-z0-9._%+'\l-]{0,63}@[a-z0-9\l-]{1,63}(?:\.[a-z0-9\l-]{1,63}){1,4}",
        _valid,
        sign="@",
        local=r"[a-z0-9._%+'\l-]",
    ),
)
