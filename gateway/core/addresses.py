"""Masks credentials in addresses that are shown to people: the login (`scheme://USER:PASSWORD@`) and secrets in the query.

Addresses are often shown because they are wrong. So everything that may have been meant as a password is masked, even with '/', '@' or '?'.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

from gateway.core.secret import MASK

SECRET_WORDS: Final = ("password", "secret", "token", "api_key", "apikey", "credential", "private", "passphrase", "bearer")
"""Parts of the names of settings that hold secrets."""
_QUERY = re.compile(rf"([?&;][^=&;\s'\"]{{0,64}}?(?:{'|'.join(SECRET_WORDS)}|signature)[^=&;\s'\"]{{0,64}}=)[^&;#\s'\"]+", re.IGNORECASE)
_LOGIN = re.compile(
    r"(\b[a-z][a-z0-9+.-]{1,20}://)(?!\[USER)"  # a form such as redis://[USER:PASSWORD@]HOST is none
    r"(?:[^\s/?#'\"]{1,512}"  # a login as it should be, though with a bare '@' perhaps
    r"|[^\s/?#'\"@:]{0,256}:(?!\d{1,5}[/?#])[^\s'\"]{1,512})"  # `USER:` and a password with '/', '?' or '#', rather than `HOST:PORT/`
    r"@",
    re.IGNORECASE,
)
_WHOLE = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)(.*)@(.*)", re.DOTALL)
_BARE = re.compile(r"([^\s:/@]*):(.+)@(.*)", re.DOTALL)
_HOST = re.compile(r"(\[[^\]]*\]|[^:]*)(:\d{1,5})?")


def without_logins(text: str, mask: str = MASK) -> str:
    """A sentence in which the credentials of all addresses are masked."""
    if "://" not in text:
        return text
    return _QUERY.sub(rf"\g<1>{mask}", _LOGIN.sub(rf"\g<1>{mask}@", text))


def without_login(value: str) -> str:
    """A setting's value with its credentials masked, if it is an address. The user's name stays if a password follows and it cannot be a
    token."""
    found = _WHOLE.fullmatch(value)
    if found is not None:
        scheme, login, rest = found.groups()
        authority = re.split("[/?#]", login, maxsplit=1)[0]
        if len(authority) == len(login) or "@" in authority or not _HOST.fullmatch(authority):
            value = f"{scheme}{_shown(value, scheme, login)}@{rest}"
    return _QUERY.sub(rf"\g<1>{MASK}", value) if "=" in value and "://" in value else value


def quotable(value: str) -> str:
    """Any text that an operator wrote, fit for an error message: `USER:PASSWORD@HOST` without a scheme is masked too."""
    if "@" in value and "://" not in value and (found := _BARE.fullmatch(value)) is not None:
        return f"{found[1]}:{MASK}@{found[3]}"
    return without_login(value)


def holds_mask(text: str) -> bool:
    """Whether the text is a mask, or an address with a masked part."""
    return text == MASK or ("://" in text and (f"{MASK}@" in text or f"={MASK}" in text))


def _shown(url: str, scheme: str, login: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError:
        return MASK
    if "@" not in login and parts.password is not None and login == f"{parts.username}:{parts.password}":
        return f"{parts.username}:{MASK}"
    return login if login == parts.username and scheme.lower() not in ("http://", "https://") else MASK
