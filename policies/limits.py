"""Which limits apply to a request, and what it costs. Pure: gateway.limits keeps the buckets."""

from __future__ import annotations

from collections.abc import Iterable

from gateway.core.errors import Overloaded
from gateway.core.specs import LimitSpec
from gateway.core.types import InferenceRequest, Principal, Usage
from policies.patterns import matches

Scope = tuple[LimitSpec, tuple[str, ...]]
"""A limit and the key of its bucket: for `per: key`, ("ci", "key-1") is tenant and key."""


class LimitRules:
    """The limits of a configuration, in its order."""

    def __init__(self, limits: Iterable[LimitSpec]) -> None:
        self._limits = tuple(limits)
        self._names = frozenset(limit.name for limit in self._limits)

    def missing(self, principal: Principal) -> tuple[str, ...]:
        """Limits that the credential names and that are not there."""
        return tuple(name for name in principal.limits if name not in self._names)

    def applying(self, principal: Principal, model: str) -> tuple[Scope, ...]:
        """The limits whose `match` fits this caller and model, each with its bucket's key.

        Raises Overloaded when the credential names a limit that is not there: without it, the caller would be unlimited.
        """
        if principal.limits and (missing := self.missing(principal)):
            raise Overloaded(f"The limit {missing[0]!r} of this key is not in force.", code="limit_not_in_force", retry_after=1.0)
        return tuple((limit, _bucket_key(limit, principal, model)) for limit in self._limits if _fits(limit, principal, model))


def estimate(request: InferenceRequest) -> tuple[int, int]:
    """Tokens to reserve before the engine counts: (of the prompt, that may be generated), each at least 0."""
    prompt, completion = request.prompt_tokens, request.max_tokens
    return prompt if prompt > 0 else 0, completion if completion > 0 else 0


def charge(usage: Usage) -> int:
    """Tokens that an exchange cost: prompt, cached or not, and completion."""
    prompt, completion = usage.prompt_tokens, usage.completion_tokens
    return (prompt if prompt > 0 else 0) + (completion if completion > 0 else 0)


def _fits(limit: LimitSpec, principal: Principal, model: str) -> bool:
    """Whether a limit applies. A credential that names it counts as matching `key`, so a limit with `key: ""` applies to those only."""
    match = limit.match
    if not (matches(match.tenant, principal.tenant) and matches(match.model, model)):
        return False
    return matches(match.key, principal.id) or limit.name in principal.limits


def _bucket_key(limit: LimitSpec, principal: Principal, model: str) -> tuple[str, ...]:
    match limit.per:
        case "key":
            return (principal.tenant, principal.kind, principal.id)
        case "tenant":
            return (principal.tenant,)
        case "model":
            return (model,)
        case "key_model":
            return (principal.tenant, principal.kind, principal.id, model)
        case "tenant_model":
            return (principal.tenant, model)
        case "global":
            return ()
