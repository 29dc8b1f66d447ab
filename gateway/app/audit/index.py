"""The index of the local audit log, for the admin API: a process keeps it (gateway.audit.indexer), threads of this one read it."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from gateway.audit.blind_index import Blinder
from gateway.audit.index import FILE, tenants_of
from gateway.audit.indexer import BUSY, Progress
from gateway.audit.lines import lines_at
from gateway.audit.opened_index import search_opened, summary_opened
from gateway.audit.opening import CLOSED, Opener
from gateway.core.audit_questions import AuditSearch, Unopened
from gateway.core.errors import AuditIndexing, GatehouseError, Overloaded
from gateway.core.tasks import TaskOwner

COMMAND: Final = (sys.executable, "-m", "gateway.audit.indexer")
SECONDS: Final = 10.0
"""How long a search waits for the index to be up to date."""
SPARE_SECONDS: Final = 5.0
PAUSE: Final = 0.5
"""Seconds between two looks for what has no tokens yet."""
SLICE: Final = 0.1
"""Seconds for which one of them works: at most a sixth of a core."""
MOST_REQUESTS: Final = 1000
"""Requests with one id that are looked at in each tenant: callers choose ids, so one hides no other tenant's."""
MOST_RECORDS: Final = 100_000
WAITING: Final = 16
"""Searches that may wait at once."""

T = TypeVar("T")
log = logging.getLogger("gatehouse.audit")


class AuditIndex:
    """Starts the process with the first question, or at once (`resume`) where an index is there already. directory: the log's.

    seconds: how long a question waits for what is not in the index yet. opener: of records that are encrypted as a whole, of which the
    index has only what is in the clear. `aclose` ends the process.
    """

    def __init__(
        self, directory: Path, state_dir: Path, *, seconds: float = SECONDS, command: tuple[str, ...] = COMMAND, opener: Opener = CLOSED
    ) -> None:
        self.path, self._opener = state_dir / FILE, opener
        self._blinder, self._blinding, self._reading = Blinder(self.path, directory, opener), asyncio.Lock(), 0
        self._owner, self._fault = TaskOwner("audit index"), False
        self._directory, self._seconds, self._command = directory, seconds, command
        self._child: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()
        self._waiting = 0

    async def resume(self) -> None:
        """Goes on with an index that somebody has asked for before."""
        if self.path.exists():
            await self._started()

    async def search(self, asked: AuditSearch, *, records: bool) -> tuple[list[dict[str, Any]], Unopened]:
        """See admin.ports.AuditIndexReader."""
        found, unopened = await self._asked(partial(search_opened, self.path, asked, self._directory, self._opener), self._seconds)
        for entry in found:
            places = entry.pop("place")
            if records:
                entry["records"] = await asyncio.to_thread(lines_at, self._directory, entry["writer"], places, self._opener)
        return found, unopened

    async def of_request(self, request_id: str) -> list[dict[str, Any]]:
        """The records of all requests with this id, decoded. Raises AuditIndexing, Overloaded."""
        records: list[dict[str, Any]] = []
        for tenant in await self._asked(partial(tenants_of, self.path, request_id)):
            asked = AuditSearch(request_id=request_id, kind="request", limit=MOST_REQUESTS, tenants=frozenset({tenant}))
            found, _ = await self.search(asked, records=True)
            records += [record for entry in found for record in entry["records"]]
            if len(records) >= MOST_RECORDS:
                break
        return records

    async def report(self, since: float, until: float, tenants: frozenset[str] | None) -> dict[str, Any]:
        """See admin.ports.AuditIndexReader."""
        return await self._asked(partial(summary_opened, self.path, since, until, tenants, self._directory, self._opener))

    async def aclose(self) -> None:
        await self._owner.aclose()
        async with self._turn:
            child, self._child = self._child, None
        if child is None:
            return
        assert child.stdin is not None
        child.stdin.close()
        try:
            await asyncio.wait_for(child.wait(), SPARE_SECONDS)
        except TimeoutError:
            child.kill()
            await child.wait()

    async def _asked(self, question: Callable[[], T], seconds: float = 0.0) -> T:
        """seconds: to wait for the tokens of what is encrypted as a whole."""
        await self._fresh()
        if seconds:
            await self._give_tokens(seconds)
        self._reading += 1
        try:
            return await asyncio.to_thread(question)
        except (sqlite3.Error, OSError) as error:
            raise AuditIndexing(f"the index of the audit log cannot be read: {error}") from None
        finally:
            self._reading -= 1

    async def _give_tokens(self, seconds: float = SLICE) -> None:
        """Not beside a search, which would not see what moves while it reads. What has no token is opened by searches: nothing fails."""
        async with self._blinding:
            if not self._reading:
                try:
                    await asyncio.to_thread(self._blinder.update, seconds)
                except (sqlite3.Error, OSError, GatehouseError) as error:
                    if not self._fault:
                        log.warning("the index of encrypted records cannot be completed now: %s", error)
                    self._fault = True
                else:
                    self._fault = False

    async def _fresh(self) -> None:
        """Waits until everything is in the index that was logged before. Raises AuditIndexing, Overloaded."""
        if self._waiting >= WAITING:
            raise Overloaded("too many searches of the audit log wait", retry_after=5.0)
        self._waiting += 1
        try:
            async with self._turn:
                progress = await self._progress()
        finally:
            self._waiting -= 1
        if progress.fault and progress.fault != BUSY:
            raise AuditIndexing(f"the index of the audit log cannot be written: {progress.fault}")
        if progress.behind:
            raise AuditIndexing(f"the audit log is being indexed, {progress.behind} bytes are left; try again", retry_after=self._seconds)

    async def _progress(self) -> Progress:
        try:
            child = await self._started()
            assert child.stdin is not None and child.stdout is not None
            child.stdin.write(f"{self._seconds}\n".encode())
            line = await asyncio.wait_for(child.stdout.readline(), self._seconds + SPARE_SECONDS)
            if not line:
                raise EOFError
            progress = msgspec.json.decode(line, type=Progress)
        except (OSError, EOFError, TimeoutError, msgspec.DecodeError) as error:
            await self._end()
            raise AuditIndexing(f"the audit log cannot be indexed: {str(error) or type(error).__name__}") from None
        if progress.fault == BUSY:
            await self._end()
        return progress

    async def _started(self) -> asyncio.subprocess.Process:
        if not len(self._owner):
            self._owner.every(PAUSE, self._give_tokens, name="tokens")
        if self._child is not None and (self._child.stdin is None or self._child.stdin.is_closing()):
            await self._end()  # the closed pipe is noticed before the end of the process
        if self._child is None or self._child.returncode is not None:
            arguments = (str(self._directory), str(self.path))
            self._child = await asyncio.create_subprocess_exec(
                *self._command, *arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
            )
        return self._child

    async def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None and child.returncode is None:
            child.kill()
            await child.wait()
