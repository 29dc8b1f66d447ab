"""Forms with a file: what is forwarded says what came, in whatever order and pieces it came; hostile forms end in a RequestError."""

from __future__ import annotations

import asyncio
import json
from email.parser import BytesParser
from email.policy import HTTP
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import RequestError
from gateway.pipeline import uploading
from gateway.pipeline.uploading import HELD_BYTES, Upload
from gateway.server.multipart import MultipartReader, Part

NAMES = st.text("abcdefgh_[]", min_size=1, max_size=12).filter(lambda name: name != "file" and not name.endswith("[]"))
TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=30).filter(lambda text: "--xY" not in text and "\x00" not in text)
FILES = st.binary(max_size=200).filter(lambda data: b"--xY" not in data)


class Sink:
    def __init__(self) -> None:
        self.data = b""
        self.ended = False

    def more(self, data: bytes) -> None:
        self.data += data

    def last(self) -> None:
        self.ended = True


def upload_of(guarded: bool = False, most: int = 1 << 20) -> tuple[Upload, Any]:
    entry = SimpleNamespace(request_guardrails=("one",) if guarded else (), spec=SimpleNamespace(unknown_fields="refuse"))
    snapshot = SimpleNamespace(
        spec=SimpleNamespace(listen=SimpleNamespace(max_body_bytes=most)),
        models={"m": entry},
        audit=SimpleNamespace(hash_body=lambda data: data.hex()[:8]),
    )
    request = SimpleNamespace(model="m")
    x: Any = SimpleNamespace(snapshot=snapshot, plane=SimpleNamespace(texts=None), entry=None, request=request, detail=None, held=0)
    x.client = SimpleNamespace(reserve=lambda size: setattr(x, "held", x.held + size))
    return Upload(x, 0, lambda: None), x


def feed(upload: Upload, body: bytes, sizes: list[int]) -> None:
    reader, place, turn = MultipartReader(b"xY"), 0, 0
    while place < len(body):
        size = sizes[turn % len(sizes)]
        for event in reader.feed(body[place : place + size]):
            if isinstance(event, Part):
                upload.part(event.name, event.filename)
            else:
                upload.data(event.data)
        place, turn = place + size, turn + 1
    reader.finish()
    upload.end()


def written(parts: list[tuple[str, str | bytes]]) -> bytes:
    found = b""
    for name, content in parts:
        more = '; filename="a b.WAV"' if isinstance(content, bytes) else ""
        data = content if isinstance(content, bytes) else content.encode()
        found += b'--xY\r\nContent-Disposition: form-data; name="' + name.encode() + b'"' + more.encode() + b"\r\n\r\n" + data + b"\r\n"
    return found + b"--xY--\r\n"


def read_again(content: bytes, body: bytes) -> tuple[dict[str, list[str]], list[tuple[str, bytes]]]:
    """By the standard library's parser."""
    message = BytesParser(policy=HTTP).parsebytes(content + b"\r\n" + body)
    texts: dict[str, list[str]] = {}
    files = []
    for part in message.iter_parts():
        data: Any = part.get_payload(decode=True)
        name = str(part.get_param("name", header="content-disposition"))
        if part.get_filename() is not None:
            files.append((str(part.get_filename()), data))
        else:
            texts.setdefault(name, []).append(data.decode())
    return texts, files


@given(
    st.dictionaries(NAMES, TEXTS, max_size=4), st.lists(TEXTS, max_size=3), FILES, st.randoms(), st.lists(st.integers(1, 40), min_size=1)
)
def test_what_is_forwarded_is_what_came(texts: dict[str, str], many: list[str], file: bytes, random: Any, sizes: list[int]) -> None:
    parts: list[tuple[str, str | bytes]] = [("model", "m"), *((n, t) for n, t in texts.items() if n != "model"), ("file", file)]
    parts += [("many[]", one) for one in many]
    random.shuffle(parts)
    upload, x = upload_of()
    feed(upload, written(parts), sizes)
    assert upload.opening.done and x.detail["file"]["bytes"] == len(file)
    body, whole = upload.body(upload.fields())
    assert whole and b"a b" not in body, "the name of a file stays here"
    expected: dict[str, list[str]] = {}
    for name, value in parts:
        if isinstance(value, str):
            expected.setdefault(name, []).append(value)
    found = json.loads(upload.fields())
    assert {name: value if isinstance(value, list) else [value] for name, value in found.items()} == expected
    again, files = read_again(upload.content, body)
    assert files == [("audio.wav", file)] and set(again) == set(expected)


@given(st.binary(max_size=400), st.lists(st.integers(1, 40), min_size=1))
def test_no_bytes_break_it(data: bytes, sizes: list[int]) -> None:
    upload, _ = upload_of()
    with pytest.raises(RequestError):
        feed(upload, data, sizes)


async def test_a_large_file_is_held_until_an_engine_takes_it() -> None:
    upload, x = upload_of()
    upload.part("model", None)
    upload.data(b"m")
    upload.part("file", "a.mp3")
    block = b"z" * 65536
    while not upload.opening.done:
        upload.data(block)
        waiting = asyncio.ensure_future(upload.room())
        await asyncio.sleep(0)
        assert waiting.done() == (not upload.opening.done)
    assert HELD_BYTES < x.held <= 2 * HELD_BYTES and upload.waits
    body, whole = upload.body(upload.fields())
    assert not whole and body.count(block) >= HELD_BYTES // 65536
    sink = Sink()
    upload.attached(sink)
    await waiting
    upload.pause()
    assert upload.waits
    upload.data(b"more")
    upload.resume()
    assert not upload.waits and sink.data == b"more"
    upload.end()
    assert sink.ended and upload.sent and read_again(upload.content, body + sink.data)[1][0][1].endswith(b"zmore")


def test_what_is_held_back_is_bounded() -> None:
    upload, _ = upload_of(most=100)
    upload.part("file", "a.mp3")
    upload.data(b"z" * 101)
    with pytest.raises(RequestError) as early:
        asyncio.run(upload.room())
    assert early.value.param == "model"
    upload, _ = upload_of(guarded=True)
    upload.part("model", None)
    upload.data(b"m")
    upload.part("file", "a.mp3")
    upload.data(b"z" * (HELD_BYTES + 1))
    asyncio.run(upload.room())
    assert not upload.opening.done, "a guardrail wants all the texts"
    upload.opening.set(None)
    with pytest.raises(RequestError) as late:
        upload.part("prompt", None)
    assert late.value.param == "prompt"


@pytest.mark.parametrize(
    ("parts", "param"),
    [
        ([("model", "m"), ("model", "m"), ("file", b"")], "model"),
        ([("file", b""), ("file", b"")], "file"),
        ([("model", "m")], "file"),
        ([("model", "m"), ("other", b"x")], "file"),
        ([("a" * 65, "m"), ("file", b"")], "a" * 64),
        ([("prompt", "a" * (uploading.MAX_TEXT + 1)), ("file", b"")], "prompt"),
    ],
)
def test_what_is_refused(parts: list[tuple[str, str | bytes]], param: str) -> None:
    upload, _ = upload_of()
    with pytest.raises(RequestError) as refused:
        feed(upload, written(parts), [4096])
    assert refused.value.param == param
