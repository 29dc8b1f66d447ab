"""Who may use which model. Default deny: a model that none of the principal's patterns names is refused.

A principal is one object for as long as its credential is valid, so decisions are memoised by its identity; a changed key
is a new principal and is decided anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from gateway.core.specs import ModelSpec
from gateway.core.types import NARROWED, Decision, InferenceRequest, Peer, Principal
from policies.patterns import names
from policies.scopes import scope_allows, scope_sees

MEMO_SIZE: Final = 16384
"""Decisions in the memo. The oldest is forgotten first."""
MEMO_VERSION: Final = 64
"""Decisions about longer versions are not memoised, so the memo is bounded in bytes too."""

_DENIED: Final = Decision(False, "This credential may not use the requested model.", "default-deny")
_OPERATION: Final = Decision(False, "This credential may not call this operation.", "operations")
BEYOND: Final = Decision(False, "This credential may not use the requested model.", "bounds")
"""Outside of what the tenant or the groups allow."""
UNKNOWN: Final = Decision(False, "This credential has no model of this name.", "unknown-model")


class ModelAccess:
    """Allows a model if one of the principal's patterns (`*`, `demo-*`) matches its name. A pattern for a model allows its aliases too.

    `model@version` allows only calls whose path names that version. No model's name contains an `@`. operations: all that there are; a
    model is seen by who may use it with one of them. Without them it is seen by who may use it with any.
    """

    def __init__(self, models: Iterable[ModelSpec], *, operations: Sequence[str] = (), memo_size: int = MEMO_SIZE) -> None:
        self._operations = operations
        self._names: dict[str, tuple[str, ...]] = {}
        for model in models:
            self._names[model.name] = (model.name,)
            self._names.update((alias, (alias, model.name)) for alias in model.aliases)
        self._memo: dict[tuple[Principal, str, str], Decision] = {}
        self._memo_size = memo_size

    def decide(self, principal: Principal, request: InferenceRequest, peer: Peer | None = None, size: int = 0) -> Decision:
        """The decision, memoised; peer and size do not matter here. Unknown models and long versions are not remembered: callers choose
        them freely."""
        version = request.version
        key = (principal, request.model, f"{request.operation}:{version}" if version else request.operation)
        decision = self._memo.get(key)
        if decision is not None:
            return decision
        if request.model not in self._names:
            return UNKNOWN
        decision = self.evaluate(principal, request.model, request.operation, version)
        if len(version) > MEMO_VERSION:
            return decision
        if len(self._memo) >= self._memo_size:
            del self._memo[next(iter(self._memo))]
        self._memo[key] = decision
        return decision

    def explain(self, principal: Principal, request: InferenceRequest, peer: Peer, size: int) -> list[dict[str, Any]]:
        """What the credential itself says, as the one rule that counts."""
        return _shown(self.decide(principal, request, peer, size))

    def judge(self, principal: Principal, model: str, operation: str, version: str, read: Callable[[str], Any]) -> Decision:
        return UNKNOWN if model not in self._names else self.evaluate(principal, model, operation, version)

    def considered(
        self, principal: Principal, model: str, operation: str, version: str, read: Callable[[str], Any]
    ) -> list[dict[str, Any]]:
        return _shown(self.judge(principal, model, operation, version, read))

    def may_see(self, principal: Principal, model: str, version: str = "") -> bool:
        """Whether the model (or this version of it) exists for this principal."""
        if model not in self._names or not self._evaluate(principal, model, version).allow:
            return False
        if principal.reach is not None and not scope_sees(principal.reach, self._names[model]):
            return False
        return not self._operations or any(self.opens(principal, model, operation, version) for operation in self._operations)

    def opens(self, principal: Principal, model: str, operation: str, version: str = "") -> bool:
        """Whether a model that is not hidden from the principal may be used with this operation."""
        if principal.operations and operation not in principal.operations:
            return False
        if principal.bounds and not within_bounds(principal, self._names[model], version, operation):
            return False
        return principal.reach is None or scope_sees(principal.reach, self._names[model], operation)

    def evaluate(self, principal: Principal, model: str, operation: str, version: str) -> Decision:
        """The decision on a known model, not memoised."""
        if principal.operations and operation not in principal.operations:
            return _OPERATION
        if principal.bounds and not within_bounds(principal, self._names[model], version, operation):
            return _OPERATION if within_bounds(principal, self._names[model], version) else BEYOND
        decision = self._evaluate(principal, model, version)
        if decision.allow and principal.reach is not None and not scope_allows(principal.reach, operation, self._names[model], version):
            return NARROWED
        return decision

    def _evaluate(self, principal: Principal, model: str, version: str = "") -> Decision:
        if principal.bounds and not within_bounds(principal, self._names[model], version):
            return BEYOND
        for name in self._names[model]:
            for pattern in principal.models:
                if names(pattern, name, version):
                    return Decision(True, "", f"models:{pattern}")
        return _DENIED


def _shown(decision: Decision) -> list[dict[str, Any]]:
    return [{"rule": decision.rule, "effect": "allow" if decision.allow else "deny", "when": None, "holds": True}]


def within_bounds(principal: Principal, model: tuple[str, ...], version: str, operation: str = "") -> bool:
    """Whether every bound of the caller allows the model, known by these names, with this operation; "": with any."""
    for scopes in principal.bounds:
        for scope in scopes:
            if operation and scope.operations and operation not in scope.operations:
                continue
            if any(names(pattern, name, version) for name in model for pattern in scope.models):
                break
        else:
            return False
    return True
