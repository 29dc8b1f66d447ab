"""A guardrail that gives pseudonyms: the settings of the action, and the sessions that outlive a request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

from msgspec import Meta

from gateway.core.pseudonyms import Restores
from gateway.core.specs import Spec, Timeout
from gateway.core.types import Principal
from policies.guardrails.pseudonyms.layer import PseudonymLayer
from policies.guardrails.pseudonyms.restoring import Forms
from policies.guardrails.pseudonyms.vault import Vault
from policies.guardrails.recognition.actions import PSEUDONYM, Actions
from policies.guardrails.recognition.guardrail import EntityGuardrail


class PseudonymSettings(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """scope: how long a value keeps its pseudonym. restore: whether values are put back after or before the guardrails that read the
    answer. ttl: a session's, since it was last used. sessions, values (of one session), bytes (of all sessions): the bounds of what is
    kept."""

    scope: Literal["request", "session"] = "request"
    restore: Restores = "after"
    ttl: Timeout = 1800.0
    sessions: Annotated[int, Meta(ge=1, le=1_000_000)] = 10_000
    values: Annotated[int, Meta(ge=1, le=100_000)] = 1000
    bytes: Annotated[int, Meta(ge=4096, le=1 << 34)] = 16 * 1024 * 1024


class PseudonymGuardrail(EntityGuardrail):
    """Implements gateway.core.pseudonyms.Pseudonymous. By itself, as it reads answers, it masks what would get a pseudonym."""

    def __init__(self, actions: Actions, settings: PseudonymSettings) -> None:
        super().__init__(actions)
        self._settings = settings
        self._forms = Forms(actions.with_action(PSEUDONYM))
        self.vault = Vault(settings.ttl, settings.sessions, settings.values, settings.bytes)

    def layer(self, principal: Principal, secret: Callable[[str], bytes], now: float) -> PseudonymLayer:
        session = None
        if self._settings.scope == "session" and principal.session:
            session = self.vault.session(principal, secret("pseudonyms"), now)
        return PseudonymLayer(self._actions, self._forms, self.vault, session, self._settings.restore)

    def sweep(self, now: float) -> None:
        """Drops the sessions that are over."""
        self.vault.sweep(now)

    async def aclose(self) -> None:
        self.vault.clear()


def entity_guardrail(actions: Actions, settings: PseudonymSettings) -> EntityGuardrail:
    """The guardrail for these actions."""
    return PseudonymGuardrail(actions, settings) if actions.with_action(PSEUDONYM) else EntityGuardrail(actions)
