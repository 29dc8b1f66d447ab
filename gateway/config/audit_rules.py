"""Checks of the settings of the audit log, beyond their types."""

from __future__ import annotations

from collections.abc import Callable

from gateway.config.url_rules import check_url
from gateway.core.errors import ConfigError
from gateway.core.specs import AuditSpec
from gateway.core.specs.audit import MasterSpec

ErrorAt = Callable[[str, str], ConfigError]
"""(path, message) -> the error with its file and line."""


def check(spec: AuditSpec, error: ErrorAt) -> None:
    """Raises ConfigError."""
    archive = spec.retention.archive
    if archive is not None and archive.endpoint is not None:
        check_url(archive.endpoint, "audit.retention.archive.endpoint", error, "use access_key and secret_key")
    text, encryption = spec.text, spec.encryption
    if encryption is not None:
        _master(encryption.master, "audit.encryption.master", error)
        for number, master in enumerate(encryption.former):
            _master(master, f"audit.encryption.former[{number}]", error)
    elif text.record != "none" or text.when:
        raise error("audit.text", "needs 'audit.encryption': texts are never written unencrypted")
    if text.record != "none" and not text.when:
        raise error("audit.text.when", "is missing; it selects whose texts are kept: for everybody write when: [{}]")
    if text.when and text.record == "none":
        raise error("audit.text.record", "is 'none', so 'when' has no effect; write request, response or both")


def _master(spec: MasterSpec, path: str, error: ErrorAt) -> None:
    if len(spec.ways) != 1:
        given = " and ".join(spec.ways) or "nothing"
        raise error(path, f"needs exactly one of file, environment, command and transit, and has {given}")
    if spec.transit is not None:
        check_url(spec.transit.url, f"{path}.transit.url", error, "use token or token_file")
        if (spec.transit.token is None) == (spec.transit.token_file is None):
            raise error(f"{path}.transit", "needs either 'token' or 'token_file'")
