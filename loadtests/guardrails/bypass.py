"""Whether any place, spelling, escape, shape or API is a way around a guardrail: a running gateway, asked once for each combination.

    python -m loadtests.guardrails.bypass [--only NAME] [--action block] [--show 20]

Requests: deny list, pii and secrets, all blocking (with --action mask: masking), on a real gateway; a scripted engine says whether what
they look for reached it.
Answers: the engine gives it, whole and in pieces, and the client reads it. Over HTTP, over a socket (/v1/stream), and by gRPC (ModelInfer
and ModelStreamInfer, an ONNX sidecar that gives back its strings). What is compared is what a reader gets: strings of JSON in JSON are
decoded, letters are folded, invisible characters left out. A place that does not forward even a harmless text is told apart, for it proves
nothing. The number of requests is fixed by the tables (loadtests.guardrails.places); exits with 1 if one passed, or if a place forwards
nothing that should (CLOSED). It measures the compiled hot path where there is a build.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import unicodedata
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from onnx import TensorProto, helper

from loadtests.guardrails.pieces import STREAMS
from loadtests.guardrails.places import ANSWERS, CLOSED, FEW, FLAG, INNER, REQUESTS, SPELLINGS, Document, escaped
from tests.e2e.harness import KEY, Gatehouse, configuration, external
from tests.e2e.test_sockets import opened

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import tritonclient.grpc as triton
    from tritonclient.grpc import service_pb2 as pb

SECONDS = 60.0
HARMLESS = "harmless words"
BREAKER = {"open_for": "1ms", "open_max": "1ms"}
"""An answer that cannot be converted is the engine's fault; behind a breaker that stays open, other requests would prove nothing."""


# --- what a reader reads


TAGS = {ord(FLAG): None, **{0xE0000 + code: code for code in range(32, 127)}}


def folded(text: str) -> str:
    text = text.translate(TAGS)
    kept = "".join(sign for sign in unicodedata.normalize("NFKC", text) if unicodedata.category(sign) != "Cf")
    return " ".join(kept.casefold().split())


def strings(value: Any, path: tuple[Any, ...], found: dict[tuple[Any, ...], list[str]]) -> None:
    """Every string, by the names that lead to it; names count as strings."""
    if isinstance(value, dict):
        for key, inner in value.items():
            found[(*path, "a name")].append(f" {key} ")
            strings(inner, (*path, key), found)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            index = inner.get("index", number) if isinstance(inner, dict) else number
            strings(inner, (*path, index), found)
    elif isinstance(value, str):
        found[path].append(value)


def readings(text: str, level: int = 0) -> Iterator[str]:
    yield text
    if level < 8 and text.strip()[:1] in ("{", "[", '"'):
        try:
            value = json.loads(text, strict=False)
        except (ValueError, RecursionError):
            return
        found: dict[tuple[Any, ...], list[str]] = defaultdict(list)
        strings(value, (), found)
        for pieces in found.values():
            for piece in pieces:
                yield from readings(piece, level + 1)


def says(documents: list[Any], wanted: str) -> bool:
    """Whether the documents of one answer (one, or the events of a stream) say it."""
    found: dict[tuple[Any, ...], list[str]] = defaultdict(list)
    for document in documents:
        strings(document, (document.get("output_index"), document.get("index")) if isinstance(document, dict) else (), found)
    whole = ["".join(pieces) for pieces in found.values()] + [piece for pieces in found.values() for piece in pieces]
    return any(folded(wanted) in folded(reading) for text in whole for reading in readings(text))


def documents_of(answer: httpx.Response) -> list[Any]:
    if not answer.headers.get("content-type", "").startswith("text/event-stream"):
        return [answer.json()] if answer.headers.get("content-type", "").startswith("application/json") else [answer.text]
    lines = [line[5:].strip() for line in answer.text.splitlines() if line.startswith("data:")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


# --- the engine


class Engine:
    """Keeps what reached it, and answers with what it was given, or with what fits the path."""

    def __init__(self) -> None:
        self.received: list[bytes] = []
        self.answer: tuple[str, bytes] | None = None
        engine = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def log_message(self, format: str, *args: Any) -> None:
                """Nothing."""

            def do_GET(self) -> None:
                self.send("application/json", b'{"object":"list","data":[]}')

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                engine.received.append(body)
                self.send(*(engine.answer or usual(self.path, b'"stream":true' in body)))

            def send(self, kind: str, data: bytes) -> None:
                head = f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {len(data)}\r\n\r\n"
                self.wfile.write(head.encode() + data)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_port
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join(10)


def usual(path: str, stream: bool) -> tuple[str, bytes]:
    """Something harmless in the shape of the path."""
    if "messages" in path:
        made: Document = {"id": "i", "type": "message", "role": "assistant", "model": "m", "content": [], "input_tokens": 3}
    elif "responses" in path:
        made = {"id": "r", "object": "response", "created_at": 1, "status": "completed", "model": "m", "output": []}
    elif path.endswith("speech"):
        return "audio/mpeg", b"sound"
    elif "images" in path:
        made = {"created": 1, "data": [{"b64_json": "aGk="}]}
    elif "rerank" in path or "score" in path or "classify" in path or "embeddings" in path:
        made = {"object": "list", "results": [], "data": [], "usage": {"prompt_tokens": 1, "total_tokens": 1}}
    else:
        chat = {"message": {"role": "assistant", "content": "ok"}, "text": "ok"}
        made = {"id": "i", "choices": [{"index": 0, "finish_reason": "stop", **chat}], "usage": None, "input_tokens": 3}
        if stream:
            delta = {"index": 0, "delta": {"content": "ok"}, "text": "ok", "finish_reason": "stop"}
            return "text/event-stream", b"data: %b\n\ndata: [DONE]\n\n" % json.dumps({"id": "i", "choices": [delta]}).encode()
    return "application/json", json.dumps(made).encode()


# --- the gateway


def strings_model() -> bytes:
    """Gives its strings back."""
    made = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.STRING, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.STRING, ["n"])],
    )
    return bytes(helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString())


def gateway(directory: Path, engine: Engine, action: str = "block") -> Gatehouse:
    """Models in-X are guarded on requests, out-X on answers. action: of all guardrails."""
    (directory / "strings.onnx").write_bytes(strings_model())
    pools = {"chats": "chats", "speaks": "speaks", "strings": "strings"}
    both = {"in": "request", "out": "response"}
    guards = [
        ("denylist", {"phrases": ["project aurora"], "action": action}),
        ("pii", {"entities": {"email": action, "card": action}}),
        ("secrets", {"action": action}),
    ]
    config = configuration(
        directory / "state",
        listen={"grpc": "127.0.0.1:0"},
        engines=[
            external("chats", engine.port, slots=64),
            external("speaks", engine.port, slots=64, apis=["messages", "responses"]),
            {"name": "strings", "runtime": "onnx", "model": str(directory / "strings.onnx"), "slots": 4},
        ],
        models=[
            {"name": f"{way}-{name}", "pool": [pool], "unknown_fields": "forward", "routing": {"breaker": BREAKER}}
            for way in both
            for name, pool in pools.items()
        ],
        guardrails=[
            {"name": f"{kind}-{way}", "type": kind, "on": [on], "models": [f"{way}-*"], "settings": settings}
            for way, on in both.items()
            for kind, settings in guards
        ],
    )
    return Gatehouse(directory, config)


def filled(template: Any, text: str, inner: Callable[[str], str]) -> Any:
    if isinstance(template, dict):
        return {filled(key, text, inner): filled(value, text, inner) for key, value in template.items()}
    if isinstance(template, list):
        return [filled(value, text, inner) for value in template]
    if isinstance(template, str):
        return template.replace("@T", text) if template != "@J" else inner(text)
    return template


def written(document: Any, text: str, escape: bool) -> bytes:
    """The document's JSON. escape: the text stands there in escapes."""
    made = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    plain = json.dumps(text, ensure_ascii=False)[1:-1]
    return (made.replace(plain, escaped(text)) if escape else made).encode("utf-8", "surrogatepass")


class Probe:
    """tried, passed, closed: by direction, transport and API. closed: places through which not even a harmless text goes. few: some
    spellings, escapes and pieces for every place."""

    def __init__(self, running: Gatehouse, engine: Engine, only: str = "", few: bool = False) -> None:
        self.gateway, self.engine, self.only = running, engine, only
        self.spellings = {name: SPELLINGS[name] for name in ("line", "address")} if few else SPELLINGS
        self.inner = {name: INNER[name] for name in ("JSON, first sign escaped", "JSON in JSON, escaped")} if few else INNER
        self.sizes = (3,) if few else (1, 4, 1000)
        self.tried: Counter[str] = Counter()
        self.passed: dict[str, list[str]] = defaultdict(list)
        self.closed: dict[str, set[str]] = defaultdict(set)
        self.client = running.client(KEY)
        self.number = 0

    def run(self) -> None:
        self.requests("HTTP", None)
        self.answers("HTTP", None)
        with opened(self.gateway, max_size=None) as socket:
            self.requests("socket", socket)
            self.answers("socket", socket)
        self.grpc(next(line[6:] for line in self.gateway.lines if line.startswith("grpc: ")))
        self.client.close()

    def lost(self) -> list[str]:
        """The places that forward nothing though they should."""
        return sorted(place for found in self.closed.values() for place in found if place.partition(" by ")[0] not in CLOSED)

    def count(self, row: str, what: str, passed: bool) -> None:
        self.tried[row] += 1
        if passed:
            self.passed[row].append(what)

    # --- HTTP and sockets: one question, and the documents that came back

    def by_http(self, path: str, body: bytes) -> list[Any]:
        return documents_of(self.client.post(path, content=body, headers={"content-type": "application/json"}))

    def by_socket(self, socket: Any, path: str, body: bytes) -> list[Any]:
        self.number += 1
        socket.wire.send(f'{{"type":"request","id":{self.number},"path":{json.dumps(path)},"body":{body.decode()}}}')
        return [message.get("data", message.get("body")) for message in socket.until_done(self.number)]

    def ask(self, transport: str, socket: Any, path: str, body: bytes) -> list[Any]:
        return self.by_http(path, body) if transport == "HTTP" else self.by_socket(socket, path, body)

    def requests(self, transport: str, socket: Any) -> None:
        for where, (path, template) in REQUESTS.items():
            row = f"requests | {transport} | {where.partition(',')[0]}"
            if self.only not in f"{row} {where}":
                continue
            name = "in-strings" if "/models/" in path else "in-speaks" if where.startswith(("messages", "responses")) else "in-chats"
            for model in {name, "in-chats"} if name == "in-speaks" else {name}:
                self._requests(transport, socket, row, f"{where} ({model})", path.replace("MODEL", model), template, model)

    def _requests(self, transport: str, socket: Any, row: str, where: str, path: str, template: Document, model: str) -> None:
        base = {} if path.find(model) >= 0 else {"model": model}

        def reached(text: str, said: str, inner: Callable[[str], str], escape: bool, **more: Any) -> bool:
            self.engine.received.clear()
            body = written({**base, **filled(template, text, inner), **more}, text, escape)
            answer = self.ask(transport, socket, path, body)
            seen = [json.loads(one) for one in self.engine.received]
            if model == "in-strings":  # the sidecar gives back what reached it
                return says(answer, said) or (said == HARMLESS and "outputs" in (answer[0] or {}))
            return says(seen, said)

        if not reached(HARMLESS, HARMLESS, INNER["JSON"], False):
            self.closed[row].add(where)
        nested = "@J" in json.dumps(template)
        streams = path.endswith(("completions", "messages", "responses"))
        for spelling, (text, said) in self.spellings.items():
            for way, inner in self.inner.items() if nested else [("", INNER["JSON"])]:
                for escape in (False, True):
                    what = f"{where}: {spelling}{', ' + way if way else ''}{', escaped' if escape else ''}"
                    self.count(row, what, reached(text, said, inner, escape))
                if streams and spelling in FEW:
                    self.count(row, f"{where}: {spelling}, {way}, streamed", reached(text, said, inner, False, stream=True))

    def answers(self, transport: str, socket: Any) -> None:
        for where, (engine, path, question, template) in ANSWERS.items():
            row = f"answers | {transport} | {where.partition(',')[0]}"
            if self.only not in f"{row} {where}":
                continue
            body = json.dumps({"model": f"out-{engine}", **question}).encode()

            def given(text: str, inner: Callable[[str], str], escape: bool, template: Document = template) -> bytes:
                return written(filled(template, text, inner), text, escape)

            self._answers(transport, socket, row, where, path, body, template, given, "application/json")
        for where, (engine, path, question, template, events) in STREAMS.items():
            row = f"streams | {transport} | {where.partition(',')[0]}"
            if self.only not in f"{row} {where}":
                continue
            body = json.dumps({"model": f"out-{engine}", "stream": True, **question}, separators=(",", ":")).encode()
            for size in self.sizes:

                def pieces(
                    text: str, inner: Callable[[str], str], escape: bool, template: Any = template, events: Any = events, size: int = size
                ) -> bytes:
                    made: bytes = events(filled(template, text, inner), size)
                    return made

                self._answers(transport, socket, row, f"{where} by {size}", path, body, template, pieces, "text/event-stream")

    def _answers(
        self,
        transport: str,
        socket: Any,
        row: str,
        where: str,
        path: str,
        body: bytes,
        template: Any,
        given: Callable[[str, Callable[[str], str], bool], bytes],
        kind: str,
    ) -> None:
        def reached(text: str, said: str, inner: Callable[[str], str], escape: bool) -> bool:
            self.engine.answer = (kind, given(text, inner, escape))
            return says(self.ask(transport, socket, path, body), said)

        if not reached(HARMLESS, HARMLESS, INNER["JSON"], False):
            self.closed[row].add(where)
        nested, whole = "@J" in json.dumps(template), kind == "application/json"
        for spelling, (text, said) in self.spellings.items():
            for way, inner in self.inner.items() if nested else [("", INNER["JSON"])]:
                for escape in (False, True) if whole else (False,):
                    what = f"{where}: {spelling}{', ' + way if way else ''}{', escaped' if escape else ''}"
                    self.count(row, what, reached(text, said, inner, escape))
        self.engine.answer = None

    # --- gRPC

    def grpc(self, address: str) -> None:
        stub = triton.InferenceServerClient(address)
        metadata = (("authorization", f"Bearer {KEY}"),)
        for way, model in (("requests", "in-strings"), ("answers", "out-strings")):
            for shape in ("contents", "raw", "identifier", "parameter", "name of a parameter", "output's parameter", "stream"):
                row = f"{way} | gRPC | OIP"
                if self.only not in f"{row} {shape}":
                    continue
                if way == "answers" and shape not in ("contents", "raw", "stream"):
                    continue

                def reached(text: str, said: str, shape: str = shape, model: str = model) -> bool:
                    made = tensor(model, text, shape)
                    try:
                        if shape == "stream":
                            answers = [
                                one.infer_response
                                for one in stub._client_stub.ModelStreamInfer(iter([made]), metadata=metadata, timeout=SECONDS)
                            ]
                        else:
                            answers = [stub._client_stub.ModelInfer(made, metadata=metadata, timeout=SECONDS)]
                    except triton.grpc.RpcError:
                        return False
                    if shape in ("contents", "raw", "stream"):
                        return says([one.decode("utf-8", "replace") for answer in answers for one in elements(answer)], said)
                    return any(elements(answer) for answer in answers)  # it was answered: so it reached the engine

                if not reached(HARMLESS, HARMLESS):
                    self.closed[row].add(f"{shape} ({model})")
                for spelling, (text, said) in self.spellings.items():
                    self.count(row, f"{shape}: {spelling}", reached(text, said))
                    for name, inner in self.inner.items() if shape in ("contents", "raw", "stream") else ():
                        self.count(row, f"{shape}: {spelling}, {name}", reached(inner(text), said))
        stub.close()


def tensor(model: str, text: str, shape: str) -> Any:
    made = pb.ModelInferRequest(model_name=model, id=text if shape == "identifier" else "")
    one = made.inputs.add(name="x", datatype="BYTES", shape=[1])
    data = text.encode("utf-8", "surrogatepass") if shape in ("contents", "raw", "stream") else b"x"
    if shape == "raw":
        made.raw_input_contents.append(np.array([len(data)], dtype="<u4").tobytes() + data)
    else:
        one.contents.bytes_contents.append(data)
    if shape == "parameter":
        made.parameters["a"].string_param = text
    if shape == "name of a parameter":
        one.parameters[text].string_param = "a"
    if shape == "output's parameter":
        made.outputs.add(name="y").parameters["a"].string_param = text
    return made


def elements(answer: Any) -> list[bytes]:
    found = [one for output in answer.outputs for one in output.contents.bytes_contents]
    for raw in answer.raw_output_contents:
        place = 0
        while place < len(raw):
            size = int.from_bytes(raw[place : place + 4], "little")
            found.append(raw[place + 4 : place + 4 + size])
            place += 4 + size
    return found


def report(probe: Probe, show: int) -> int:
    print("| direction | transport | API | tried | passed | places that forward nothing |\n|---|---|---|---|---|---|")
    for row, count in probe.tried.items():
        print(f"| {row} | {count} | {len(probe.passed[row])} | {', '.join(sorted(probe.closed[row])) or '-'} |")
    passed = sum(map(len, probe.passed.values()))
    print(f"\ntried {probe.tried.total()}, passed {passed}")
    for row, found in probe.passed.items():
        for what in found[:show]:
            print(f"passed: {row} | {what}")
    for place in probe.lost():
        print(f"forwards nothing, though it should: {place}")
    return 1 if passed or probe.lost() else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="a part of `direction | transport | API` or of a place's name")
    parser.add_argument("--show", type=int, default=20, help="what passed, so many of each row")
    parser.add_argument("--action", choices=("block", "mask"), default="block", help="what the guardrails do")
    options = parser.parse_args()
    engine = Engine()
    try:
        with tempfile.TemporaryDirectory() as directory, gateway(Path(directory), engine, options.action) as running:
            print(running.lines[0])
            probe = Probe(running, engine, options.only)
            probe.run()
            return report(probe, options.show)
    finally:
        engine.close()


if __name__ == "__main__":
    sys.exit(main())
