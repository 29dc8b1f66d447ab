"""The first administrator's key, made if no key of the file has a role and the store has no keys."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TextIO

from admin.permissions import ROLES
from gateway.app.events import Events
from gateway.app.store.link import StoreLink
from gateway.core.errors import AlreadyExists, StoreUnavailable
from gateway.core.specs import ConfigSpec
from gateway.core.storage import KeySettings

log = logging.getLogger("gatehouse")
TENANT, KEY = "gatehouse", "bootstrap-admin"
FILE = "bootstrap-admin.key"


async def make_first_key(spec: ConfigSpec, link: StoreLink, events: Events) -> str | None:
    """Returns the key, which is printed once and kept nowhere. None if there is an administrator already, or if the store does not
    answer."""
    if link.has_keys or any(role in ROLES for key in spec.identity.api_keys.static for role in key.roles):
        return None
    settings = KeySettings(roles=("admin",), description="made at the first start")
    try:
        record, secret = await link.store.create_key(TENANT, settings, actor="gatehouse", id=KEY)
    except AlreadyExists:  # another replica was first
        return None
    except StoreUnavailable as error:
        log.warning("the first administrator's key could not be made, the next start tries again: %s", error.message)
        return None
    events.record("bootstrap", f"keys/{record.id}", {"roles": list(settings.roles)})
    return secret.reveal()


def shown(key: str, state_dir: Path, out: TextIO) -> str:
    """The line that hands the key over: the key itself on a terminal; otherwise the path of a file (0600) that holds it, because what a
    service prints goes into journals. Raises OSError when the file cannot be written."""
    if out.isatty():
        return f"admin key: {key}"
    path = state_dir / FILE
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        os.fchmod(descriptor, 0o600)
        file.write(f"{key}\n")
    return f"admin key file: {path} (read it, then delete it)"
