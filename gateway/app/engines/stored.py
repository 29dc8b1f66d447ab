"""Engines of the store: turns the stored body into settings with the secrets opened.

An external engine's key and header values are sealed in the store, or written as `${env:GATEHOUSE_SECRET_NAME}`, which each replica
reads from its own environment. No other variable may be named, or an administrator of engines could read the process's secrets. For the
same reason such an engine names no file of the machine.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from gateway.core.errors import ConfigError
from gateway.core.secret import Secret, secret_hook
from gateway.core.specs import EngineSpec
from gateway.core.storage import engine_secret

SECRET_PREFIX: Final = "GATEHOUSE_SECRET_"
_REFERENCE: Final = re.compile(r"\$\{env:([A-Za-z0-9_]{1,128})\}")
_FILES: Final = (("tls", "ca"), ("tls", "cert"), ("tls", "key"), ("options", "provider"))
Unseal = Callable[[str, str], Secret]
"""(sealed, purpose) -> the secret."""


def reference(text: str) -> str | None:
    """The variable that a text refers to, or None if it is not a reference. Raises ConfigError for a variable that may not be named."""
    if "${" not in text:
        return None
    found = _REFERENCE.fullmatch(text)
    if found is None or not found[1].startswith(SECRET_PREFIX):
        raise ConfigError(f"a reference is all of the value and names a variable ${{env:{SECRET_PREFIX}...}}")
    return found[1]


def engine_of(name: str, body: Mapping[str, Any], environ: Mapping[str, str], unseal: Unseal) -> EngineSpec:
    """The settings of a stored engine with its secrets. Raises ConfigError, never showing a secret."""
    plain = {**body, "name": name}
    url = body.get("url")

    def opened(text: str, field: str) -> str:
        try:
            variable = reference(text)
            if variable is None:
                return unseal(text, engine_secret(name, url, field)).reveal()
        except ConfigError as error:
            raise ConfigError(error.message, path=field) from None
        value = environ.get(variable)
        if not value:
            raise ConfigError(f"the environment variable {variable} is {'not set' if value is None else 'empty'} here", path=field)
        return value

    if isinstance(body.get("api_key"), str):
        plain["api_key"] = opened(body["api_key"], "api_key")
    if isinstance(body.get("headers"), dict):
        plain["headers"] = {key: opened(str(value), f"headers.{key}") for key, value in body["headers"].items()}
    for where, setting in _FILES:
        if (body.get(where) or {}).get(setting):
            raise ConfigError("settings that name a file belong in the configuration file", path=f"{where}.{setting}")
    if body.get("runtime") == "command":  # else whoever may change engines could start any program as the gateway's user
        raise ConfigError("engines that start a command belong in the configuration file", path="runtime")
    try:
        return msgspec.convert(plain, EngineSpec, dec_hook=secret_hook)
    except msgspec.ValidationError as error:
        raise ConfigError(f"this version cannot use it: {_bare(str(error))}") from None


def _bare(message: str) -> str:
    """Errors of msgspec name types and paths, never values; a very long one is cut."""
    return message[:200]
