"""The tenants that an event is about. They stand in the record in the clear, so that legal holds and searches find events whose details are
encrypted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from msgspec.structs import replace

from gateway.core.types import EventRecord

EVERY: Final = "*"
"""Stands for all tenants, if an event names more than MOST."""
MOST: Final = 32
LONGEST: Final = 128
"""The longest tenant name, in characters (admin.resource.Tenant). A longer text is not one."""
_DEPTH: Final = 6
_VALUES: Final = 4096
"""The most values of a detail that are searched; an event with more counts as being about every tenant."""
_TARGETS: Final = ("tenants/", "audit/holds/", "audit/data-keys/", "tenant/", "halts/tenant/")


def with_tenants(record: EventRecord) -> EventRecord:
    """The event with its tenants filled in: those it already has, and those that its details and its target name."""
    found = {tenant for tenant in record.tenants if tenant}
    left = _VALUES
    for name in _named(record.detail, 0):
        left -= 1
        if left < 0 or len(found) > MOST:
            found.add(EVERY)
            break
        if name:
            found.add(name)
    for start in _TARGETS:
        if record.target.startswith(start) and len(record.target) > len(start):
            found.add(record.target[len(start) :])
    tenants = tuple(sorted(name for name in found if len(name) <= LONGEST))
    if EVERY in tenants or len(tenants) > MOST:
        tenants = (EVERY,)
    return record if tenants == record.tenants else replace(record, tenants=tenants)


def _named(value: Any, depth: int) -> Iterator[str]:
    """Yields each value whose key is `tenant` or `tenants`, also in differences (`path`, `from`, `to`), and "" for every other value, so
    that the caller can bound the search."""
    if depth > _DEPTH:
        return
    if isinstance(value, dict):
        path = str(value.get("path", ""))
        if path.rpartition(".")[2] == "tenant":
            yield from _texts(value.get("from"))
            yield from _texts(value.get("to"))
        for name, one in value.items():
            yield from _texts(one) if name in ("tenant", "tenants") else ("",)
            yield from _named(one, depth + 1)
    elif isinstance(value, list | tuple):
        for one in value:
            yield ""
            yield from _named(one, depth + 1)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple):
        yield from (one for one in value if isinstance(one, str))
