"""Whether a store could be opened as it is, without changing it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import sqlalchemy as sa

from gateway.core.clock import SystemEntropy
from gateway.core.errors import StoreUnavailable
from gateway.core.plugins import StoreRow, Table
from gateway.store.database import Database, make_engine
from gateway.store.key_rows import KeyFormat
from gateway.store.migrate import HEAD, revisions
from gateway.store.pepper import FILE, noted, peppers, which
from gateway.store.tables import facts
from gateway.store.upgrade import refuse_newer

SECONDS: Final = 10.0
"""For the whole look."""


async def look(url: str, state_dir: Path, format: KeyFormat, given_pepper: str | None, stores: Table[StoreRow]) -> None:
    """Raises StoreUnavailable, ConfigError as `Store.start` would: nobody answers, a schema of a newer Gatehouse, another pepper."""
    known = given_pepper is not None or (state_dir / FILE).exists()  # otherwise the start makes one, which no store knows
    marks = [format.fingerprint("gatehouse", one).hex() for one in peppers(state_dir, SystemEntropy(), given_pepper)] if known else []

    def looked(connection: sa.Connection) -> None:
        found = revisions(connection)
        if found and found != {HEAD}:
            refuse_newer(connection)
        if sa.inspect(connection).has_table(facts.name) and (mark := noted(connection)) is not None:
            which(mark, marks)

    database = Database(make_engine(url, state_dir, SECONDS, stores), SECONDS)
    try:
        await database.run(looked)
    except StoreUnavailable as error:
        raise StoreUnavailable(f"The store cannot be opened: {error.__cause__ or error.message}") from None
    finally:
        await database.aclose()
