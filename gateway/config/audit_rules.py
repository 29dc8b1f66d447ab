"""Checks of the settings of the audit log, beyond their types."""

from __future__ import annotations

from collections.abc import Callable

from gateway.core.errors import ConfigError
from gateway.core.specs import AuditSpec
from gateway.core.specs.audit import MasterSpec

ErrorAt = Callable[[str, str], ConfigError]
"""(path, message) -> the error with its file and line."""


def check(spec: AuditSpec, error: ErrorAt, check_url: Callable[[str, str, ErrorAt], None]) -> None:
    """Raises ConfigError."""
    text, encryption = spec.text, spec.encryption
    if encryption is not None:
        _master(encryption.master, "audit.encryption.master", error, check_url)
        for number, master in enumerate(encryption.former):
            _master(master, f"audit.encryption.former[{number}]", error, check_url)
    elif text.record != "none" or text.when:
        raise error("audit.text", "needs 'audit.encryption': texts are never written unencrypted")
    if text.record != "none" and not text.when:
        raise error("audit.text.when", "is missing; it selects whose texts are kept: for everybody write when: [{}]")
    if text.when and text.record == "none":
        raise error("audit.text.record", "is 'none', so 'when' has no effect; write request, response or both")


def _master(spec: MasterSpec, path: str, error: ErrorAt, check_url: Callable[[str, str, ErrorAt], None]) -> None:
    if len(spec.ways) != 1:
        given = " and ".join(spec.ways) or "nothing"
        raise error(path, f"needs exactly one of file, environment, command and transit, and has {given}")
    if spec.transit is not None:
        check_url(spec.transit.url, f"{path}.transit.url", error)
        if (spec.transit.token is None) == (spec.transit.token_file is None):
            raise error(f"{path}.transit", "needs either 'token' or 'token_file'")
