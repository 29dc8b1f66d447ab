"""The guardrail `secrets`: keys, tokens and passwords in requests, answers and streams are blocked, masked or replaced by a keyed hash."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta, field

from gateway.core.plugins import Context
from gateway.core.pseudonyms import PseudonymSettings
from gateway.core.secret import Secret
from gateway.core.specs import Spec
from policies.guardrails.pseudonyms.guardrail import entity_guardrail
from policies.guardrails.recognition.actions import MAX_ALLOWED, Actions
from policies.guardrails.recognition.finder import Finder
from policies.guardrails.recognition.guardrail import EntityGuardrail, check_allowed, key_for
from policies.guardrails.recognition.recogniser import Recogniser
from policies.guardrails.secrets import context as in_context
from policies.guardrails.secrets import providers

ACTIONS: Final = ("block", "mask", "hash", "pseudonym", "annotate", "label", "allow")
RECOGNISERS: Final[tuple[Recogniser, ...]] = (*providers.RECOGNISERS, *in_context.RECOGNISERS)
MOST: Final = 1000
"""Secrets in one request. Each costs some microseconds: a text of nothing else would hold up all other requests."""
ENTITIES: Final = tuple(dict.fromkeys(one.entity for one in RECOGNISERS))


class SecretsSettings(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """action: for every kind of secret that `entities` gives no other. allow: texts that pass. hash_key: of the action `hash`, which needs
    one. pseudonyms: of the action `pseudonym`."""

    action: Literal["block", "mask", "hash", "pseudonym", "annotate", "label"] = "block"
    entities: dict[str, str] = field(default_factory=dict)
    allow: Annotated[tuple[str, ...], Meta(max_length=MAX_ALLOWED)] = ()
    hash_key: Secret | None = None
    pseudonyms: PseudonymSettings = PseudonymSettings()


def build(settings: SecretsSettings, context: Context) -> EntityGuardrail:
    """Raises ValueError with one sentence."""
    for entity, action in settings.entities.items():
        if entity not in ENTITIES:
            raise ValueError(f"entities.{entity}: there is no such kind of secret; known: {', '.join(ENTITIES)}")
        if action not in ACTIONS:
            raise ValueError(f"entities.{entity}: there is no action {action!r}; use one of {', '.join(ACTIONS)}")
    check_allowed(settings.allow)
    actions = {**dict.fromkeys(ENTITIES, settings.action), **settings.entities}
    acting = {entity: action for entity, action in actions.items() if action != "allow"}
    finder = Finder([one for one in RECOGNISERS if one.entity in acting])
    acts = Actions(context.name, finder, acting, key_for(settings.hash_key, acting), settings.allow, "secrets", MOST)
    return entity_guardrail(acts, settings.pseudonyms)
