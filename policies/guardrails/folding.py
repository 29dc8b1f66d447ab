"""Text as matchers see it: without invisible characters, case and compatibility forms folded, all white space as spaces.

Two strings that people read as the same word fold to the same characters. Folding is NFKD (Unicode Standard Annex 15) around
full case folding. NFKD instead of NFKC, because a decomposed text only grows from left to right, so a stream can be folded character by
character. Comparing in NFKD finds exactly the matches that comparing in NFKC finds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from unicodedata import combining, normalize

import re2

# Default_Ignorable_Code_Point of the Unicode Character Database: soft hyphen, zero-width characters, directional marks,
# variation selectors, tags, fillers. And the control characters of C1 that are no white space.
_IGNORABLE_CLASS = (
    "\x80-\x84\x86-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff"
    "\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
IGNORABLE = re.compile(f"[{_IGNORABLE_CLASS}]")
MAX_HIDDEN = 32
"""No writing has more invisible characters in a row than this; more of them hide something."""
_TAG_CLASS = "\U000e0001\U000e0020-\U000e007f"
_TAG = re.compile(f"[{_TAG_CLASS}]")
_UNTAGGED: dict[int, str | None] = {0xE0001: None, 0xE007F: None, **{code: chr(code - 0xE0000) for code in range(0xE0020, 0xE007F)}}
_BLACK_FLAG = "\U0001f3f4"
_UNSEEN = "\u200b"
_HIDES = re2._re2.RE2(f"[{_IGNORABLE_CLASS}]{{{MAX_HIDDEN + 1}}}|[{_TAG_CLASS}]".encode(), re2.Options())
_HIDDEN_RUN = re.compile(f"{_BLACK_FLAG}?[{_IGNORABLE_CLASS}]+")
# The three flags that are written with tags: England, Scotland and Wales (emoji-sequences.txt of UTS 51); and their beginnings.
_TAGGED = [f"gb{of}\x7f".translate({code: 0xE0000 + code for code in range(128)}) for of in ("eng", "sct", "wls")]
_FLAG = re.compile(_BLACK_FLAG + "(?:" + "|".join(name[:end] for end in range(6, -1, -1) for name in _TAGGED) + ")")
_WIDE_SPACES = "\u0085\u1680\u2028\u2029"  # NFKD and ASCII_BYTES turn all other white space into spaces
YPOGEGRAMMENI = "\u0345"  # the one mark that case folding turns into a letter, once marks are in order

ASCII_BYTES = bytes((32 if chr(code).isspace() else ord(chr(code).lower())) if code < 128 else code for code in range(256))
"""For bytes.translate: ASCII folded in one pass."""
CONTROLS = bytes(code for code in (*range(1, 32), 127) if not chr(code).isspace())
"""Control characters of ASCII, which nobody sees and models read over. Without NUL, which parts the texts that are read together."""
CONTROL_CLASS = r"[\x01-\x08\x0e-\x1b\x7f]"
_CONTROLS_AND_NUL = b"\x00" + CONTROLS
_EACH_CONTROL = tuple(map(chr, CONTROLS))
_LONG = 256
"""From this many characters of ASCII on, a search of memory for each control character is quicker than a look at each character."""
_CONTROL = re2._re2.RE2(rb"[\x00-\x08\x0e-\x1b\x7f]", re2.Options())
_HIDDEN_AT = 0xE0F00
_TO_HIDDEN = {code: chr(_HIDDEN_AT + code) for code in (0, *CONTROLS)}
_FROM_HIDDEN = {_HIDDEN_AT + code: chr(code) for code in (0, *CONTROLS)}
ASCII_FOLD = {chr(code): chr(ASCII_BYTES[code]) for code in range(128)}

# Scripts that are written without spaces, and that of Korean, whose words carry particles: next to one of their characters a word may begin
# and end anywhere.
SPACELESS = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
BOUNDARY = rf"(?:[^\pL\pN\pM_]|[{SPACELESS}])"
"""A character that ends a word, in RE2's syntax. All others are word characters."""
_HIDDEN = re2._re2.RE2(IGNORABLE.pattern.encode(), re2.Options())
_BOUNDARY = re2._re2.RE2(BOUNDARY.encode(), re2.Options())
BEFORE = r"\C*?"
"""Before a pattern of RE2 that is only asked whether it matches, anchored at the start. A search from anywhere also looks for the place
where the match began, backwards; making ready for that takes a quarter of a second, once, among thousands of phrases."""
_ANCHOR_BOTH = re2._re2.RE2.Anchor.ANCHOR_BOTH
_UNANCHORED = re2._re2.RE2.Anchor.UNANCHORED
ASCII_WORD = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_")


def fold(text: str) -> str:
    """The folded text. Linear. What UTF-8 cannot hold (half a surrogate pair) folds to a question mark."""
    return encoded(text).decode()


def encoded(text: str) -> bytes:
    """The folded text in UTF-8, as RE2 reads it."""
    if text.isascii():
        return text.encode("ascii").translate(ASCII_BYTES, CONTROLS)
    if has_hidden(text):
        text = IGNORABLE.sub("", text)
    return _spaced(normalize("NFKD", normalize("NFKD", text).casefold()))


def has_hidden(text: str) -> bool:
    """Whether there is any invisible character."""
    data = text.encode("utf-8", "replace")
    return bool(_HIDDEN.Match(_UNANCHORED, data, 0, len(data))[0][0] >= 0)


def has_control(text: str) -> bool:
    """Whether there is any control character of ASCII, NUL too, that is no white space."""
    if len(text) >= _LONG and text.isascii():
        return "\x00" in text or any_control(text)
    if text.isprintable():
        return False
    if text.isascii():
        data = text.encode("ascii")
        return len(data.translate(None, _CONTROLS_AND_NUL)) < len(data)
    data = text.encode("utf-8", "replace")
    return bool(_CONTROL.Match(_UNANCHORED, data, 0, len(data))[0][0] >= 0)


def any_control(text: str) -> bool:
    """Whether there is any of CONTROLS."""
    return any(control in text for control in _EACH_CONTROL)


def plain(text: str) -> bytes | None:
    """The bytes of a text of ASCII in which none of CONTROLS is; else None."""
    if not text.isascii():
        return None
    data = text.encode("ascii")
    hides = any_control(text) if len(data) >= _LONG else len(data.translate(None, CONTROLS)) < len(data)
    return None if hides else data


def has_nul(texts: Sequence[str]) -> bool:
    """Whether any text holds what parts texts that are read together."""
    return any("\x00" in text for text in texts)


def veiled(text: str) -> str:
    """A text that `has_control`, with an invisible character beyond ASCII for each control character: so all that is known of invisible
    characters holds for these, and every place stays what it is. `unveiled` takes it back."""
    return text.translate(_TO_HIDDEN)


def unveiled(text: str) -> str:
    """The text that `veiled` was given, or a part of it."""
    return text.translate(_FROM_HIDDEN)


def hidden_run(text: str) -> bool:
    """Whether there are more than MAX_HIDDEN invisible characters in a row, or letters of the tag block that belong to no flag: people do
    not see these, and models read them."""
    return not text.isascii() and _may_hide(text) and trim_hidden(text, "")[2]


def _spaced(folded: str) -> bytes:
    for space in _WIDE_SPACES:
        if space in folded:
            folded = folded.replace(space, " ")
    return folded.encode("utf-8", "replace").translate(ASCII_BYTES, CONTROLS)


@lru_cache(maxsize=65536)
def fold_character(character: str) -> str:
    """The folded form of one character, before its marks are put in order (`in_order`); "" if it is invisible."""
    if IGNORABLE.match(character):
        return ""
    decomposed = normalize("NFKD", character)
    return _spaced("".join(one if one == YPOGEGRAMMENI else normalize("NFKD", one.casefold()) for one in decomposed)).decode()


def is_word(character: str) -> bool:
    """Whether a folded character is a word character, by the tables that the patterns use."""
    return character in ASCII_WORD if character < "\x80" else _is_word(character)


@lru_cache(maxsize=65536)
def _is_word(character: str) -> bool:
    data = character.encode("utf-8", "replace")
    return bool(_BOUNDARY.Match(_ANCHOR_BOTH, data, 0, len(data))[0][0] < 0)


def in_order(marks: list[str]) -> list[str]:
    """Combining marks in canonical order (stable by combining class), with the folding that needs this order."""
    ordered = sorted(marks, key=combining) if len(marks) > 1 else marks
    return ["\u03b9" if mark == YPOGEGRAMMENI else mark for mark in ordered]


def trim_hidden(text: str, before: str) -> tuple[str, str, bool]:
    """Cuts every run of invisible characters to MAX_HIDDEN, and removes letters of the tag block that are no part of a flag. `before`: the
    second of the values that the text before gave; "" if there was none.

    Returns the text, what the next one needs to know (as many invisible characters as are at the end, and a flag that may go on), and
    whether anything was cut. How a text is cut into pieces makes no difference.
    """
    if text.isascii():
        return text, "" if text else before, False
    if (len(before) + len(text) <= MAX_HIDDEN and text.isprintable()) or not (before or _may_hide(text)):
        return text, _ending(before + text), False
    text = before + text
    pieces: list[str] = []
    position, ending, cut = 0, "", False
    for match in _HIDDEN_RUN.finditer(text):
        start, end = match.span()
        run = text[start:end]
        kept, goes_on = _trimmed(run)
        pieces += text[position:start], kept
        position = end
        cut = cut or len(kept) < len(run)
        if end == len(text):
            ending = kept if goes_on else _UNSEEN * (len(kept) - (kept[:1] == _BLACK_FLAG))
    if position < len(text):
        ending = _BLACK_FLAG if text[-1] == _BLACK_FLAG else ""
        pieces.append(text[position:])
    return "".join(pieces)[len(before) :], ending, cut


def tagged(text: str) -> Iterator[tuple[int, int, str]]:
    """The runs of invisible characters with letters of the tag block that belong to no flag: start, end, and the ASCII that these say."""
    for match in _HIDDEN_RUN.finditer(text):
        run = match.group()
        letters = _TAG.findall(run, _flag_end(run))
        if letters:
            yield match.start(), match.end(), "".join(letters).translate(_UNTAGGED)


def flag_around(text: str, place: int) -> int:
    """A place in a text, or where the flag begins in whose middle it may be."""
    start = text.rfind(_BLACK_FLAG, max(0, place - 6), place)
    return place if start < 0 else start


def _may_hide(text: str) -> bool:
    data = text.encode("utf-8", "replace")
    return bool(_HIDES.Match(_UNANCHORED, data, 0, len(data))[0][0] >= 0)


def _ending(text: str) -> str:
    """The invisible characters at the end of a text, with a black flag in front of them."""
    end = len(text)
    while end and IGNORABLE.match(text, end - 1):
        end -= 1
    return text[end - 1 if end and text[end - 1] == _BLACK_FLAG else end :]


def _trimmed(run: str) -> tuple[str, bool]:
    """What stays of a run of invisible characters, and whether it may still go on as a flag."""
    end = _flag_end(run)
    rest = _TAG.sub("", run[end:])
    return (run[:end] + rest)[: MAX_HIDDEN + (end > 0)], end == len(run)


def _flag_end(run: str) -> int:
    flag = _FLAG.match(run)
    return flag.end() if flag else 0
