"""Profiles: a gateway's URLs and keys, in the user's configuration directory, readable only by the user."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import typer

from admin.cli.errors import CommandError

DEFAULT: Final = "default"
FILE: Final = "profiles.json"


@dataclass(frozen=True)
class Profile:
    """url: of the admin listener. gateway_url and api_key: of the data listener, where they differ (for `chat`)."""

    url: str
    key: str = ""
    gateway_url: str = ""
    api_key: str = ""

    def __repr__(self) -> str:
        return f"Profile({self.url})"


def path() -> Path:
    """`$XDG_CONFIG_HOME/gatehouse/profiles.json` on Linux, the equivalent elsewhere."""
    return Path(typer.get_app_dir("gatehouse")) / FILE


def load(name: str) -> Profile | None:
    """The profile, or None. Raises CommandError for a file that others may read, or that is damaged."""
    found = _read().get(name)
    if found is None:
        return None
    return Profile(**{field: str(found.get(field, "")) for field in Profile.__dataclass_fields__})


def suggested(incomplete: str) -> list[str]:
    """The names of the saved profiles, for the shell's completion."""
    try:
        return sorted(_read())
    except CommandError:
        return []


def save(name: str, profile: Profile) -> Path:
    """Rewrites the file atomically (0600, in a 0700 directory)."""
    profiles = _read()
    profiles[name] = asdict(profile)
    place = path()
    try:
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = place.with_name(f".{FILE}.{os.getpid()}")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), 0o600)
            json.dump(profiles, file, indent=2)
        draft.replace(place)
    except OSError as error:
        raise CommandError(f"the profile cannot be saved: {error.strerror}: {error.filename}") from None
    return place


def _read() -> dict[str, dict[str, Any]]:
    place = path()
    try:
        if stat.S_IMODE(place.stat().st_mode) & 0o077:
            raise CommandError(f"{place} can be read by others: chmod 600 it")
        found = json.loads(place.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise CommandError(f"{place} cannot be used: {error}") from None
    if not isinstance(found, dict):
        raise CommandError(f"{place} cannot be used: it does not hold profiles")
    return found
