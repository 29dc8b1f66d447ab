"""The history of the configuration: rows that a write of a resource adds in its own transaction, and those of configurations put into
force.

A row is named by the number of the change that it belongs to, counted down, so that a list begins with the newest. What it says of settings
is sealed as a whole (gateway.store.seal): a configuration file may hold a secret in clear, and the database alone must not tell it. Rows
are no changes themselves: nobody has to hear of them.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import sqlalchemy as sa
from msgspec import Raw

from gateway.core.errors import ConfigError, NotFound
from gateway.core.secret import Secret
from gateway.store.rows import Transaction
from gateway.store.tables import resources

KIND: Final = "configurations"
TRACKED: Final = frozenset(("limits", "guardrails", "prices", "engines", "models", "roles", "bindings", "tenants", "groups"))
"""Kinds of resources whose writes are part of the history. Keys and users are not: they are people's, and the audit log has them."""
PURPOSE: Final = "configuration history"
TOP: Final = 10**15
MAX_SEALED: Final = 900 * 1024
"""Bytes of what is sealed. More is not kept, and cannot be rolled back."""
MAX_OPENED: Final = 64 * 1024 * 1024
PATHS: Final = 200
"""Names of changed resources that a row shows."""
PRUNED: Final = 1000
"""Rows that one write deletes at most."""
Seal = Callable[[Secret, str], str]


def name_of(number: int) -> str:
    """The name of the row with this number."""
    return f"{TOP - number:015d}"


def number_of(name: str) -> int:
    return TOP - int(name)


class Written(NamedTuple):
    """A mapping of a payload whose values, and the members of those that are iterators, are made while they are written."""

    pairs: Iterator[tuple[str, Any]]


def compressed(payload: Mapping[str, Any]) -> str | None:
    """The payload as it is sealed; None if it exceeds the bound, where it stops."""
    compressor, data, most = zlib.compressobj(), bytearray(), MAX_SEALED * 9 // 16
    for piece in _pieces(payload):
        data += compressor.compress(piece.encode("utf-8", "surrogatepass"))
        if len(data) > most:
            return None
    text = base64.b64encode(data + compressor.flush()).decode()
    return text if len(text) <= MAX_SEALED * 3 // 4 else None


def packed(text: str | None, seal: Seal) -> str | None:
    """What `compressed` returned, sealed."""
    return None if text is None else seal(Secret(text), PURPOSE)


def _pieces(value: Any, depth: int = 3) -> Iterator[str]:
    """JSON, of which parts may be written already (`Raw`), written member by member down to the members of the lists of a configuration:
    all of ten thousand engines at once would keep the interpreter from the event loop for a tenth of a second."""
    if isinstance(value, Raw):
        yield bytes(value).decode()
        return
    if not depth or not isinstance(value, dict | list | Written | Iterator):
        yield json.dumps(value, ensure_ascii=False)
    elif isinstance(value, dict | Written):
        yield "{"
        for at, (name, member) in enumerate(value.items() if isinstance(value, dict) else value.pairs):
            yield f"{', ' if at else ''}{json.dumps(name, ensure_ascii=False)}: "
            yield from _pieces(member, depth - 1)
        yield "}"
    else:
        yield "["
        for at, member in enumerate(value):
            if at:
                yield ", "
            yield from _pieces(member, depth - 1)
        yield "]"


def unpacked(sealed: str, unseal: Callable[[str, str], Secret]) -> dict[str, Any]:
    """Raises ConfigError for what was sealed with another pepper, or is not what `packed` made."""
    opened = zlib.decompressobj()
    try:
        text = opened.decompress(base64.b64decode(unseal(sealed, PURPOSE).reveal()), MAX_OPENED)
        found: dict[str, Any] = json.loads(text.decode("utf-8", "surrogatepass"))
    except (zlib.error, binascii.Error, ValueError):
        raise ConfigError("the entry cannot be read") from None
    return found


def body_of(tx: Transaction, seal: Seal) -> dict[str, Any] | None:
    """The body of the row of a write; None: the history is not told of it. Call it before the write takes its number, as that locks."""
    if tx.note is not None:
        return {**tx.note[0], "sealed": packed(tx.note[1], seal)}
    return _of_units(tx, seal) if tx.units else None


def keep(tx: Transaction, number: int, body: dict[str, Any], most: int) -> None:
    """Adds the row of a write that has this number, and deletes those beyond the `most` newest."""
    row = {"kind": KIND, "name": name_of(number), "tenant": "", "version": 1, "body": body}
    tx.connection.execute(sa.insert(resources), {**row, "created": tx.now, "updated": tx.now, "actor": tx.actor})
    old = sa.select(resources.c.name).where(resources.c.kind == KIND).order_by(resources.c.name).limit(PRUNED).offset(most)
    names = [name for (name,) in tx.connection.execute(old)]
    if names:
        tx.connection.execute(sa.delete(resources).where(resources.c.kind == KIND, resources.c.name.in_(names)))


def _of_units(tx: Transaction, seal: Seal) -> dict[str, Any]:
    """One entry a resource, however often the write touched it: as it was before, and as it is after."""
    first: dict[tuple[str, str], Any] = {}
    last: dict[tuple[str, str], Any] = {}
    for unit in tx.units:
        first.setdefault((unit.kind, unit.name), unit.before)
        last[unit.kind, unit.name] = unit.after
    units = [{"kind": kind, "name": name, "before": first[kind, name], "after": last[kind, name]} for kind, name in first]
    paths = [f"{kind}/{name}" for kind, name in first]
    back = {} if tx.restores is None else {"rolled_back_to": tx.restores}
    return {"of": "store", "changed": paths[:PATHS], "count": len(paths), **back, "sealed": packed(compressed({"units": units}), seal)}


def row(connection: sa.Connection, number: int) -> Any:
    """Raises NotFound."""
    query = sa.select(resources).where(resources.c.kind == KIND, resources.c.name == name_of(number))
    found = connection.execute(query).first() if 0 < number < TOP else None
    if found is None:
        raise NotFound(
            f"There is no entry {number} in the history of the configuration; it may be older than what is kept (store.history)."
        )
    return found
