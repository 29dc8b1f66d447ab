"""What a grammar would cost llama.cpp, told before it sees it.

llama.cpp follows a grammar by keeping every way in which the text so far can be read (a *stack* of what is still expected) and
walks all of them for each token it considers, on the thread that decodes for everybody. A grammar of fifty characters can have
more ways than there are atoms, so a client's grammar is read here first and refused when

- one place can be reached in more than `MAX_WAYS` ways without a character in between, or in endlessly many (left recursion, a
  repetition of something that may be empty): counted exactly, and
- texts exist that can be read in more than `MAX_WAYS` ways: looked for from the start of every rule, always adding the character
  that leaves most ways open. A search with a budget: what it overlooks the sampler's own limit catches (sampling.py).
"""

from __future__ import annotations

import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from threading import Lock
from typing import Any

MAX_WAYS = 1000
"""As many as the values of an `enum` may be."""
MAX_CHARACTERS = 128 * 1024
"""Longest grammar, those made of schemas included: reading this much takes a second."""
MAX_DEPTH = 48
"""Deepest nesting of groups: llama.cpp's parser recurses."""
MAX_NESTING = 2 * MAX_DEPTH
"""Deepest nesting of groups and repetitions together: what reads them here recurses, too."""
MAX_REPEAT = 1000
MAX_ELEMENTS = 2_000_000
"""The most elements (characters, ranges, references) of all rules once repetitions are written out, as llama.cpp does. A sequence may keep
40 MiB for them."""
STEPS = 400
"""Characters that the search for ambiguous texts goes on for."""
BEAM = 2
WORK = 12_000
"""Stacks that one grammar's search may look at."""
SAMPLED = 32
"""Terminals of a set of stacks that the search takes its characters from."""

_BLANK = r"[ \t\r\n]*"
_TOKEN = re.compile(
    rf"{_BLANK}(?:#[^\n]*{_BLANK})*(?:(?P<define>::=)|(?P<name>[A-Za-z0-9-]+)"
    r'|"(?P<text>(?:[^"\\]|\\.)*)"|\[(?P<set>(?:[^\]\\]|\\.)*)\]'
    rf"|\{{{_BLANK}(?P<low>[0-9]{{1,9}}){_BLANK}(?P<comma>,?){_BLANK}(?P<high>[0-9]{{0,9}}){_BLANK}\}}"
    r"|(?P<mark>[|()*+?.])|(?P<end>\Z))",
    re.DOTALL,
)
_CHARACTER = re.compile(r"\\x([0-9a-fA-F]{2})|\\u([0-9a-fA-F]{4})|\\U([0-9a-fA-F]{8})|\\(.)|(.)", re.DOTALL)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}
_TOP = 0x10FFFF


class GrammarRefused(Exception):
    """The grammar is not well-formed, or costs too much; one sentence says which."""


class Terminal:
    """One character out of some ranges, or out of none of them."""

    __slots__ = ("negated", "ranges")

    def __init__(self, ranges: list[tuple[int, int]], negated: bool = False) -> None:
        self.ranges, self.negated = ranges, negated

    def matches(self, character: int) -> bool:
        return any(low <= character <= high for low, high in self.ranges) != self.negated

    def samples(self) -> Iterator[int]:
        """Characters that show where two terminals overlap: every range's first."""
        if not self.negated:
            yield from (low for low, _ in self.ranges)
            return
        yield next(c for c in (97, *(high + 1 for _, high in self.ranges), 0) if self.matches(c) or c == 0)


class Group:
    """Alternatives, each a sequence. depth: groups and repetitions within each other, this one included."""

    __slots__ = ("alternatives", "depth")

    def __init__(self, alternatives: list[list[Item]]) -> None:
        self.alternatives = alternatives
        self.depth = 1 + max((_depth(item) for sequence in alternatives for item in sequence), default=0)


class Repeat:
    """An item `low` to `high` times (None: no end)."""

    __slots__ = ("depth", "high", "item", "less", "low")

    def __init__(self, item: Item, low: int, high: int | None) -> None:
        self.item, self.low, self.high = item, low, high
        self.depth = 1 + _depth(item)
        self.less: Repeat | None = None

    def next(self) -> Repeat:
        """What is left after one more; always the same object, so that stacks can be compared."""
        if self.high is None and self.low == 0:
            return self
        if self.less is None:
            self.less = Repeat(self.item, max(0, self.low - 1), None if self.high is None else self.high - 1)
        return self.less


Item = Terminal | Group | Repeat | str


def _depth(item: Item) -> int:
    return item.depth if isinstance(item, Group | Repeat) else 0


# --- reading


class _Parser:
    """Reads GBNF (llama.cpp's grammars/README.md). Line ends are not looked at: llama.cpp reads the text again, strictly."""

    def __init__(self, text: str) -> None:
        self._tokens = list(_tokens(text))
        self._at = 0
        self._elements = 0

    def rules(self) -> dict[str, Group]:
        found: dict[str, Group] = {}
        while self._kind() != "end":
            if self._kind() != "name" or self._kind(1) != "define":
                raise GrammarRefused("the grammar does not parse: a rule begins with name ::=")
            name = self._tokens[self._at][1]
            self._at += 2
            found[name] = self._alternatives(0)
        for name in _references(found.values()):
            if name not in found:
                raise GrammarRefused(f"the grammar has no rule {name[:64]}")
        if "root" not in found:
            raise GrammarRefused("the grammar has no rule root")
        return found

    def _kind(self, ahead: int = 0) -> str:
        at = self._at + ahead
        return self._tokens[at][0] if at < len(self._tokens) else "end"

    def _alternatives(self, depth: int) -> Group:
        if depth > MAX_DEPTH:
            raise GrammarRefused(f"the grammar is nested deeper than {MAX_DEPTH}")
        alternatives = [self._sequence(depth)]
        while self._kind() == "|":
            self._at += 1
            alternatives.append(self._sequence(depth))
        return Group(alternatives)

    def _sequence(self, depth: int) -> list[Item]:
        items: list[Item] = []
        last = 0  # elements of the last item
        while True:
            kind, value = self._tokens[self._at]
            if kind in ("end", "|", ")") or (kind == "name" and self._kind(1) == "define"):
                return items
            self._at += 1
            if kind == "(":
                item: Item = self._alternatives(depth + 1)
                last = 1
                if self._kind() != ")":
                    raise GrammarRefused("the grammar does not parse: a bracket is not closed")
                self._at += 1
            elif kind == "repeat":
                if not items:
                    raise GrammarRefused("the grammar does not parse: nothing stands before a repetition")
                items[-1] = repeat = Repeat(items[-1], *value)
                if repeat.depth > MAX_NESTING:
                    raise GrammarRefused(f"the grammar is nested deeper than {MAX_NESTING}")
                last = self._repeated(last, *value)
                continue
            elif kind == "define":
                raise GrammarRefused("the grammar does not parse: ::= without a name")
            else:
                item = value
                last = _elements(value)
                self._elements += last
            items.append(item)

    def _repeated(self, elements: int, low: int, high: int | None) -> int:
        """Counts copies of an item with so many elements; each that may be left out is a rule of its own. Returns those of `low` copies."""
        optional = 1 if high is None else high - low
        self._elements += (elements + 4) * optional + elements * low
        if self._elements > MAX_ELEMENTS:
            raise GrammarRefused(f"the grammar has more than {MAX_ELEMENTS} elements once its repetitions are written out")
        return elements * max(low, 1)


def _elements(item: Item) -> int:
    """The number of elements of a name, a set, or a text (which is a group of characters)."""
    if isinstance(item, Terminal):
        return 2 * len(item.ranges) + 1
    return len(item.alternatives[0]) if isinstance(item, Group) else 1


def _tokens(text: str) -> Iterator[tuple[str, Any]]:
    at = 0
    while True:
        match = _TOKEN.match(text, at)
        if match is None:
            raise GrammarRefused(f"the grammar does not parse at character {at}")
        at, kind = match.end(), match.lastgroup
        if kind == "end":
            yield "end", None
            return
        if kind in ("name", "define"):
            yield kind, match["name"]
        elif kind == "text":
            characters = [Terminal([(c, c)]) for c in _characters(match["text"])]
            yield "item", characters[0] if len(characters) == 1 else Group([list(characters)])
        elif kind == "set":
            yield "item", _set(match["set"])
        elif match["mark"] is None:
            yield "repeat", _bounds(match["low"], match["comma"], match["high"])
        elif match["mark"] == ".":
            yield "item", Terminal([], negated=True)
        elif match["mark"] in "*+?":
            yield "repeat", {"*": (0, None), "+": (1, None), "?": (0, 1)}[match["mark"]]
        else:
            yield match["mark"], None


def _bounds(low: str, comma: str, high: str) -> tuple[int, int | None]:
    least = int(low)
    most = int(high) if high else (None if comma else least)
    if max(least, most or 0) > MAX_REPEAT:
        raise GrammarRefused(f"the grammar has a repetition of more than {MAX_REPEAT}")
    if most is not None and most < least:
        raise GrammarRefused("the grammar has a repetition whose end is before its beginning")
    return least, most


def _characters(text: str) -> list[int]:
    found = []
    for match in _CHARACTER.finditer(text):
        code = match[1] or match[2] or match[3]
        character = _ESCAPES.get(match[4], match[4]) if match[4] else match[5]
        found.append(min(int(code, 16), _TOP) if code else ord(character))
    return found


def _set(text: str) -> Terminal:
    negated = text.startswith("^")
    spelled = list(_CHARACTER.finditer(text, 1 if negated else 0))
    values = _characters(text[1:] if negated else text)
    ranges, at = [], 0
    while at < len(values):
        if at + 2 < len(values) and spelled[at + 1][5] == "-":
            ranges.append((values[at], values[at + 2]))
            at += 3
        else:
            ranges.append((values[at], values[at]))
            at += 1
    return Terminal(ranges, negated)


def _references(items: Iterable[Item]) -> Iterator[str]:
    for item in items:
        if isinstance(item, str):
            yield item
        elif isinstance(item, Group):
            for sequence in item.alternatives:
                yield from _references(sequence)
        elif isinstance(item, Repeat):
            yield from _references((item.item,))


# --- counting


class _Missing(Exception):
    def __init__(self, name: str) -> None:
        self.name = name


class _Ways:
    """For each item: in how many ways it can begin with a character, and in how many it can be empty."""

    def __init__(self, rules: dict[str, Group]) -> None:
        self._rules = rules
        self._known: dict[str, tuple[int, int]] = {}

    def check(self) -> None:
        for name in self._rules:
            waiting = [name]
            while waiting:  # not a recursion: rules can be chained by the thousand
                if waiting[-1] in self._known:
                    waiting.pop()
                    continue
                try:
                    self._known[waiting[-1]] = _bounded(self._item(self._rules[waiting[-1]]))
                except _Missing as missing:
                    if missing.name in waiting:
                        raise GrammarRefused(f"the rule {missing.name[:64]} of the grammar is left-recursive") from None
                    waiting.append(missing.name)

    def _item(self, item: Item) -> tuple[int, int]:
        if isinstance(item, Terminal):
            return 1, 0
        if isinstance(item, str):
            if item not in self._known:
                raise _Missing(item)
            return self._known[item]
        if isinstance(item, Group):
            both = [self._sequence(sequence) for sequence in item.alternatives]
            return _bounded((sum(begin for begin, _ in both), sum(empty for _, empty in both)))
        begin, empty = self._item(item.item)
        if empty and item.high is None:
            raise GrammarRefused("the grammar repeats something that may be empty, without end")
        begins, empties = 0, 1
        for _ in range((item.high or 0) - item.low if item.high is not None else 1):
            begins, empties = _bounded((begin + empty * begins, 1 + empty * empties))
        for _ in range(item.low):
            begins, empties = _bounded((begin + empty * begins, empty * empties))
            if not empty:
                break
        return begins, empties

    def _sequence(self, sequence: list[Item]) -> tuple[int, int]:
        begins, empties = 0, 1
        for item in sequence:
            if not empties:
                break
            begin, empty = self._item(item)
            begins, empties = _bounded((begins + empties * begin, empties * empty))
        return begins, empties


def _bounded(ways: tuple[int, int]) -> tuple[int, int]:
    if max(ways) > MAX_WAYS:
        raise GrammarRefused(f"one place of the grammar can be reached in more than {MAX_WAYS} ways")
    return ways


# --- searching


class _Search:
    """Looks for a text that can be read in very many ways. A stack is a number; equal stacks have the same."""

    def __init__(self, rules: dict[str, Group]) -> None:
        self._rules = rules
        self._work = WORK
        self._numbers: dict[tuple[Item, int], int] = {}
        self._stacks: list[tuple[Item, int]] = [("", 0)]  # 0: the end of the text

    def run(self) -> None:
        """Raises GrammarRefused when it finds one."""
        for name in self._rules:
            if self._work <= 0:
                return
            self._from_rule(name)

    def _from_rule(self, name: str) -> None:
        beam = [self._advanced([self._push(name, 0)])]
        for _ in range(STEPS):
            following = [self._after(stacks, character) for stacks in beam for character in self._telling(stacks)]
            beam = sorted((stacks for stacks in following if stacks), key=len, reverse=True)[:BEAM]
            if not beam or self._work <= 0:
                return

    def _push(self, item: Item, rest: int) -> int:
        number = self._numbers.get((item, rest))
        if number is None:
            number = self._numbers[item, rest] = len(self._stacks)
            self._stacks.append((item, rest))
        return number

    def _after(self, stacks: set[int], character: int) -> set[int]:
        tops = (self._stacks[stack] for stack in stacks)
        return self._advanced([rest for item, rest in tops if isinstance(item, Terminal) and item.matches(character)])

    def _advanced(self, waiting: list[int]) -> set[int]:
        """All ways to the next characters. Raises GrammarRefused when there are too many."""
        found: set[int] = set()
        seen, most = 0, 8 * MAX_WAYS + len(waiting)
        while waiting:
            stack = waiting.pop()
            seen += 1
            item, rest = self._stacks[stack]
            if stack == 0 or isinstance(item, Terminal):
                found.add(stack)
            else:
                waiting += self._opened(item, rest)
            if len(found) > MAX_WAYS or seen > most:
                raise GrammarRefused(f"the grammar is too ambiguous: some texts can be read in more than {MAX_WAYS} ways")
        self._work -= seen
        return found

    def _opened(self, item: Item, rest: int) -> list[int]:
        if isinstance(item, Repeat):
            once = self._push(item.item, self._push(item.next(), rest) if item.high is None or item.high > 1 else rest)
            if item.low:
                return [once]
            return [rest] if item.high == 0 else [rest, once]
        group = self._rules[item] if isinstance(item, str) else item
        assert isinstance(group, Group)
        opened = []
        for sequence in group.alternatives:
            stack = rest
            for part in reversed(sequence):
                stack = self._push(part, stack)
            opened.append(stack)
        return opened

    def _telling(self, stacks: set[int]) -> list[int]:
        """The few characters with which most stacks go on."""
        terminals = Counter(item for item, _ in (self._stacks[stack] for stack in stacks) if isinstance(item, Terminal))
        characters = {character for terminal in list(terminals)[:SAMPLED] for character in terminal.samples()}
        self._work -= len(characters)
        if len(characters) <= 1:
            return list(characters)

        def weight(character: int) -> int:
            return sum(count for terminal, count in terminals.items() if terminal.matches(character))

        return sorted(characters, key=weight, reverse=True)[:3]


Check = Callable[[str], str | None]
"""`refusal`, or one that remembers."""


def rules_of(text: str) -> dict[str, Group]:
    """A grammar's rules by their names, `root` among them. Raises GrammarRefused where it does not parse."""
    return _Parser(text).rules()


def refusal(text: str) -> str | None:
    """Why a grammar is refused, or None. Pure."""
    if len(text) > MAX_CHARACTERS:
        return f"the grammar is longer than {MAX_CHARACTERS} characters"
    if "\x00" in text:
        return "the grammar holds a NUL character"
    try:
        rules = rules_of(text)
        _Ways(rules).check()
        _Search(rules).run()
    except GrammarRefused as refused:
        return str(refused)
    return None


class Refusals:
    """What `refusal` said: clients ask with the same grammar again and again, and a check may take 50 ms and more.

    Each domain of callers has its own memory. So the time that a check takes tells nobody which grammars others use, and nobody can crowd
    out what is remembered for others. Bounded: digests and sentences, EACH for a domain, DOMAINS of them. Thread-safe.
    """

    EACH = 32
    DOMAINS = 256

    def __init__(self) -> None:
        self._domains: OrderedDict[bytes, OrderedDict[bytes, str | None]] = OrderedDict()
        self._lock = Lock()

    def of(self, domain: bytes) -> Check:
        """The check for callers of a domain (b"": those that share everything)."""

        def check(text: str) -> str | None:
            digest = sha256(text.encode("utf-8", "surrogatepass")).digest()
            with self._lock:
                known = self._domains.get(domain)
                if known is not None and digest in known:
                    known.move_to_end(digest)
                    self._domains.move_to_end(domain)
                    return known[digest]
            said = refusal(text)
            with self._lock:
                known = self._domains.setdefault(domain, OrderedDict())
                known[digest] = said
                self._domains.move_to_end(domain)
                if len(known) > self.EACH:
                    known.popitem(last=False)
                if len(self._domains) > self.DOMAINS:
                    self._domains.popitem(last=False)
            return said

        return check
