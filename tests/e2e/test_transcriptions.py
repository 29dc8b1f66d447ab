"""Recordings are passed on while they arrive, under every policy; the official clients, hostile forms and slow senders."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.e2e.harness import KEY, NARROW_KEY, Gatehouse, configuration, external
from tests.fakes.hearing import Hearing, hearing_engine
from tests.waiting import until

CLIENTS = Path(__file__).parents[1] / "clients"
SMALL = bytes(range(256)) * 40
LARGE = os.urandom(1 << 20) * 20
PATH = "/v1/audio/transcriptions"
ONCE = "once-key-0123456789abcdef0123456789abcdef"
BOUNDARY = "edge0123456789"


@pytest.fixture(scope="module")
def ears() -> Iterator[Hearing]:
    with hearing_engine() as engine:
        yield engine


@pytest.fixture(autouse=True)
def reset(ears: Hearing) -> Iterator[None]:
    ears.reset()
    yield
    ears.reset()


@pytest.fixture(scope="module")
def heard(tmp_path_factory: pytest.TempPathFactory, ears: Hearing) -> Iterator[Gatehouse]:
    """Models: `plain`; `guarded` has a guardrail on its requests, `inspected` on its answers."""
    yield from listening(tmp_path_factory.mktemp("heard"), ears)


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory, ears: Hearing) -> Iterator[Gatehouse]:
    """The same, without patience for slow senders."""
    yield from listening(tmp_path_factory.mktemp("hasty"), ears, body_timeout=2.0)


def listening(directory: Path, ears: Hearing, **listen: Any) -> Iterator[Gatehouse]:
    deny = {"phrases": ["project aurora"], "action": "block"}
    mask = {"phrases": ["project falcon"], "action": "mask"}
    config = configuration(
        directory / "state",
        engines=[external("ears", ears.port, slots=8)],
        models=[{"name": name, "pool": ["ears"]} for name in ("plain", "guarded", "inspected")],
        guardrails=[
            {"name": "phrases", "type": "denylist", "on": ["request"], "models": ["guarded"], "settings": deny},
            {"name": "out", "type": "denylist", "on": ["response"], "models": ["inspected"], "settings": mask},
        ],
        limits=[{"name": "once", "match": {"key": "once"}, "requests": {"rate": 1, "per": "1h"}}],
        listen=listen,
    )
    static = config["identity"]["api_keys"]["static"]
    static.append({"id": "once", "key": ONCE, "tenant": "acme", "models": ["plain"]})
    with Gatehouse(directory, config) as running:
        yield running


def client_of(gatehouse: Gatehouse, key: str = KEY) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{gatehouse.url}/v1", api_key=key, max_retries=0, timeout=60)


def form(*parts: tuple[str, bytes | str], boundary: str = BOUNDARY) -> bytes:
    """A form in this order; bytes are a file."""
    written = []
    for name, content in parts:
        more = '; filename="a.wav"\r\ncontent-type: audio/wav' if isinstance(content, bytes) else ""
        head = f'--{boundary}\r\ncontent-disposition: form-data; name="{name}"{more}\r\n\r\n'
        written.append(head.encode() + (content if isinstance(content, bytes) else content.encode()) + b"\r\n")
    return b"".join(written) + f"--{boundary}--\r\n".encode()


def post(gatehouse: Gatehouse, body: Any, key: str | None = KEY, path: str = PATH) -> httpx.Response:
    with gatehouse.client(key) as client:
        return client.post(path, content=body, headers={"content-type": f"multipart/form-data; boundary={BOUNDARY}"})


def digest(data: bytes) -> tuple[int, str]:
    return len(data), hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("recording", [SMALL, LARGE], ids=["small", "large"])
def test_the_python_client_sees_the_same_as_direct(heard: Gatehouse, ears: Hearing, recording: bytes) -> None:
    direct = openai.OpenAI(base_url=f"http://127.0.0.1:{ears.port}/v1", api_key="x", max_retries=0)
    with direct, client_of(heard) as client:
        for one in (direct, client):
            said = one.audio.transcriptions.create(
                model="plain",
                file=("my secret.wav", recording),
                prompt="names",
                temperature=0.2,
                response_format="verbose_json",
                timestamp_granularities=["word", "segment"],
            )
            assert said.text == "hello gate"
            with pytest.warns(DeprecationWarning):
                assert one.audio.translations.create(model="plain", file=("a.mp3", recording)).text == "hello gate"
    there, also, here, too = ears.received[-4:]
    assert here.texts == there.texts and here.file == there.file == digest(recording) and here.path == there.path
    assert too.texts == also.texts and too.path == "/v1/audio/translations"
    assert here.filename == "audio.wav" and "authorization" not in here.headers, "nothing else of the client reaches the engine"

    def recorded() -> dict[str, Any] | None:
        found = [one for one in heard.audit() if one.get("operation") == "transcriptions" and one["kind"] == "outcome"]
        return next((one for one in reversed(found) if one["detail"]["file"]["bytes"] == len(recording)), None)

    outcome: dict[str, Any] = until(recorded, what="the outcome")
    assert len(outcome["detail"]["file"]["hash"]) > 30
    assert (outcome["model"], outcome["principal"], outcome["status"]) == ("plain", "test", 200)


@pytest.mark.parametrize(("size", "order"), [(1000, "first"), (5_000_000, "first"), (5_000_000, "last"), (20_000_000, "last")])
def test_the_node_client(heard: Gatehouse, ears: Hearing, size: int, order: str) -> None:
    run = subprocess.run(
        ["node", "openai.mjs", "transcribe", json.dumps({"params": {"bytes": size, "order": order, "model": "plain", "prompt": "names"}})],
        cwd=CLIENTS,
        env={**os.environ, "OPENAI_BASE_URL": f"{heard.url}/v1", "OPENAI_API_KEY": KEY},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    said = json.loads(run.stdout)
    assert said["transcript"]["text"] == "hello gate", said
    assert ears.received[-1].file == digest(b"\x07" * size)
    assert ears.received[-1].texts == {"model": ["plain"], "prompt": ["names"]}


def test_credentials_access_limits_and_guardrails_hold(heard: Gatehouse, ears: Hearing) -> None:
    before = ears.begun
    whole = form(("model", "plain"), ("file", SMALL))
    assert post(heard, whole, None).status_code == 401
    assert post(heard, whole, NARROW_KEY).status_code == 404
    assert post(heard, form(("model", "nothing"), ("file", SMALL))).status_code == 404
    for order in (
        [("model", "guarded"), ("prompt", "Project  Aurora"), ("file", SMALL)],
        [("file", SMALL), ("model", "guarded"), ("prompt", "project aurora")],
    ):
        for recording in (SMALL, LARGE[: 1 << 20]):
            parts = [(name, recording if name == "file" else value) for name, value in order]
            refused = post(heard, form(*parts))
            assert refused.status_code == 400 and "aurora" not in refused.text.lower(), refused.text
            assert heard.outcome(refused.headers["x-request-id"])["guardrail"] == "phrases"
    assert ears.begun == before, "none of these reached the engine"
    assert post(heard, whole, ONCE).status_code == 200
    limited = post(heard, whole, ONCE)
    assert limited.status_code == 429 and limited.headers["retry-after"]


def test_texts_behind_a_large_file_are_judged_or_refused(heard: Gatehouse, ears: Hearing) -> None:
    late = [("file", LARGE), ("prompt", "project aurora")]
    refused = post(heard, form(("model", "guarded"), *late))
    assert refused.status_code == 400 and "before the file" in refused.text
    seen = len(ears.received)
    passed = post(heard, form(("model", "plain"), ("file", LARGE), ("prompt", "names"), ("language", "de")))
    assert passed.status_code == 200, passed.text
    assert ears.received[-1].texts == {"model": ["plain"], "prompt": ["names"], "language": ["de"]} and len(ears.received) == seen + 1
    for more, why in (
        ([("model", "guarded")], "model is given twice"),
        ([("stream", "true")], "stream"),
        ([("nonsense", "1")], "nonsense"),
        ([("file", b"again")], "only one is allowed"),
    ):
        wrong = post(heard, form(("model", "plain"), ("file", LARGE), *more))
        assert wrong.status_code == 400 and why in wrong.text, wrong.text
    unknown = post(heard, form(("file", LARGE), ("model", "plain")))
    assert unknown.status_code == 400 and "before the file" in unknown.text
    assert len(ears.received) == seen + 1, "the engine got none of these whole"


def test_the_form_of_the_answer_may_stand_behind_a_large_file(heard: Gatehouse, ears: Hearing) -> None:
    """Clients write the fields in the order in which a program names them."""
    ears.say(SUBTITLES, "application/x-subrip")
    said = post(heard, form(("model", "plain"), ("file", LARGE), ("response_format", "srt")))
    assert (said.status_code, said.text) == (200, SUBTITLES), said.text
    assert said.headers["content-type"].startswith("application/x-subrip")
    assert ears.received[-1].texts == {"model": ["plain"], "response_format": ["srt"]}


SUBTITLES = "1\n00:00:00,000 --> 00:00:01,000\nwe call it project\n\n2\n00:00:01,000 --> 00:00:02,000\nfalcon here\n"


def test_guardrails_read_what_was_said(heard: Gatehouse, ears: Hearing) -> None:
    def ask(kind: str) -> httpx.Response:
        return post(heard, form(("model", "inspected"), ("response_format", kind), ("file", SMALL)))

    ears.say(
        {
            "text": "it is project falcon",
            "language": "en",
            "segments": [{"id": 0, "text": "it is project"}, {"id": 1, "text": " falcon"}],
            "words": [{"word": "project"}, {"word": "falcon"}],
            "x_debug": "project falcon",
            "usage": {"type": "duration", "seconds": 3},
        }
    )
    masked = ask("verbose_json")
    assert masked.status_code == 200 and "falcon" not in masked.text, masked.text
    assert masked.json()["text"].startswith("it is ") and masked.json()["language"] == "en"
    ears.say({"text": "all fine", "words": [{"word": " it"}, {"word": " is project fal"}, {"word": "con"}]})
    assert "words" not in ask("verbose_json").json(), "what only the words say, with nothing between them"
    ears.say({"text": "All, fine.", "words": [{"word": "All"}, {"word": "fine"}]})
    assert ask("verbose_json").json()["words"] == [{"word": "All"}, {"word": "fine"}]
    ears.say({"text": "all fine", "segments": [{"id": 0, "text": "all fine", "tokens": [1]}]})
    assert ask("verbose_json").json() == {"text": "all fine", "segments": [{"id": 0, "text": "all fine"}]}
    ears.say("it is project falcon", "text/plain; charset=utf-8")
    masked = ask("text")
    assert masked.status_code == 200 and "falcon" not in masked.text and masked.headers["content-type"].startswith("text/plain")
    ears.say(SUBTITLES, "application/x-subrip")
    over = ask("srt")
    assert over.status_code == 400 and "falcon" not in over.text, over.text
    ears.say(SUBTITLES.replace("falcon", "sparrow"), "application/x-subrip")
    assert ask("srt").text == SUBTITLES.replace("falcon", "sparrow")
    for broken in ("[1]", '{"segments": []}', '{"text": 1}'):
        ears.say(broken)
        assert ask("json").status_code == 502


def edged(*parts: tuple[str, bytes], end: bytes = b"--edge--\r\n") -> bytes:
    """A form with these parts behind a model: (what follows `form-data; `, content)."""
    written = [b"--edge\r\ncontent-disposition: form-data; %b\r\n\r\n%b\r\n" % (head.encode(), content) for head, content in parts]
    return b'--edge\r\ncontent-disposition: form-data; name="model"\r\n\r\nplain\r\n' + b"".join(written) + end


A_FILE = ('name="file"; filename="a"', b"abc")
FORM = "multipart/form-data; boundary=edge"
HOSTILE = {
    "no boundary": (b"x", "multipart/form-data"),
    "json": (b"{}", "application/json"),
    "empty": (b"", FORM),
    "never begins": (b"a" * 300_000, FORM),
    "no end": (edged(A_FILE, end=b""), FORM),
    "no file": (edged(), FORM),
    "many parts": (edged(*[('name="a[]"', b"1")] * 5000, A_FILE), FORM),
    "large head": (edged(('name="a"\r\nx: ' + "a" * 100_000, b"1"), A_FILE), FORM),
    "large text": (edged(('name="prompt"', b"a" * 400_000), A_FILE), FORM),
    "encoded": (edged(('name="file"; filename="a"\r\ncontent-transfer-encoding: base64', b"YQ==")), FORM),
    "two models": (edged(('name="model"', b"plain"), A_FILE), FORM),
    "model as a file": (edged(('name="model"; filename="m"', b"plain"), A_FILE), FORM),
    "not utf-8": (edged(('name="prompt"', b"\xff\xfe"), A_FILE), FORM),
    "another disposition": (edged(("x", b"1"), A_FILE).replace(b"form-data; x", b"attachment"), FORM),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_forms_reach_no_engine(heard: Gatehouse, ears: Hearing, name: str) -> None:
    before = ears.begun
    body, kind = HOSTILE[name]
    with heard.client(KEY) as client:
        refused = client.post(PATH, content=body, headers={"content-type": kind})
        assert refused.status_code in (400, 415), refused.text
        assert client.get("/livez").status_code == 200
    assert ears.begun == before


def test_a_form_on_a_socket_or_in_another_path_is_none(heard: Gatehouse) -> None:
    with heard.client(KEY) as client:
        for path in (PATH + "/", "/v1/audio/Transcriptions", "/v1/audio/transcriptions%2f", "/v1/chat/completions"):
            sent = client.post(path, content=form(("file", SMALL)), headers={"content-type": f"multipart/form-data; boundary={BOUNDARY}"})
            assert sent.status_code in (404, 415), path


def test_of_a_large_file_only_a_little_is_held(heard: Gatehouse, ears: Hearing) -> None:
    """The engine stops reading: the client is held up, after as much as sockets and buffers take. Then all of it arrives."""
    sent = 0

    def pieces() -> Iterator[bytes]:
        nonlocal sent
        whole = form(("model", "plain"), ("file", LARGE))
        for start in range(0, len(whole), 65536):
            sent = start
            yield whole[start : start + 65536]

    ears.gate.clear()
    answers: list[httpx.Response] = []
    thread = threading.Thread(target=lambda: answers.append(post(heard, pieces())))
    thread.start()
    try:
        seen = -1
        steady = 0.0
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:  # until nothing more goes for a second
            if sent != seen:
                seen, steady = sent, time.monotonic()
            elif sent and time.monotonic() - steady > 1.0:
                break
            threading.Event().wait(0.05)
        assert 0 < sent < len(LARGE) * 3 // 4, "the gateway took all of it while the engine took nothing"
    finally:
        ears.gate.set()
        thread.join(60)
    assert answers[0].status_code == 200 and ears.received[-1].file == digest(LARGE)


def test_an_engine_that_refuses_early_and_a_client_that_leaves(heard: Gatehouse, ears: Hearing) -> None:
    ears.refuses = 413
    refused = post(heard, form(("model", "plain"), ("file", LARGE)))
    assert refused.status_code in (413, 502), refused.text
    ears.reset()
    ears.gate.clear()
    begun = ears.begun
    sock = raw(heard, len(form(("model", "plain"), ("file", LARGE))))
    sock.sendall(form(("model", "plain"), ("file", LARGE))[: 1 << 20])
    until(lambda: ears.begun > begun, 30)
    sock.close()
    ears.gate.set()
    until(lambda: heard.metric("gatehouse_in_flight") == 0, what="the end of the request")
    assert post(heard, form(("model", "plain"), ("file", SMALL))).status_code == 200


def raw(gatehouse: Gatehouse, length: int) -> socket.socket:
    host, port = gatehouse.url.removeprefix("http://").split(":")
    sock = socket.create_connection((host, int(port)), timeout=60)
    sock.sendall(
        f"POST {PATH} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\ncontent-type: multipart/form-data; boundary={BOUNDARY}\r\n"
        f"content-length: {length}\r\n\r\n".encode()
    )
    return sock


@pytest.mark.parametrize("drips", [False, True], ids=["silent", "a byte at a time"])
@pytest.mark.parametrize("size", [1000, len(LARGE)], ids=["held", "passed on"])
def test_slow_senders_are_cut_off(hasty: Gatehouse, ears: Hearing, drips: bool, size: int) -> None:
    whole = form(("model", "plain"), ("file", LARGE[:size]))
    sock = raw(hasty, len(whole))
    begin = min(len(whole) - 300, 600_000)
    with suppress(OSError):  # a machine that stands still for two seconds is cut off here
        sock.sendall(whole[:begin])
    ended, dripped = threading.Event(), 0

    def drip() -> None:
        nonlocal dripped
        for place in range(begin, begin + 200):
            try:
                sock.sendall(whole[place : place + 1])
            except OSError:
                return
            dripped += 1
            if ended.wait(0.2):
                return

    thread = threading.Thread(target=drip)
    if drips:
        thread.start()
    try:
        answer = sock.recv(65536)
        assert answer.startswith(b"HTTP/1.1 408 "), answer[:200]
        assert dripped < 200, "listen.body_timeout is 2 seconds, not 2 after the last byte"
    finally:
        ended.set()
        sock.close()
        if drips:
            thread.join()
