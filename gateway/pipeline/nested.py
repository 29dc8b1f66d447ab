"""JSON inside texts, such as the arguments of a tool call: its strings, decoded.

Characters of a string can be written as escapes (RFC 8259, section 7), and engines decode the arguments of calls. So a text as a guardrail
sees it may read differently to the model.

All of it comes in steps: one text may be the largest allowed body, with a million strings in it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final

from gateway.core.errors import GuardrailViolation
from gateway.core.slices import Steps

_OPENING: Final = ("{", "[", '"')
_SPACES: Final = " \t\r\n"
LEVELS: Final = 8
"""How deep JSON within JSON is followed: each level doubles the backslashes of the one above it."""
AT_ONCE: Final = 8 * 1024
"""Characters that are decoded in one step. A longer text is not parsed, which cannot be interrupted: its strings are looked for."""
EACH: Final = 64
"""What a text costs beside its characters, in characters."""
_SHORT: Final = frozenset('\n\r\t\b\f"\\')
"""Characters that a JSON string can only contain as an escape of two characters."""
_STRING: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_FEW: Final = re.compile(r'(?:[^"\\]{0,1024}+"(?:[^"\\]{1,64}+|\\.){0,64}+"){1,64}+', re.DOTALL)
"""Some strings that are not long, with what stands before each of them."""
_SIGNS: Final = re.compile(
    r'(?:\\u(?:[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|[0-9a-fA-F]{4})|\\[^u]|[^"\\]{1,64}+){1,1024}+', re.DOTALL
)
"""A part of a long string that ends neither within an escape nor between the halves of a surrogate pair."""


def weight(texts: Sequence[str]) -> int:
    """What it costs to decode the texts, in characters."""
    return sum(map(len, texts)) + EACH * len(texts)


def decoded(texts: Sequence[str]) -> Steps[list[str]]:
    """The decoded strings, including names, of those texts that are JSON, if they may differ from the text itself. Texts that are not JSON
    are skipped, as nobody decodes them. Raises GuardrailViolation for JSON that is nested too deeply."""
    found: list[str] = []
    done = 0
    for text in texts:
        if "\\" in text:
            done += len(text) + EACH
            if done > AT_ONCE:
                yield
                done = 0
            yield from _read(text, found, 0)
    return found


def _read(text: str, found: list[str], level: int) -> Steps[None]:
    start = text.lstrip(_SPACES)
    if not start.startswith(_OPENING):
        return
    if level == LEVELS:
        raise GuardrailViolation(f"A text has JSON within JSON more than {LEVELS} times.", code="guardrail")
    strings = _parsed(text) if len(text) <= AT_ONCE else (yield from _searched(text))
    done = 0
    for one in strings:
        found.append(one)
        done += EACH
        if "\\" in one:
            done += len(one)
            yield from _read(one, found, level + 1)
        if done > AT_ONCE:
            yield
            done = 0


def _parsed(text: str) -> list[str]:
    """The strings of a text that is JSON, in any order."""
    try:
        value = json.loads(text, object_pairs_hook=list, parse_int=_nothing, parse_float=_nothing, strict=False)
    except ValueError:
        return []
    except RecursionError:
        raise GuardrailViolation("A text has JSON that is nested too deeply to be read.", code="guardrail") from None
    found: list[str] = []
    coded = "\\u" in text or "\\/" in text
    waiting: list[Any] = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            if coded or not _SHORT.isdisjoint(one):
                found.append(one)
        elif isinstance(one, (list, tuple)):
            waiting.extend(one)
    return found


def _searched(text: str) -> Steps[list[str]]:
    """The strings with an escape of a long text. One that is broken is left out, and if it does not end, all behind it."""
    found: list[str] = []
    at = done = 0
    while True:
        match = _FEW.match(text, at)
        if match is not None:
            end = match.end()
            found += _said([one for one in _STRING.findall(match[0]) if "\\" in one])
        else:
            start = text.find('"', at)
            end = -1 if start < 0 else (yield from _long(text, start + 1, found))
            if end < 0:
                return found
        done += end - at + EACH
        at = end
        if done > AT_ONCE:
            yield
            done = 0


def _said(strings: list[str]) -> list[str]:
    """What strings of JSON say, but for those that are none."""
    try:
        all_of_them: list[str] = json.loads(f"[{','.join(strings)}]", strict=False)
    except ValueError:
        return [said for one in strings for said in _said([one])] if len(strings) > 1 else []
    return all_of_them


def _long(text: str, at: int, found: list[str]) -> Steps[int]:
    """Reads a string that begins here. Returns where to go on; -1: it does not end."""
    said: list[str] = []
    coded, whole = False, True
    while (match := _SIGNS.match(text, at)) is not None:
        part, at = match[0], match.end()
        if "\\" in part:
            coded = True
            one = _said([f'"{part}"'])
            whole = whole and bool(one)
            said += one
        else:
            said.append(part)
        yield
    if not text.startswith('"', at):
        return -1
    if coded and whole:
        found.append("".join(said))
    return at + 1


def _nothing(digits: str) -> None:
    """Numbers have no escapes."""
