"""What the models in the directory that replicas share consist of, noted in the store: a model that is changed there by anybody else than a
gateway is not loaded (docs/models.md)."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as TooLong
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

from engines.host.catalogue import noted
from engines.host.catalogue.checksums import digest
from gateway.core.errors import GatehouseError
from gateway.core.modelshare import NotedModel, SharedFile
from gateway.store.directory_models import StoredDirectoryModels

log = logging.getLogger("gatehouse.models")
ASK_SECONDS: Final = 10.0
MAX_SEEN: Final = 1000


class Noting:
    """root: the directory. Implements engines.host.catalogue.noted.Notes. Life: `begin` in the loop that asks the store."""

    def __init__(self, root: Path, stored: StoredDirectoryModels, replica: str) -> None:
        self._root, self._real, self._stored, self._replica = root, Path(os.path.realpath(root)), stored, replica
        self._known: dict[str, NotedModel] = {}
        """As the store last said: what counts while it does not answer."""
        self._seen: dict[str, tuple[SharedFile, ...]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    async def begin(self) -> None:
        """Raises StoreUnavailable."""
        self._known, self._loop = await self._stored.every(), asyncio.get_running_loop()

    # --- of gateway.core.modelshare.Neighbours

    def describe(self, name: str, source: Path, go_on: Callable[[], bool]) -> NotedModel:
        files = noted.look(source, lambda path, file: digest(path, go_on))
        if not source.is_dir():  # on its way it may have another name
            files = {path: type(file)(path=name, size=file.size, sha256=file.sha256) for path, file in files.items()}
        return NotedModel(path=name, versions=(noted.described(files),))

    @asynccontextmanager
    async def adding(self, model: NotedModel) -> AsyncIterator[None]:
        await self._stored.adding(model.path, model.versions[0], self._replica)
        try:
            yield
        except BaseException:
            with suppress(GatehouseError):  # both are right then, until somebody replaces it
                await self._stored.kept(model.path)
            raise
        with suppress(GatehouseError):
            await self._stored.added(model.path)

    async def removed(self, paths: Iterable[Path]) -> None:
        names = [path.relative_to(self._root).as_posix() for path in paths]
        try:
            await self._stored.removed(names)
        except GatehouseError as error:  # whoever adds one of this name through a gateway replaces what is noted
            log.warning("the record of what the deleted model %s consisted of could not be removed: %s", names[0], error.message)

    # --- engines.host.catalogue.noted.Notes, in threads

    def of(self, path: Path) -> tuple[Path, NotedModel | None] | None:
        """Asks the store, so that what another replica has just added is known."""
        if not path.is_relative_to(self._real) or path == self._real:
            return None
        parts = path.relative_to(self._real).parts
        names = ["/".join(parts[:number]) for number in range(1, len(parts) + 1)]
        found = self._asked(names)
        for name in names:
            if name in found:
                return self._real / name, found[name]
        return path, None

    def _asked(self, names: list[str]) -> dict[str, NotedModel]:
        """Raises OSError."""
        assert self._loop is not None
        asking: Coroutine[Any, Any, dict[str, NotedModel]] = self._stored.every(names)
        waiting: Future[dict[str, NotedModel]] = asyncio.run_coroutine_threadsafe(asking, self._loop)
        try:
            found = waiting.result(ASK_SECONDS)
        except (GatehouseError, TooLong) as error:
            waiting.cancel()
            log.warning("the store cannot say what model %s consists of (%s): its last answer counts", names[-1], error)
            return {name: self._known[name] for name in names if name in self._known}
        for name in names:
            self._known.pop(name, None)
        self._known.update(found)
        return found

    def seen(self, path: Path, files: tuple[SharedFile, ...]) -> None:
        if len(self._seen) < MAX_SEEN:
            self._seen[path.relative_to(self._real).as_posix()] = files

    async def note_seen(self) -> None:
        """Notes what engines have loaded that nobody had noted. Raises StoreUnavailable."""
        for path, files in list(self._seen.items()):
            await self._stored.seen(path, files, self._replica)
            self._seen.pop(path, None)
            log.info("model %s in the shared directory was noted as it is: nobody had added it through a gateway", path)
