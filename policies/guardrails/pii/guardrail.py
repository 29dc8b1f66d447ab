"""The guardrail `pii`: personal data in requests, answers and streams is blocked, masked or replaced by a keyed hash."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, field

from gateway.core.plugins import Context
from gateway.core.pseudonyms import PseudonymSettings
from gateway.core.secret import Secret
from gateway.core.specs import Spec
from policies.guardrails.pii.table import ENTITIES, RECOGNISERS
from policies.guardrails.pseudonyms.guardrail import entity_guardrail
from policies.guardrails.recognition.actions import MAX_ALLOWED, Actions
from policies.guardrails.recognition.finder import Finder
from policies.guardrails.recognition.guardrail import EntityGuardrail, check_allowed, key_for
from policies.guardrails.recognition.recogniser import Recogniser

ACTIONS: Final = ("block", "mask", "hash", "pseudonym", "annotate", "label", "allow")


class CustomEntity(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A recogniser of the configuration's own. pattern: see docs/guardrails.md. context: words of which one must stand in the 48
    characters before. longest: the most characters that a match may have; without it what the pattern says."""

    pattern: Annotated[str, Meta(min_length=1, max_length=2000)]
    context: tuple[str, ...] = ()
    longest: Annotated[int, Meta(ge=1, le=512)] | None = None


class PiiSettings(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """entities: the action for each entity; without any, all are masked. custom: more entities by name, which `entities` must give an
    action. allow: texts that pass. hash_key: of the action `hash`, which needs one.
    pseudonyms: of the action `pseudonym`. locales: languages; of the numbers that a country issues, only those of countries that speak one
    of them are looked for; without any, all."""

    entities: dict[str, str] = field(default_factory=dict)
    custom: dict[str, CustomEntity] = field(default_factory=dict)
    allow: Annotated[tuple[str, ...], Meta(max_length=MAX_ALLOWED)] = ()
    hash_key: Secret | None = None
    pseudonyms: PseudonymSettings = PseudonymSettings()
    locales: Annotated[tuple[str, ...], Meta(max_length=64)] = ()


def build(settings: PiiSettings, context: Context) -> EntityGuardrail:
    """Raises ValueError with one sentence."""
    recognisers = (*(_custom(name, custom) for name, custom in settings.custom.items()), *_spoken(settings))
    known = tuple(dict.fromkeys(one.entity for one in recognisers))
    actions = dict(settings.entities) or dict.fromkeys(known, "mask")
    for entity, action in actions.items():
        if entity in ("person", "location"):
            raise ValueError(
                f"entities.{entity}: names and places have no pattern; a guardrail of type entities finds them with a classifier"
            )
        if entity not in known:
            raise ValueError(f"entities.{entity}: there is no such entity; known: {', '.join(known)}")
        if action not in ACTIONS:
            raise ValueError(f"entities.{entity}: there is no action {action!r}; use one of {', '.join(ACTIONS)}")
    for name in settings.custom:
        if name not in actions:
            raise ValueError(f"custom.{name}: entities gives it no action")
    check_allowed(settings.allow)
    acting = {entity: action for entity, action in actions.items() if action != "allow"}
    finder = Finder([one for one in recognisers if one.entity in acting])
    return entity_guardrail(Actions(context.name, finder, acting, key_for(settings.hash_key, actions), settings.allow), settings.pseudonyms)


def _spoken(settings: PiiSettings) -> tuple[Recogniser, ...]:
    """The recognisers of these locales. Raises ValueError for a language of which there is none."""
    known = sorted({language for one in RECOGNISERS for language in one.languages})
    for locale in settings.locales:
        if locale not in known:
            raise ValueError(f"locales: there is no locale {locale!r}; use some of {', '.join(known)}")
    if not settings.locales:
        return RECOGNISERS
    return tuple(one for one in RECOGNISERS if not one.languages or set(one.languages) & set(settings.locales))


def _custom(name: str, custom: CustomEntity) -> Recogniser:
    """Raises ValueError that names the entity."""
    if name in ENTITIES:
        raise ValueError(f"custom.{name}: there is a built-in entity of this name")
    if not (name.isascii() and name.replace("_", "a").isalnum() and name == name.lower() and len(name) <= 40):
        raise ValueError(f"custom.{name}: a name has up to 40 small letters, digits and underscores")
    made = Recogniser(name, custom.pattern, words=custom.context)
    try:
        longest = made.bounded.longest
    except ValueError as error:
        raise ValueError(f"custom.{name}: {error}") from None
    if any(not word.strip() for word in custom.context):
        raise ValueError(f"custom.{name}: an empty context word")
    if custom.longest is not None and longest > custom.longest:
        raise ValueError(f"custom.{name}: the pattern matches up to {longest} characters, more than longest: {custom.longest}")
    return made
