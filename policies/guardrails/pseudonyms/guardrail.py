"""A guardrail that gives pseudonyms: the settings of the action, and the sessions that outlive a request."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.core.pseudonyms import PseudonymSettings, Reader
from gateway.core.types import Principal
from policies.guardrails.pseudonyms.layer import AskedLayer, PseudonymLayer
from policies.guardrails.pseudonyms.restoring import Forms
from policies.guardrails.pseudonyms.vault import Session, Vault
from policies.guardrails.recognition.actions import PSEUDONYM, Actions
from policies.guardrails.recognition.guardrail import EntityGuardrail


class PseudonymVault:
    """The sessions of one guardrail. Implements gateway.core.pseudonyms.Pseudonyms."""

    def __init__(self, entities: Sequence[str], settings: PseudonymSettings) -> None:
        self._settings, self.forms = settings, Forms(entities)
        self.vault = Vault(settings.ttl, settings.sessions, settings.values, settings.bytes)
        self.restores = settings.restore

    def session(self, principal: Principal, secret: Callable[[str], bytes], now: float) -> Session | None:
        """The caller's; None for pseudonyms of one request only."""
        if self._settings.scope != "session" or not principal.session:
            return None
        return self.vault.session(principal, secret("pseudonyms"), now)

    def layer(self, principal: Principal, secret: Callable[[str], bytes], now: float, read: Reader) -> AskedLayer:
        return AskedLayer(read, self.forms, self.vault, self.session(principal, secret, now), self.restores)

    def sweep(self, now: float) -> None:
        self.vault.sweep(now)

    def clear(self) -> None:
        self.vault.clear()


class PseudonymGuardrail(EntityGuardrail):
    """Implements gateway.core.pseudonyms.Pseudonymous. By itself, as it reads answers, it masks what would get a pseudonym."""

    def __init__(self, actions: Actions, settings: PseudonymSettings) -> None:
        super().__init__(actions)
        self._kept = PseudonymVault(actions.with_action(PSEUDONYM), settings)
        self.vault = self._kept.vault

    def layer(self, principal: Principal, secret: Callable[[str], bytes], now: float) -> PseudonymLayer:
        kept = self._kept
        return PseudonymLayer(self._actions, kept.forms, kept.vault, kept.session(principal, secret, now), kept.restores)

    def sweep(self, now: float) -> None:
        """Drops the sessions that are over."""
        self.vault.sweep(now)

    async def aclose(self) -> None:
        self.vault.clear()


def entity_guardrail(actions: Actions, settings: PseudonymSettings) -> EntityGuardrail:
    """The guardrail for these actions."""
    return PseudonymGuardrail(actions, settings) if actions.with_action(PSEUDONYM) else EntityGuardrail(actions)
