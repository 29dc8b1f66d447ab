"""Whether two questions may share one answer, judged by their words. Similarity of embeddings alone is not enough for that. Pure.

The embeddings of "Is it safe?" and "Is it not safe?", or of "What is 2+2?" and "What is 2+3?", are close to each other. So a question is
first reduced to its facts, in their order: numbers and words for numbers, negations, words of direction and comparison, names, and all that
is not a plain word (`v1.2`, `C++`, `foo_bar`, `5%`). Only questions with equal facts are compared at all. Some texts cannot be judged and
match nothing: scripts other than Latin, several lines, invisible characters, long texts.

With `same`, all words are facts, except for a few without content (articles, courtesies, `do` and `is`). With `free`, `edited` separates
two questions that differ in a single inserted, omitted or replaced word: similarity hardly shows it, but it may be what matters.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from typing import Final, Literal, NamedTuple

Words = Literal["same", "free"]
MOST: Final = 500
"""The most characters of a question. Embeddings say little about longer texts, and models cut what is too long for them."""
_LATIN: Final = re.compile(r"[\x20-\x7e\u00a1-\u00ac\u00ae-\u024f\u1e00-\u1eff\u2010-\u2015\u2018-\u201e\u2026\u20a0-\u20bf\u2190-\u22ff]+")
_WORD: Final = re.compile(r"[^\W\d_]+(?:['-][^\W\d_]+)*")
_ASKING: Final = re.compile(r"\A(?:can|could|would|will) you (?:please )?(?:tell me )?", re.IGNORECASE)
"""Polite openings."""
_OUTSIDE: Final = ".,;:!?()\u2026\u00bf\u00a1"
_ENDS: Final = (".", "!", "?", ":")
_QUOTES: Final = frozenset('"`\u00ab\u00bb\u201c\u201d\u201e')
_APOSTROPHES: Final = {ord("\u2019"): "'", ord("\u2018"): "'", ord("\u2010"): "-", ord("\u2011"): "-"}


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_EMPTY: Final = _words("a an the please kindly thanks thank hi hello hey i me we you do does is are am tell")
"""Words that may differ between two questions with the same answer, where they are no names (`World War I`, `vitamin A`)."""
_ARTICLES: Final = _words("a an the")
_BEFORE_I: Final = _words(
    "am and as because before after can could did do does had have has how if may might must or shall should that was what when where "
    "which while who why will would"
)
"""Words after which `I` means the person who asks."""
_OPENERS: Final = _words(
    "what which who whom whose where when why how if can could would will shall should may might must did was were has have had there "
    "this that these those my your our his her its their it he she they give show explain describe list name find help let write "
    "summarize summarise translate define compare and but or also okay ok yes wie was wer wo wann warum welche welcher "
    "welches woher kann gibt comment que qui quand pourquoi quel quelle quels "
    "quelles combien como cosa chi dove quando cuando quien hoe wat wie waar wanneer waarom"
)
"""Words that begin sentences and are not names."""
_NEGATIONS: Final = _words(
    "no not never none nobody nothing nowhere neither nor without cannot hardly barely except unless less non lack lacks nicht kein "
    "keine keinen keinem keiner nie niemals ohne weder noch ne pas jamais rien aucun aucune sans ni nunca nada ninguno ninguna sin "
    "tampoco mai niente nessuno senza n\u00e3o nem sem nenhum niet geen nooit zonder inte ikke aldrig ingen utan uden nigdy bez"
)
_NUMBERS: Final = _words(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen "
    "nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred thousand million billion half quarter third double triple "
    "twice once dozen first second last next previous both all any some every each few many most least only more fewer"
)
_DIRECTIONS: Final = _words(
    "from to before after than with over under above below up down in out on off by into onto against between until since for via "
    "within during inside outside left right north south east west versus vs"
)
_FACTS: Final = _NEGATIONS | _NUMBERS | _DIRECTIONS | _words("must should may might can could will would shall was were did had has have")


class Question(NamedTuple):
    """facts: those of two questions must be equal. content: the words that carry content."""

    facts: tuple[str, ...]
    content: tuple[str, ...]


def read(text: str, words: Words) -> Question | None:
    """None for a text that cannot be judged."""
    if len(text) > MOST:
        return None
    text = unicodedata.normalize("NFC", text).translate(_APOSTROPHES).strip()
    if not text or _LATIN.fullmatch(text) is None:
        return None
    if not _QUOTES.isdisjoint(text):  # what is quoted counts to the letter
        return Question(("quoted", text), ())
    text = _ASKING.sub("", text)
    facts: list[str] = []
    content: list[str] = []
    begins, before = True, ""
    given_words = text.split()
    for number, given in enumerate(given_words, 1):
        token = given.strip(_OUTSIDE)
        if not token:
            begins = begins or given.endswith(_ENDS)
            continue
        if _WORD.fullmatch(token) is None:
            facts.append("=" + token)
            content.append(token)
        else:
            ends = number == len(given_words) or given[-1] in _OUTSIDE
            if not _is_empty(token, begins, ends, before):
                _take(token, begins, words, facts, content)
        begins, before = given.endswith(_ENDS), token.lower()
    return Question(tuple(facts), tuple(content)) if content else None


def edited(one: Question, other: Question) -> bool:
    """Whether the content of two questions differs in one word, which is put in, left out or replaced, or stands in another order."""
    left, right = Counter(one.content), Counter(other.content)
    missing, added = (left - right).total(), (right - left).total()
    return one.content != other.content if not (missing or added) else max(missing, added) == 1


def _is_empty(token: str, begins: bool, ends: bool, before: str) -> bool:
    """ends: nothing follows in its sentence, or a comma. before: the word before it."""
    word = token.lower()
    if word not in _EMPTY:
        return False
    if word == "i":
        return begins or before in _BEFORE_I
    if word in _ARTICLES and ends:
        return False
    return token == word or (begins and token[1:] == word[1:])


def _take(token: str, begins: bool, words: Words, facts: list[str], content: list[str]) -> None:
    """One word, which may be a contraction."""
    word = token.lower()
    for part in _parts(word):
        if part in _EMPTY and part != word:
            continue
        content.append(part)
        if words == "same" or part in _FACTS or _is_name(token, word, part, begins):
            facts.append(part)


def _is_name(token: str, word: str, part: str, begins: bool) -> bool:
    """Whether a word is written like a name. At the beginning of a sentence all are, so there only known words are none."""
    if token == word:
        return False
    capital = token[0] != word[0] and token[1:] == word[1:]
    return not (begins and capital and (part in _OPENERS or part in _EMPTY))


def _parts(word: str) -> tuple[str, ...]:
    """A contraction as its words."""
    if word in ("can't", "cannot"):
        return "can", "not"
    if word == "won't":
        return "will", "not"
    if word.endswith("n't"):
        return word[:-3], "not"
    stem, apostrophe, rest = word.partition("'")
    if rest == "s" and stem in _WITH_IS:
        return stem, "is"
    if apostrophe and rest in _SHORT:
        return stem, _SHORT[rest]
    return (word,)


_WITH_IS: Final = _words("what who where when why how it that there here")
_SHORT: Final = {"m": "am", "re": "are", "ll": "will", "ve": "have"}
