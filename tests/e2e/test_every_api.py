"""No API is a way around: credentials, access, limits, guardrails and records hold for each; images and speech pass byte for byte."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import openai
import pytest

from tests.e2e.conftest import EngineThread
from tests.e2e.harness import KEY, NARROW_KEY, OTHER_KEY, Gatehouse, configuration, external
from tests.e2e.test_sockets import opened

SOUND = bytes(range(256)) * 1000
PICTURE = base64.b64encode(b"picture" * 999).decode()
HOUR = {"requests": {"rate": 1, "per": "1h"}}
MESSAGES = [{"role": "user", "content": "TEXT"}]
APIS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", "chat", {"messages": MESSAGES}),
    "chat stream": ("/v1/chat/completions", "chat", {"messages": MESSAGES, "stream": True}),
    "completions": ("/v1/completions", "completions", {"prompt": "TEXT"}),
    "engines": ("/v1/engines/MODEL/completions", "completions", {"prompt": "TEXT"}),
    "messages": ("/v1/messages", "chat", {"messages": MESSAGES, "max_tokens": 9}),
    "messages stream": ("/v1/messages", "chat", {"messages": MESSAGES, "max_tokens": 9, "stream": True}),
    "responses": ("/v1/responses", "chat", {"input": "TEXT"}),
    "responses stream": ("/v1/responses", "chat", {"input": [{"role": "user", "content": "TEXT"}], "stream": True}),
    "embeddings": ("/v1/embeddings", "embeddings", {"input": "TEXT"}),
    "rerank": ("/v2/rerank", "rerank", {"query": "q", "documents": ["TEXT"]}),
    "score": ("/score", "score", {"text_1": "q", "text_2": ["TEXT"]}),
    "classify": ("/classify", "classify", {"input": "TEXT"}),
    "tokenize": ("/tokenize", "tokenize", {"prompt": "TEXT"}),
    "tokenize a chat": ("/v1/tokenize", "tokenize", {"messages": MESSAGES}),
    "images": ("/v1/images/generations", "images", {"prompt": "TEXT"}),
    "speech": ("/v1/audio/speech", "speech", {"input": "TEXT", "voice": "alloy"}),
}
"""Name -> path, operation, body without its model."""


MEDIA = ("images", "speech", "embeddings", "rerank", "score", "classify", "tokenize")
"""Operations that the fake chat engine does not have."""
TEXTS: dict[str, Any] = {
    "/v1/embeddings": {"object": "list", "data": [{"object": "embedding", "index": 0, "embedding": [0.5]}], "usage": {"prompt_tokens": 3}},
    "/v1/rerank": {"results": [{"index": 0, "relevance_score": 0.5}], "usage": {"total_tokens": 3}},
    "/v1/score": {"object": "list", "data": [{"index": 0, "object": "score", "score": 0.5}], "usage": {"prompt_tokens": 3}},
    "/classify": {"object": "list", "data": [{"index": 0, "label": "a", "probs": [1.0], "num_classes": 1}], "usage": {"prompt_tokens": 3}},
    "/tokenize": {"count": 2, "max_model_len": 99, "tokens": [1, 2], "token_strs": None},
    "/detokenize": {"prompt": "hello"},
}
"""What the engine answers, by path."""


class Media:
    """received: paths and bodies. says, created: what an image's answer has besides the image."""

    def __init__(self) -> None:
        self.port = 0
        self.received: list[tuple[str, dict[str, Any]]] = []
        self.says: dict[str, Any] = {}
        self.created: Any = 1


@contextmanager
def media_engine() -> Iterator[Media]:
    media = Media()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing."""

        def do_GET(self) -> None:
            self._send(b'{"object":"list","data":[]}', "application/json")

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            media.received.append((self.path, body))
            if self.path == "/v1/audio/speech":
                self._send(SOUND, "audio/mpeg; rate=24000")
            elif self.path in TEXTS:
                self._send(json.dumps(TEXTS[self.path]).encode(), "application/json")
            else:
                answer = {
                    "created": media.created,
                    "data": [{"b64_json": PICTURE, **media.says}],
                    "usage": {"input_tokens": 4, "output_tokens": 99},
                }
                self._send(json.dumps(answer).encode(), "application/json")

        def _send(self, body: bytes, kind: str) -> None:
            self.send_response(200)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    media.port = server.server_port
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield media
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(scope="module")
def media() -> Iterator[Media]:
    with media_engine() as engine:
        yield engine


def masked(phrase: str) -> dict[str, Any]:
    return {"phrases": [phrase], "action": "mask"}


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory, engine: EngineThread, media: Media) -> Iterator[Gatehouse]:
    """Models: m1 and pictures; of each a second one with a guardrail on answers; one key for each API, which may ask once."""
    directory = tmp_path_factory.mktemp("every")
    names = [f"once-{number}" for number in range(len(APIS) + 2)]
    config = configuration(
        directory / "state",
        engines=[external("fake", engine.port, slots=64), external("media", media.port, slots=64)],
        models=[{"name": name, "pool": ["fake"]} for name in ("m1", "m2")]
        + [{"name": name, "pool": ["media"]} for name in ("pictures", "inspected")],
        guardrails=[
            {"name": "phrases", "type": "denylist", "on": ["request"], "settings": {"phrases": ["project aurora"], "action": "block"}},
            {"name": "masks", "type": "denylist", "on": ["request"], "settings": masked("bluebird")},
            {
                "name": "out",
                "type": "denylist",
                "on": ["response"],
                "models": ["inspected"],
                "settings": {"phrases": ["falcon"], "action": "mask"},
            },
        ],
        roles={"all": {"permissions": [f"infer:{operation}:model/*" for operation in ("chat", "completions", *MEDIA)]}},
        bindings=[{"effect": "deny", "role": "all", "subjects": ["key/embeds"]}],
        limits=[{"name": name, "match": {"key": name}, **HOUR} for name in names],
    )
    static = config["identity"]["api_keys"]["static"]
    static += [{"id": name, "key": f"{name}-key-0123456789abcdef0123456789", "tenant": "acme", "models": ["*"]} for name in names]
    static.append({"id": "embeds", "key": f"embeds-{KEY}", "tenant": "acme", "models": ["*"]})
    with Gatehouse(directory, config) as running:
        yield running


def ask(gatehouse: Gatehouse, api: str, key: str | None = KEY, text: str = "hello", model: str = "") -> httpx.Response:
    path, operation, body = APIS[api]
    name = model or ("pictures" if operation in MEDIA else "m1")
    filled = json.loads(json.dumps(body).replace("TEXT", text))
    if "MODEL" not in path:
        filled["model"] = name
    with gatehouse.client(key) as client:
        return client.post(path.replace("MODEL", name), json=filled)


TENSOR = {"name": "x", "shape": [1], "datatype": "BYTES", "data": ["a"]}


@pytest.mark.parametrize(
    "written", ["project\\u0020aurora", "\\u0070roject aurora", "project\\naurora", "PROJECT\\tAURORA", "pro\\u200bject aurora"]
)
@pytest.mark.parametrize("nested", [False, True])
def test_no_escape_in_the_json_of_a_text_hides_it(every: Gatehouse, engine: EngineThread, written: str, nested: bool) -> None:
    arguments = f'{{"a": "{written}"}}'
    if nested:
        arguments = json.dumps({"b": arguments})
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "x"},
    ]
    items = [
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": arguments},
        {"type": "function_call_output", "call_id": "1", "output": "x"},
    ]
    before = len(engine.received)
    with every.client(KEY) as client:
        answers = [
            client.post("/v1/chat/completions", json={"model": "m1", "messages": messages}),
            client.post("/v1/responses", json={"model": "m1", "input": items}),
        ]
    assert [answer.status_code for answer in answers] == [400, 400] and len(engine.received) == before, answers[0].text


@pytest.mark.parametrize(
    "body", [{"id": "Project Aurora", "inputs": [TENSOR]}, {"inputs": [{**TENSOR, "parameters": {"a": "project aurora"}}]},
             {"parameters": {"project aurora": 1}, "inputs": [TENSOR]}]
)  # fmt: skip
def test_what_stands_beside_tensors_is_read(every: Gatehouse, engine: EngineThread, body: dict[str, Any]) -> None:
    before = len(engine.received)
    with every.client(KEY) as client:
        refused = client.post("/v2/models/m1/infer", json=body)
    assert refused.status_code == 400 and len(engine.received) == before, refused.text


@pytest.mark.parametrize("api", APIS)
def test_credentials_access_guardrails_and_records_hold(every: Gatehouse, engine: EngineThread, media: Media, api: str) -> None:
    operation = APIS[api][1]
    asked = len(engine.received) + len(media.received)
    assert ask(every, api, None).status_code == 401
    assert ask(every, api, "wrong-" + KEY).status_code == 401
    assert ask(every, api, NARROW_KEY).status_code == 404
    refused = ask(every, api, f"embeds-{KEY}")
    assert refused.status_code in (403, 404), refused.text
    assert ask(every, api, model="nothing").status_code == 404
    blocked = ask(every, api, text="tell of project aurora")
    assert blocked.status_code == 400 and "aurora" not in blocked.text
    assert every.outcome(blocked.headers["x-request-id"])["guardrail"] == "phrases"
    assert len(engine.received) + len(media.received) == asked, "none of these reached an engine"
    passed = ask(every, api, text="fly bluebird fly")
    assert passed.status_code == 200, passed.text
    sent = json.dumps(media.received[-1][1] if operation in MEDIA else engine.received[-1].json())
    assert "bluebird" not in sent and "fly" in sent
    record = every.outcome(passed.headers["x-request-id"])
    assert (record["operation"], record["status"], record["principal"], record["tenant"]) == (operation, 200, "test", "acme")
    assert record["model"] == ("pictures" if operation in MEDIA else "m1")


def test_a_limit_counts_for_every_api(every: Gatehouse) -> None:
    for number, api in enumerate(APIS):
        key = f"once-{number}-key-0123456789abcdef0123456789"
        assert ask(every, api, key).status_code == 200, api
        for other in APIS:
            limited = ask(every, other, key)
            assert limited.status_code == 429 and limited.headers["retry-after"], (api, other)


def test_limits_and_access_on_a_socket(every: Gatehouse) -> None:
    with opened(every, f"once-{len(APIS)}-key-0123456789abcdef0123456789") as socket:
        assert socket.answer("a", body={"model": "m1", "messages": [{"role": "user", "content": "hi"}]})["status"] == 200
        for number, (path, operation, body) in enumerate(APIS.values()):
            if "MODEL" not in path and not body.get("stream"):
                model = "pictures" if operation in MEDIA else "m1"
                assert socket.answer(f"{number}", path=path, body={**body, "model": model})["status"] == 429, path


def test_access_guardrails_and_records_on_a_socket(every: Gatehouse, engine: EngineThread, media: Media) -> None:
    shapes = {api: one for api, one in APIS.items() if "MODEL" not in one[0] and not one[2].get("stream")}
    asked = len(engine.received) + len(media.received)
    with opened(every) as socket:
        for api, (path, operation, body) in shapes.items():
            filled = json.loads(json.dumps(body).replace("TEXT", "tell of project aurora"))
            model = "pictures" if operation in MEDIA else "m1"
            blocked = socket.answer(f"{api} 1", path=path, body={**filled, "model": model})
            assert blocked["status"] == 400 and "aurora" not in json.dumps(blocked), api
            assert every.outcome(blocked["headers"]["x-request-id"])["guardrail"] == "phrases"
            assert socket.answer(f"{api} 2", path=path, body={**filled, "model": "nothing"})["status"] == 404, api
    with opened(every, f"embeds-{KEY}") as socket:
        for api, (path, operation, body) in shapes.items():
            model = "pictures" if operation in MEDIA else "m1"
            assert socket.answer(api, path=path, body={**body, "model": model})["status"] in (403, 404), api
    assert len(engine.received) + len(media.received) == asked, "none of these reached an engine"
    with opened(every) as socket:
        for api, (path, operation, body) in shapes.items():
            filled = json.loads(json.dumps(body).replace("TEXT", "fly bluebird fly"))
            model = "pictures" if operation in MEDIA else "m1"
            passed = socket.answer(f"{api} 3", path=path, body={**filled, "model": model})
            assert passed["status"] == 200, (api, passed)
            sent = json.dumps(media.received[-1][1] if operation in MEDIA else engine.received[-1].json())
            assert "bluebird" not in sent and "fly" in sent, api
            record = every.outcome(passed["headers"]["x-request-id"])
            assert (record["operation"], record["status"], record["principal"], record["model"]) == (operation, 200, "test", model)
        for path in ("/v1/audio/transcriptions", "/v1/audio/translations"):
            assert socket.answer(path, path=path, body={"model": "pictures"})["status"] == 415


def client_of(gatehouse: Gatehouse, key: str = KEY) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{gatehouse.url}/v1", api_key=key, max_retries=0, timeout=60)


def test_images_and_speech_pass_as_they_are(every: Gatehouse, media: Media) -> None:
    direct = openai.OpenAI(base_url=f"http://127.0.0.1:{media.port}/v1", api_key="x", max_retries=0)
    with direct, client_of(every) as client:
        for one in (direct, client):
            made = one.images.generate(model="pictures", prompt="a gate", n=1, size="1024x1024")
            assert made.data is not None and made.data[0].b64_json == PICTURE
            with one.audio.speech.with_streaming_response.create(model="pictures", input="hello", voice="alloy") as spoken:
                assert spoken.read() == SOUND and str(spoken.headers["content-type"]).startswith("audio/mpeg")
    (path, sent), (again, heard) = media.received[-2:]
    assert (path, sent) == ("/v1/images/generations", {"model": "pictures", "prompt": "a gate", "n": 1, "size": "1024x1024"})
    assert (again, heard) == ("/v1/audio/speech", {"model": "pictures", "input": "hello", "voice": "alloy"})
    outcome = every.noted(kind="outcome", operation="images")[-1]
    assert (outcome["prompt_tokens"], outcome["completion_tokens"]) == (4, 99)


def test_what_cannot_be_read_of_answers_does_not_pass_where_answers_are_inspected(every: Gatehouse, media: Media) -> None:
    with client_of(every) as client:
        try:
            media.says = {"revised_prompt": "a falcon over a gate"}
            made = client.images.generate(model="inspected", prompt="a gate")
            assert made.data is not None and made.data[0].b64_json == PICTURE
            assert "falcon" not in str(made.data[0].revised_prompt) and "over a gate" in str(made.data[0].revised_prompt)
            media.says = {"url": "https://elsewhere.example/falcon.png"}
            with pytest.raises(openai.APIStatusError) as elsewhere:
                client.images.generate(model="inspected", prompt="a gate")
            assert elsewhere.value.status_code == 502 and "elsewhere" not in str(elsewhere.value)
            media.says = {"a falcon": 1}
            with pytest.raises(openai.APIStatusError) as unknown:
                client.images.generate(model="inspected", prompt="a gate")
            assert unknown.value.status_code == 502 and "falcon" not in str(unknown.value)
            media.says, media.created = {}, "a falcon"
            assert "falcon" not in client.images.with_raw_response.generate(model="inspected", prompt="a gate").text
        finally:
            media.says, media.created = {}, 1
        with pytest.raises(openai.APIStatusError) as spoken:
            client.audio.speech.create(model="inspected", input="hello", voice="alloy")
        assert spoken.value.code == "guardrail"
        for path, more in (
            ("/images/generations", {"prompt": "x", "stream": True}),
            ("/audio/speech", {"input": "x", "stream_format": "sse"}),
        ):
            with pytest.raises(openai.BadRequestError) as refused:
                client.post(path, body={"model": "pictures", **more}, cast_to=object)
            assert refused.value.code == "unsupported_parameter"


def test_what_the_request_alone_decides_is_refused_before_an_engine_is_asked(every: Gatehouse, media: Media) -> None:
    before = len(media.received)
    with every.client(KEY) as client:
        for path, body in (
            ("/v1/audio/speech", {"input": "hello", "voice": "alloy"}),
            ("/v1/images/generations", {"prompt": "a gate", "response_format": "url"}),
            ("/detokenize", {"tokens": [1]}),
            ("/tokenize", {"prompt": "hello", "return_token_strs": True}),
        ):
            refused = client.post(path, json={"model": "inspected", **body})
            assert refused.status_code == 400 and refused.json()["error"]["type"] == "guardrail_violation", refused.text
            assert every.outcome(refused.headers["x-request-id"])["guardrail"]
    assert len(media.received) == before


def test_tokens_of_texts_and_texts_of_tokens(every: Gatehouse, media: Media) -> None:
    with every.client(KEY) as client:
        made = client.post("/tokenize", json={"model": "pictures", "prompt": "hi", "add_special_tokens": False})
        assert made.json() == TEXTS["/tokenize"] and media.received[-1][1] == {
            "model": "pictures",
            "prompt": "hi",
            "add_special_tokens": False,
        }
        record = every.outcome(made.headers["x-request-id"])
        assert (record["operation"], record.get("prompt_tokens", 0), record.get("completion_tokens", 0)) == ("tokenize", 0, 0)
        assert client.post("/tokenize", json={"model": "inspected", "prompt": "hi"}).json() == {
            "count": 2,
            "max_model_len": 99,
            "tokens": [1, 2],
        }
        unread = client.post("/detokenize", json={"model": "pictures", "tokens": [1, 2]})
        assert unread.status_code == 400 and "Token ids" in unread.text, "a guardrail reads requests for every model here"
        for body in (
            {},
            {"prompt": "a", "messages": MESSAGES},
            {"prompt": 1},
            {"messages": [1]},
            {"prompt": "a", "chat_template": "{{x}}"},
        ):
            assert client.post("/tokenize", json={"model": "pictures", **body}).status_code == 400, body


def test_the_engines_of_old_clients(every: Gatehouse, engine: EngineThread) -> None:
    with every.client() as client:
        listed = client.get("/v1/engines").json()["data"]
        assert {one["id"] for one in listed} == {"m1", "m2", "pictures", "inspected"} and listed[0]["object"] == "engine"
        assert client.post("/v1/engines/m2/completions", json={"prompt": "x", "max_tokens": 3}).status_code == 200
        assert engine.received[-1].json()["model"] == "m2"
        twice = client.post("/v1/engines/m2/completions", json={"prompt": "x", "model": "m1"})
        assert twice.status_code == 400 and "twice" in twice.text
        for path, body, status in (
            ("/v1/engines//completions", b"{}", 404),
            ("/v1/engines/%FF/completions", b"{}", 404),
            ("/v1/engines/m2/completions", b"[]", 400),
            ("/v1/engines/m2%22%2C%22x/completions", b'{"prompt":"x"}', 404),
        ):
            assert client.post(path, content=body, headers={"content-type": "application/json"}).status_code == status, path
    with every.client(OTHER_KEY) as client:
        assert client.post("/v1/engines/m2/embeddings", json={}).status_code == 404
