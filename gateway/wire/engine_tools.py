"""What an engine would do by itself, unseen from here: run tools (search the web, run code, ask its own MCP servers), keep a chat, speak
from a sound that it kept. `models[].engine_tools` lists what a model's engine may; everything else of it is refused, or left out where the
model's `unknown_fields` is `drop`.

A tool is named by its type, without the date behind it (`web_search_20250305` is `web_search`, and may be named whole, too), one of an MCP
server also by `mcp:SERVER`. What is no tool has a name of its own (NAMED).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from msgspec import Raw

from gateway.core.errors import RequestError
from gateway.wire.bodies import plain
from gateway.wire.openai import media
from gateway.wire.openai.fields import NEVER, names, refused

NAMED: Final = {"store": "store", "web_search_options": "web_search"}
"""Fields at the top level -> how the setting names what an engine then does."""
AUDIO: Final = "stored_audio"
"""How the setting names a sound that the engine generated and kept: whoever knows its id may use it, whose ever it is."""
_AUDIO_PLACE: Final = re.compile(r"messages\[\d+\]\.audio\.id")
_TOOL_PLACE: Final = re.compile(r"tools\[(\d+)\]\.type")
_OFFERING: Final = re.compile(r"messages\[\d+\]\.tools")
"""Tools of the caller in a message: known, and noted because conditions, rules and records count them."""
_DATED: Final = re.compile(r"_(?:\d{8}|\d{4}_\d{2}_\d{2})$", re.ASCII)
_SERVER: Final = ("server_label", "mcp_server_name")
ELSEWHERE: Final = names(
    "file_id file_ids file_url container_id container vector_store_ids server_url connector_id tunnel_id headers authorization "
    "authorization_token network_policy"
)
"""Inside such a tool: what an engine keeps for its operator, where it would connect to, and as whom. They never pass."""


def named(tool: Any) -> str:
    """A tool that an engine runs, as the setting names it."""
    kind = tool.get("type") if isinstance(tool, dict) else None
    return _DATED.sub("", kind) if isinstance(kind, str) else "?"


def allows(tool: Any, allowed: Sequence[str]) -> bool:
    """Whether a model's engine may run a tool by itself."""
    kind = tool.get("type") if isinstance(tool, dict) else None
    if not isinstance(kind, str):
        return False
    name = named(tool)
    if kind in allowed or name in allowed:
        return True
    given = [tool[key] for key in _SERVER if key in tool]
    return len(given) == 1 and f"{name}:{given[0]}" in allowed


def keeps(name: str, allowed: Sequence[str]) -> bool:
    """Whether a field at the top level stays, as it is one with which the engine does what it may."""
    return name in NAMED and NAMED[name] in allowed


def others(fields: dict[str, Raw], unknown: Sequence[str], policy: str, allowed: Sequence[str]) -> list[str]:
    """The unknown fields that remain for `unknown_fields` to decide. Raises RequestError for what the engine may not do."""
    left: list[str] = []
    tools: Any = None
    for place in unknown:
        inside = _TOOL_PLACE.fullmatch(place)
        if place in fields and (inside is not None or _OFFERING.fullmatch(place) or _AUDIO_PLACE.fullmatch(place)):
            raise refused(place, frozenset())  # a field at the top level whose name reads as a place further inside
        if inside is not None:
            if tools is None:
                tools = plain(fields["tools"], "tools")
            tool = tools[int(inside[1])]
            name, may = named(tool), allows(tool, allowed)
            if may:
                _refuse_elsewhere(tool, place[: -len(".type")])
        elif place in NAMED:
            name, may = NAMED[place], NAMED[place] in allowed
        elif _OFFERING.fullmatch(place):
            continue
        elif _AUDIO_PLACE.fullmatch(place):
            name, may = AUDIO, AUDIO in allowed
        else:
            left.append(place)
            continue
        if not may:
            if policy != "drop":
                raise _unseen(place, name)
            left.append(place)
    return left


def _unseen(place: str, name: str) -> RequestError:
    shown = name[:64] if name.isprintable() else "?"
    return RequestError(
        f"{place[:256]}: the engine would do this by itself ({shown}), unseen by the gateway, and this model does not allow it; "
        "leave it out.",
        param=place[:256],
        code="unsupported_parameter",
    )


def _refuse_elsewhere(tool: dict[str, Any], place: str) -> None:
    """Refuses what an engine would look up or connect to for the caller, at any depth. Raises RequestError."""
    stack = [(place, tool)]
    while stack:
        where, found = stack.pop()
        for key, value in found.items():
            inner = f"{where}.{key}"
            folded = key.casefold()
            if folded in NEVER or (folded in ELSEWHERE and value is not None and not of_its_own(folded, value)):
                raise RequestError(
                    f"{inner[:256]}: this field never reaches an engine; leave it out.", param=inner[:256], code="unsupported_content"
                )
            if folded.endswith(("url", "urls", "uri")):
                for one in value if isinstance(value, list) else (value,):
                    media.check_url(one, inner[:256])
            stack.extend([(inner, one) for one in (value if isinstance(value, list) else (value,)) if isinstance(one, dict)])


def of_its_own(name: str, value: Any) -> bool:
    """Whether a container is a new one for this request, and none that is there already."""
    return name == "container" and isinstance(value, dict) and value.get("type") == "auto" and value.keys() <= {"type", "memory_limit"}
