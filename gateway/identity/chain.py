"""Authenticators in order: the first that recognises the credential decides. An authenticator that fails rejects the caller."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Sequence

from gateway.core.errors import GatehouseError
from gateway.core.ports import Authenticator
from gateway.core.types import Headers, Peer, Principal
from gateway.core.waiting import Maybe
from gateway.identity.credentials import invalid_credentials, nobody_knew, presented

log = logging.getLogger("gatehouse.identity")


def chain(authenticators: Sequence[Authenticator]) -> Authenticator:
    """Combines several authenticators into one, which never returns None: without a credential it raises `missing_credentials`.

    An unexpected exception in a member rejects the caller. Only its type is logged, because its text may hold the credential. Later members
    are not asked, because the failed one might have rejected the caller.
    """
    return Single(authenticators[0]) if len(authenticators) == 1 else Chain(tuple(authenticators))


class Single:
    """A chain of one, without the cost of a loop."""

    def __init__(self, member: Authenticator) -> None:
        self._authenticate = member.authenticate
        self._name = _name(member)

    def authenticate(self, headers: Headers, peer: Peer) -> Maybe[Principal | None]:
        try:
            found = self._authenticate(headers, peer)
        except GatehouseError:
            raise
        except Exception as error:  # noqa: BLE001 - boundary: a failing authenticator rejects (fail closed)
            raise _failed(self._name, error) from None
        if isinstance(found, Principal):
            return found
        return _answer(self._name, found, headers)


class Chain:
    """Several members. Without any, every caller is rejected."""

    def __init__(self, members: tuple[Authenticator, ...]) -> None:
        self._members = tuple((_name(member), member.authenticate) for member in members)

    def authenticate(self, headers: Headers, peer: Peer) -> Maybe[Principal | None]:
        presented(headers)  # two different credentials are refused, whichever members know them
        return self._from(0, headers, peer)

    def _from(self, start: int, headers: Headers, peer: Peer) -> Maybe[Principal | None]:
        for position in range(start, len(self._members)):
            name, authenticate = self._members[position]
            try:
                found = authenticate(headers, peer)
            except GatehouseError:
                raise
            except Exception as error:  # noqa: BLE001 - boundary: a failing authenticator rejects (fail closed)
                raise _failed(name, error) from None
            if found is None:
                continue
            if isinstance(found, Principal):
                return found
            return self._wait(name, found, position + 1, headers, peer)
        raise nobody_knew(headers)

    async def _wait(self, name: str, answer: Awaitable[Principal | None], following: int, headers: Headers, peer: Peer) -> Principal | None:
        principal = await _guarded(name, answer)
        if principal is not None:
            return principal
        rest = self._from(following, headers, peer)
        return rest if rest is None or isinstance(rest, Principal) else await rest


def _answer(name: str, found: Maybe[Principal | None], headers: Headers) -> Maybe[Principal | None]:
    """The slow path of a chain of one: None or an awaitable."""
    if found is None:
        raise nobody_knew(headers)
    if isinstance(found, Principal):
        return found
    return _required(name, found, headers)


async def _required(name: str, answer: Awaitable[Principal | None], headers: Headers) -> Principal:
    principal = await _guarded(name, answer)
    if principal is None:
        raise nobody_knew(headers)
    return principal


async def _guarded(name: str, answer: Awaitable[Principal | None]) -> Principal | None:
    try:
        return await answer
    except GatehouseError:
        raise
    except Exception as error:  # noqa: BLE001 - boundary: a failing authenticator rejects (fail closed)
        raise _failed(name, error) from None


def _name(member: Authenticator) -> str:
    """For the log; of one within another (gateway.identity.people), the inner one's."""
    return type(getattr(member, "inner", member)).__name__


def _failed(name: str, error: Exception) -> GatehouseError:
    log.error("the authenticator %s failed (%s); the caller is rejected", name, type(error).__name__)
    rejection = invalid_credentials()
    rejection.__suppress_context__ = True  # compiled code ignores `from None`
    return rejection
