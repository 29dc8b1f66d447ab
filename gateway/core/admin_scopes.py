"""Permissions on the admin listener as patterns, with which a token's scopes name them: `admin:keys:read`, `admin:keys:*`, `admin:*`. A
part may end in `*`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

ADMIN: Final = "admin"
_PART: Final = re.compile(r"[a-z_-]{0,40}\*?", re.ASCII)


def is_admin_scope(text: str) -> bool:
    """Whether a text is `admin:RESOURCE:ACTION` or `admin:*`."""
    head, _, rest = text.partition(":")
    return head == ADMIN and is_pattern(rest)


def is_pattern(text: str) -> bool:
    """Whether a text is `RESOURCE:ACTION` or `*`."""
    parts = text.split(":")
    return text == "*" or (len(parts) == 2 and all(part and _PART.fullmatch(part) for part in parts))


def covers(pattern: str, permission: str) -> bool:
    """Whether a pattern covers `RESOURCE:ACTION`, or everything that another pattern covers."""
    if pattern == "*":
        return True
    parts, wanted = pattern.split(":"), permission.split(":")
    return len(parts) == len(wanted) == 2 and all(map(_matches, parts, wanted))


def reaches(scopes: Iterable[str], permission: str) -> bool:
    """Whether a token with these scopes may do what an administrator's permission, such as `keys:read`, allows."""
    return any(scope.startswith("admin:") and covers(scope[6:], permission) for scope in scopes)


def _matches(pattern: str, name: str) -> bool:
    return pattern == name or (pattern.endswith("*") and name.startswith(pattern[:-1]))
