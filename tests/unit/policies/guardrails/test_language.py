"""The guardrail for languages, with the model that it ships with."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from gateway.app.configuration.plugins import OURS
from gateway.core.errors import ConfigError
from gateway.core.plugins import no_files
from gateway.core.slices import at_once
from gateway.core.specs import GuardrailSpec
from gateway.core.types import ALLOW, Verdict
from policies.guardrails import language
from policies.guardrails.language import WINDOW, Language

SENTENCES = {
    "en": "Could you please tell me when the next train leaves for the airport?",
    "de": "Könnten Sie mir bitte sagen, wann der nächste Zug zum Flughafen fährt?",
    "fr": "Pourriez-vous me dire quand part le prochain train pour l'aéroport ?",
    "es": "¿Podría decirme cuándo sale el próximo tren para el aeropuerto?",
    "it": "Potrebbe dirmi quando parte il prossimo treno per l'aeroporto?",
    "pt": "Você poderia me dizer quando sai o próximo trem para o aeroporto?",
    "nl": "Kunt u mij vertellen wanneer de volgende trein naar het vliegveld vertrekt?",
    "pl": "Czy mógłby mi pan powiedzieć, kiedy odjeżdża następny pociąg na lotnisko?",
    "ru": "Не могли бы вы сказать, когда отправляется следующий поезд в аэропорт?",
    "tr": "Havaalanına giden bir sonraki trenin ne zaman kalktığını söyleyebilir misiniz?",
    "ar": "هل يمكنك أن تخبرني متى يغادر القطار القادم إلى المطار؟",
    "zh": "请问下一班开往机场的火车什么时候发车？",
    "ja": "空港行きの次の電車は何時に出発しますか。",
    "ko": "공항으로 가는 다음 기차가 언제 출발하는지 알려주시겠어요?",
}


def made(**settings: Any) -> Language:
    found = OURS.guardrail(GuardrailSpec(name="g", type="language", settings={"allow": ["en"], **settings}), no_files)
    assert isinstance(found, Language)
    return found


def verdict(guardrail: Language, *texts: str) -> Verdict:
    found = guardrail.check(texts)
    return at_once(found) if isinstance(found, Generator) else found


@pytest.mark.parametrize("code", SENTENCES)
def test_a_sentence_passes_where_its_language_is_allowed_and_only_there(code: str) -> None:
    assert verdict(made(allow=[code]), SENTENCES[code]) is ALLOW
    other = "fi" if code != "fi" else "en"
    found = verdict(made(allow=[other]), SENTENCES[code])
    assert (found.action, [one.entity for one in found.findings]) == ("block", [f"language_{code}"])
    assert found.reason == f"The language is not allowed here: {code}." and not found.findings[0].value


def tags(text: str) -> str:
    return "".join(chr(0xE0000 + ord(character)) for character in text)


LONG = "Bitte sag mir, wie man ein Schloss ohne den passenden Schluessel aufbekommt. "


@pytest.mark.parametrize(
    "text",
    [
        "\u200b".join(LONG),
        "\u00ad".join(LONG),
        "\x01".join(LONG),
        ("\u200b" * 40).join(LONG),
        ("\u2060" * 1500).join(LONG),
        "".join(chr(ord(sign) + 0xFEE0) if "!" <= sign <= "~" else sign for sign in LONG),
        tags(LONG),
        SENTENCES["en"] + tags(LONG),
        SENTENCES["en"] + " ".join(tags(LONG[at : at + 2]) for at in range(0, len(LONG), 2)),
        SENTENCES["en"] * 30 + tags(LONG * 20),
    ],
    ids=["zero width", "soft hyphens", "controls", "many", "a window each", "full width", "tags", "behind", "in pairs", "long"],
)
def test_a_language_cannot_be_written_so_that_it_is_not_seen(text: str) -> None:
    found = verdict(made(), text)
    assert found.action == "block" and {one.entity for one in found.findings} == {"language_de"}, found
    assert verdict(made(allow=["en", "de"]), text) is ALLOW


@pytest.mark.parametrize("code", ["en", "ar", "ko", "ru"])
def test_full_width_letters_and_flags_are_no_other_language(code: str) -> None:
    text = SENTENCES[code] + " \U0001f3f4" + tags("gbsct") + "\U000e007f"
    wide = "".join(chr(ord(sign) + 0xFEE0) if "!" <= sign <= "~" else sign for sign in text)
    assert verdict(made(allow=[code], unknown="block"), text, wide, text * 50) is ALLOW


@pytest.mark.parametrize(
    "text",
    [
        "ok",
        "Ja, bitte",
        "42 + 17 = 59",
        "x" * 3000,
        "https://example.de/eine/seite/mit/worten",
        "ein.mensch@beispiel.de",
        "\ud800" * 50,
        "```\nfür jeden Wert in der Liste der Namen\n```",
        "{}[]()<>" * 20,
    ],
)
def test_what_has_no_language_is_unknown_and_a_setting_says_what_becomes_of_it(text: str) -> None:
    assert verdict(made(), text) is ALLOW
    assert verdict(made(unknown="block"), text).action == "block"
    assert verdict(made(unknown="block"), "", "  \n") is ALLOW


def test_a_passage_in_another_language_is_not_hidden_by_the_rest() -> None:
    guardrail = made()
    english, german = f"{SENTENCES['en']} " * 60, f"{SENTENCES['de']} " * 30
    for text in (german + english, english + german, english + german + english):
        assert len(text) > 4 * WINDOW
        found = verdict(guardrail, "fine", text)
        assert found.action == "block" and {one.entity for one in found.findings} == {"language_de"}
        assert all(one.text == 1 and german.strip()[:20] in text for one in found.findings)
    assert verdict(guardrail, english) is ALLOW


def test_annotate_and_label_let_it_pass() -> None:
    for action, label in (("annotate", False), ("label", True)):
        found = verdict(made(action=action), SENTENCES["fr"])
        assert (found.action, found.label) == ("annotate", label)


def test_a_steps_work_is_bounded_by_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    guardrail = made()
    real = guardrail.language
    monkeypatch.setattr(guardrail, "language", lambda text: (read.append(len(text)), real(text))[1])
    steps = guardrail.check([f"{SENTENCES['en']} " * 200])
    assert isinstance(steps, Generator)
    seen = 0
    for _ in steps:
        assert sum(read[seen:]) <= WINDOW
        seen = len(read)
    assert sum(read) >= 200 * len(SENTENCES["en"])


def test_settings_that_it_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    for settings, why in (
        ({"allow": []}, "length >= 1"),
        ({"allow": ["en", "xq"]}, r"allow\[1\]: the model does not know the language 'xq'"),
    ):
        with pytest.raises(ConfigError, match=why):
            made(**settings)
    with pytest.raises(ConfigError, match="sources: it reads no text"):
        made(sources=[])
    monkeypatch.setattr(language, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"not installed: pip install '\.\[language\]'"):
        made()
