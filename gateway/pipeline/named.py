"""Agents and sessions that a trusted peer names: `x-gatehouse-agent` and `x-gatehouse-session`.

They fill in what the credential itself does not say; an agent or a session of a token stays. From all other peers the headers mean nothing.
"""

from __future__ import annotations

import re
from typing import Final

from gateway.core.errors import RequestError
from gateway.core.types import Headers, Principal

AGENT: Final = b"x-gatehouse-agent"
SESSION: Final = b"x-gatehouse-session"
REMEMBERED: Final = 16384
_NAME: Final = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._:@/+-]{0,127}")


class NamedCallers:
    """Principals by what a trusted peer adds to them: the same object each time, as decisions are remembered by it. Bounded."""

    def __init__(self) -> None:
        self._known: dict[tuple[Principal, bytes, bytes], Principal] = {}

    def of(self, principal: Principal, headers: Headers) -> Principal:
        """The caller with its agent and session. Raises RequestError for a name that cannot be one."""
        agent, session = headers.get(AGENT, b""), headers.get(SESSION, b"")
        if not agent and not session:
            return principal
        key = (principal, agent, session)
        found = self._known.get(key)
        if found is None:
            found = principal.acting(
                principal.agent or _name(agent, AGENT),
                principal.session or _name(session, SESSION),
            )
            if len(self._known) >= REMEMBERED:
                del self._known[next(iter(self._known))]
            self._known[key] = found
        return found


def _name(value: bytes, header: bytes) -> str:
    if value and _NAME.fullmatch(value) is None:
        name = header.decode()
        raise RequestError(
            f"{name}: a name has 1 to 128 letters, digits and any of ._:@/+-, and begins with a letter or digit.", param=name
        )
    return value.decode("ascii")
