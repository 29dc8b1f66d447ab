"""Files that gateways have sent: what was altered on this machine's disk is found and deleted, so that it is sent again."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

from gateway.app.joined.received import ReceivedFiles
from gateway.core.errors import GatehouseError
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


async def test_what_comes_at_once_is_together_within_the_bound(tmp_path: Path) -> None:
    most, size = 1 << 20, 700_000
    kept = ReceivedFiles(tmp_path, most, lambda: ())
    await kept.start()
    contents = [bytes([at]) * size for at in range(3)]
    sums = [hashlib.sha256(data).hexdigest() for data in contents]
    for sha256, data in zip(sums, contents, strict=True):  # each finds room, as nothing of the others is there yet
        assert (await kept.append(sha256, size, 0, _parts(data[:1000]))).offset == 1000
    arrived = []
    for sha256, data in zip(sums, contents, strict=True):
        try:
            arrived.append((await kept.append(sha256, size, 1000, _parts(data[1000:]))).offset)
        except GatehouseError as error:  # it was deleted to make room for another
            arrived.append(0)
            assert error.code in ("offset_mismatch", "insufficient_storage")
        on_disk = sum(path.stat().st_size for folder in ("files", "parts") for path in (tmp_path / folder).iterdir())
        assert on_disk == kept.used <= most
    assert size in arrived, "one of them has room"
    await kept.aclose()


async def test_no_piece_goes_beyond_the_bound_when_two_write_at_the_same_time(tmp_path: Path) -> None:
    most, size = 1 << 20, 700_000
    kept = ReceivedFiles(tmp_path, most, lambda: ())
    await kept.start()
    go = asyncio.Event()

    async def slowly(data: bytes) -> AsyncIterator[bytes]:
        yield data[:1000]
        await go.wait()
        yield data[1000:]

    contents = [bytes([at]) * size for at in range(2)]
    sending = [asyncio.ensure_future(kept.append(hashlib.sha256(data).hexdigest(), size, 0, slowly(data))) for data in contents]
    await reached(lambda: len(kept._busy) == 2, what="both under way")
    go.set()
    done = await asyncio.gather(*sending, return_exceptions=True)
    assert [one.code for one in done if isinstance(one, GatehouseError)] == ["insufficient_storage"], done
    await reached(lambda: kept.used == size == sum(path.stat().st_size for path in (tmp_path / "files").iterdir()), what="the other")
    await kept.aclose()
