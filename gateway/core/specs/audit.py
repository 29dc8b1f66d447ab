"""Settings of what audit records hold: texts and who may have them kept, encryption, and privacy by field."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from gateway.core.secret import Secret
from gateway.core.specs.base import ClientTlsSpec, Spec, Timeout

RAW_FACTOR = 16
"""Bytes of an answer that are gathered for each byte of text that is kept: an event of a stream is mostly not text."""
Recorded = Literal["none", "request", "response", "both"]
"""Which texts of a request are kept."""


class TransitSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A key of Vault's secrets engine `transit`, or of a server with the same API. url: of the server. mount: of the engine. key: its name.
    token: sent as `X-Vault-Token`; or `token_file`, which is read anew for each call. namespace: sent as `X-Vault-Namespace`."""

    url: str
    key: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
    mount: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,127}$")] = "transit"
    token: Secret | None = None
    token_file: str | None = None
    namespace: str = ""
    tls: ClientTlsSpec | None = None


class MasterSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where the master key is: exactly one of these. file: 32 bytes, or their base64 or hex; 0600. environment: the name of a variable with
    their base64 or hex. command: prints their base64; run without a shell. timeout: of one use of it."""

    file: str | None = None
    environment: Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")] | None = None
    command: Annotated[tuple[str, ...], Meta(max_length=64)] = ()
    transit: TransitSpec | None = None
    timeout: Timeout = 5.0

    @property
    def ways(self) -> list[str]:
        """Names of the ways that are given."""
        found = [name for name in ("file", "environment", "transit") if getattr(self, name) is not None]
        return [*found, "command"] if self.command else found


class EncryptionSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Encryption in the audit log. scope: of texts alone, or of whole records (and of texts within them). master: wraps the data keys.
    former: masters that wrapped before, for `audit keys rotate --master`. cache: for how long a data key that was opened is used without
    asking the master again."""

    scope: Literal["text", "record"] = "text"
    master: MasterSpec
    former: tuple[MasterSpec, ...] = ()
    cache: Timeout = 300.0


class TextRuleSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Whose texts are kept: those of requests that fit all of it. Patterns of names; roles: one of them is enough."""

    tenants: tuple[str, ...] = ("*",)
    models: tuple[str, ...] = ("*",)
    keys: tuple[str, ...] = ("*",)
    roles: tuple[str, ...] = ("*",)


class TextSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Texts of prompts and answers in the log, always encrypted. record: which. when: for whom; nobody by default. max_bytes: of one text;
    what is longer is cut. on_failure: a request whose text cannot be encrypted is refused (`closed`) or goes on without (`open`)."""

    record: Recorded = "none"
    when: tuple[TextRuleSpec, ...] = ()
    max_bytes: Annotated[int, Meta(ge=256, le=24 * 1024)] = 16 * 1024
    on_failure: Literal["closed", "open"] = "closed"


class PrivacySpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What records say of people: `keep`, `truncate` (addresses, to /24 and /48), `hash` (keyed), `omit`. principal: of callers who are not
    API keys. groups: those of the caller."""

    peer: Literal["keep", "truncate", "hash", "omit"] = "keep"
    user: Literal["keep", "hash", "omit"] = "keep"
    principal: Literal["keep", "hash"] = "keep"
    agent: Literal["keep", "hash", "omit"] = "keep"
    session: Literal["keep", "hash", "omit"] = "keep"
    groups: Literal["keep", "omit"] = "keep"
