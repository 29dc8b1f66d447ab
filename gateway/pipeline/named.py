"""Agents and sessions that a trusted peer names: `x-gatehouse-agent` and `x-gatehouse-session`; where that is configured, users and chats
of Open WebUI.

They fill in what the credential itself does not say; a user, an agent or a session of a token stays. From all other peers the headers mean
nothing. A user decides about roles, so it is believed only together with a key that is Open WebUI's own: a trusted proxy passes on what
anybody sends.
"""

from __future__ import annotations

import re
from typing import Final

from gateway.core.errors import RequestError
from gateway.core.specs.identity import OpenWebUiSpec
from gateway.core.types import Headers, Principal

AGENT: Final = b"x-gatehouse-agent"
SESSION: Final = b"x-gatehouse-session"
USERS: Final = {"email": b"x-openwebui-user-email", "id": b"x-openwebui-user-id"}
CHAT: Final = b"x-openwebui-chat-id"
REMEMBERED: Final = 16384
_NAME: Final = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._:@/+-]{0,127}")


class NamedCallers:
    """Principals by what a trusted peer adds to them: the same object each time, as decisions are remembered by it. Bounded."""

    def __init__(self) -> None:
        self._known: dict[tuple[Principal, bytes, bytes, bytes], Principal] = {}

    def of(self, principal: Principal, headers: Headers, webui: OpenWebUiSpec | None = None) -> Principal:
        """The caller with its agent, session and user. Raises RequestError for a name that cannot be one."""
        agent, session, user = headers.get(AGENT, b""), headers.get(SESSION, b""), b""
        place = SESSION
        if webui is not None and principal.kind == "api_key" and principal.id in webui.keys:
            user = headers.get(USERS[webui.user], b"")
            if not session and CHAT in headers:
                session, place = headers[CHAT], CHAT
        if not agent and not session and not user:
            return principal
        key = (principal, agent, session, user)
        found = self._known.get(key)
        if found is None:
            found = principal.acting(
                principal.agent or _name(agent, AGENT),
                principal.session or _name(session, place),
                principal.user or _name(user, USERS["email"] if webui is None else USERS[webui.user]),
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
