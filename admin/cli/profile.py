"""Profiles: a gateway's URLs and keys, in the user's configuration directory, readable only by the user."""

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import typer

from admin.cli import oauth
from admin.cli.errors import CommandError
from admin.cli.oauth import Login
from admin.cli.tls import Tls

DEFAULT: Final = "default"
FILE: Final = "profiles.json"


@dataclass(frozen=True)
class Profile:
    """url: of the admin listener. gateway_url and api_key: of the data listener, where they differ (for `chat`). login: at an issuer, whose
    access token is the key. ca, cert, cert_key: paths of PEM files (admin.cli.tls)."""

    url: str
    key: str = ""
    gateway_url: str = ""
    api_key: str = ""
    login: Login | None = None
    ca: str = ""
    cert: str = ""
    cert_key: str = ""

    @property
    def holder(self) -> str:
        """What the key is bound to, if it is a login's access token."""
        return "" if self.login is None else self.login.holder

    @property
    def tls(self) -> Tls:
        return Tls(self.ca, self.cert, self.cert_key)

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
    texts = {field: str(found.get(field, "")) for field in Profile.__dataclass_fields__ if field != "login"}
    return Profile(**texts, login=_login(found.get("login")))


def current(name: str) -> Profile | None:
    """The profile with a key that works now: a login's access token is refreshed when it ends soon. Raises CommandError."""
    found = load(name)
    if found is None or found.login is None:
        return found
    if not found.login.fresh:
        with _alone():  # an issuer may take a refresh token only once
            found = load(name)
            if found is None or found.login is None:
                return found
            if not found.login.fresh:
                found = replace(found, login=oauth.refreshed(found.login))
                save(name, found)
    assert found.login is not None
    return replace(found, key=found.login.access_token)


def _login(found: Any) -> Login | None:
    if not isinstance(found, dict):
        return None
    try:
        return Login(**{**found, "expires": float(found["expires"]), "holder": str(found.get("holder", ""))})
    except (KeyError, TypeError, ValueError):
        return None


@contextmanager
def _alone() -> Iterator[None]:
    """One process at a time."""
    place = path().with_name("profiles.lock")
    descriptor = os.open(place, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


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
    return _write(profiles)


def forget(name: str) -> None:
    """Removes a profile. Raises CommandError."""
    profiles = _read()
    if profiles.pop(name, None) is not None:
        _write(profiles)


def _write(profiles: dict[str, dict[str, Any]]) -> Path:
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
        raise CommandError(f"the profile cannot be saved: {error.strerror}: {error.filename or place}") from None
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
