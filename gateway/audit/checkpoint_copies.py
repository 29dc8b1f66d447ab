"""Copies of checkpoints in a second place, where whoever controls this machine cannot rewrite them. Everything here blocks."""

from __future__ import annotations

import os
import urllib.request
from pathlib import Path
from typing import Final
from urllib.error import HTTPError, URLError

from gateway.audit.archive import Archive
from gateway.audit.signing_keys import FILE
from gateway.audit.sinks.file import checkpoints_name, sync_directory
from gateway.core.addresses import quotable
from gateway.core.errors import ConfigError
from gateway.core.specs.retention import CopySpec

MOST: Final = 1024 * 1024
"""Bytes of one request."""
TAIL: Final = 64 * 1024
"""More than any line has, in bytes: where a line that was cut off is looked for."""


class CopyFailed(OSError):
    """The second place did not take the checkpoints. The message says why."""


def checked(spec: CopySpec, path: str, archive: Archive | None) -> CopySpec:
    """Raises ConfigError, with the path, unless the settings name exactly one place."""
    if [spec.folder is not None, spec.url is not None, spec.archive].count(True) != 1:
        raise ConfigError("say one of `folder`, `url` and `archive: true`", path=path)
    if spec.archive and archive is None:
        raise ConfigError("there is no archive: set audit.retention.archive", path=path)
    if spec.url is not None and not spec.url.startswith(("https://", "http://127.0.0.1", "http://localhost", "http://[::1]")):
        raise ConfigError(f"{quotable(spec.url)!r} must begin with https:// (http:// only on this machine)", path=f"{path}.url")
    return spec


class CheckpointCopy:
    """One place. `take` copies what a writer's checkpoints file has beyond its first `done` bytes, and returns how many bytes are copied
    now. Raises CopyFailed, OSError."""

    def __init__(self, name: str, spec: CopySpec, archive: Archive | None) -> None:
        self.name, self._spec, self._archive = name, spec, archive

    def take(self, directory: Path, writer: str, done: int) -> int:
        path = directory / checkpoints_name(writer)
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            begin = done if done <= size else 0  # it is not the file that was copied: all of it again, behind what is there
            if self._archive is not None and self._spec.archive:
                file.seek(0)
                data = file.read()
                data = data[: data.rfind(b"\n") + 1]
                if len(data) != done:
                    self._archive.put(path.name, data, locked=False)
                    if (keys := directory / FILE).exists():
                        self._archive.put(FILE, keys.read_bytes(), locked=False)
                return len(data)
            file.seek(begin)
            data = file.read(MOST)
        data = data[: data.rfind(b"\n") + 1]
        if not data:
            return begin
        if self._spec.folder is not None:
            self._append(Path(self._spec.folder) / path.name, data)
        else:
            self._post(data)
        return begin + len(data)

    def _append(self, path: Path, data: bytes) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with path.open("a+b") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
            there = file.read()
            if torn := there[there.rfind(b"\n") + 1 :]:  # a kill or a full disk cut a line off; nothing of the copy is taken back
                data = data[len(torn) :] if data.startswith(torn) else b"\n" + data
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        sync_directory(path.parent)

    def _post(self, data: bytes) -> None:
        assert self._spec.url is not None
        headers = {"content-type": "application/x-ndjson"}
        if self._spec.token is not None:
            headers["authorization"] = f"Bearer {self._spec.token.reveal()}"
        request = urllib.request.Request(self._spec.url, data, headers, method="POST")
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirects())
        try:
            with opener.open(request, timeout=self._spec.timeout):
                pass
        except HTTPError as error:
            error.close()
            raise CopyFailed(f"{self._spec.url} answered {error.code}") from None
        except (URLError, OSError) as error:
            raise CopyFailed(f"{self._spec.url}: {getattr(error, 'reason', error)}") from None


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        return None
