"""Files that gateways have sent: what was altered on this machine's disk is found and deleted, so that it is sent again."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

from gateway.app.joined.received import ReceivedFiles
from gateway.core.placing import SentFile
from tests.waiting import reached

CONTENT = (b"weights" * 1000, b"a signature")


async def _parts(data: bytes) -> AsyncIterator[bytes]:
    yield data


async def test_what_was_altered_is_deleted_and_can_come_again(tmp_path: Path) -> None:
    kept = ReceivedFiles(tmp_path, 1 << 20, lambda: ())
    await kept.start()
    files = [SentFile(path=f"f{at}.gguf", size=len(data), sha256=hashlib.sha256(data).hexdigest()) for at, data in enumerate(CONTENT)]

    async def send() -> None:
        for file, data in zip(files, CONTENT, strict=True):
            await kept.append(file.sha256, file.size, 0, _parts(data))
            await reached(lambda file=file: kept.state(file.sha256, file.size).verified, what="its checksum")

    await send()
    assert not await kept.recheck(files) and kept.missing(files) == []
    path = tmp_path / "files" / files[0].sha256
    path.chmod(0o600)
    path.write_bytes(CONTENT[0].swapcase())
    assert await kept.recheck(files) and kept.missing(files) == [files[0].sha256] and kept.used == len(CONTENT[1])
    assert not await kept.recheck(files), "one that is not here is not altered"
    await kept.append(files[0].sha256, files[0].size, 0, _parts(CONTENT[0]))
    await reached(lambda: kept.missing(files) == [], what="it came again")
    await kept.aclose()
