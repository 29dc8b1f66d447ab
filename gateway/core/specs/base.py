"""What all settings are made of: the base class, the types of their values, and TLS towards another server."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}$")]
EngineName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}([~@][A-Za-z0-9.:\[\]_-]{1,300})?$")]
"""Of an engine, of its copy (`chat~2`), or of one of its addresses (`vllm@10.0.0.5:8000`). Only the first kind can be configured."""
Seconds = Annotated[float, Meta(ge=0, le=86400 * 366)]
Timeout = Annotated[float, Meta(ge=0.001, le=86400 * 366)]
"""Seconds, more than zero: a deadline or a period."""
Overlap = Annotated[float, Meta(ge=0, le=86400 * 90)]
"""Seconds for which the old secret of a key is accepted beside the new one."""
Period = Annotated[float, Meta(ge=0.001, le=86400 * 31)]
"""Seconds that a limit counts in."""
Rolling = Annotated[float, Meta(ge=60, le=86400 * 366)]
"""Seconds of a window that moves with time."""
Kept = Annotated[float, Meta(ge=0.001, le=86400 * 366 * 100)]
"""Seconds for which something is kept: up to a hundred years."""
DURATIONS = (Seconds, Timeout, Overlap, Period, Rolling, Kept)
"""The types that may be written as a duration ("1m30s")."""
Positive = Annotated[int, Meta(ge=1, le=1 << 53)]
Natural = Annotated[int, Meta(ge=0, le=1 << 53)]
Amount = Annotated[float, Meta(ge=1e-6, le=1e12)]
"""Units of a limit. Larger amounts could be neither counted nor written in a header."""


class Spec(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, gc=False):
    """Base of all settings: immutable, keyword-only, unknown keys refused. The garbage collector never looks at them, as they have no
    cycles: those of ten thousand engines would cost it a tenth of a second each time."""


class ClientTlsSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """TLS towards an external engine: own CA, client certificate, server name."""

    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    server_name: str | None = None
