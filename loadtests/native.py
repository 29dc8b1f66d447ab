"""An engine that speaks Messages and Responses itself, through the gateway: what passes is the engine's own bytes, and tokens are counted
as the engine then reports them.

    python -m loadtests.native http://127.0.0.1:8081

URL: of an engine that is running, such as llama-server (`pip install xllamacpp` has it: `xllamacpp.Server`) or vLLM. Between it and the
gateway stands a proxy that remembers what went by. Prints a line for each case; exit code 1 where one differs.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
from anthropic import Anthropic
from openai import OpenAI

from tests.e2e.harness import KEY, Gatehouse, configuration, external

SECONDS = 120.0
TOOL = {
    "name": "look_up",
    "description": "Looks a word up.",
    "input_schema": {"type": "object", "properties": {"word": {"type": "string"}}},
}
TURNS: list[dict[str, Any]] = [
    {"role": "user", "content": "What does 'gateway' mean?"},
    {
        "role": "assistant",
        "content": [
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "toolu_1", "name": "look_up", "input": {"word": "gateway"}},
        ],
    },
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "A door in a wall."}]},
]
PLAIN = {"model": "m1", "max_tokens": 24, "temperature": 0, "system": "Be brief.", "messages": [{"role": "user", "content": "Hello"}]}
MESSAGES: dict[str, dict[str, Any]] = {
    "a question": PLAIN,
    "tools, a call and its result": {**PLAIN, "tools": [TOOL], "messages": TURNS},
    "beyond ASCII": {**PLAIN, "messages": [{"role": "user", "content": 'Grüße, 世界 🌍\u2028 \\ " </s>'}]},
    "stop sequences": {**PLAIN, "stop_sequences": ["I "]},
}
RESPONSES: dict[str, dict[str, Any]] = {
    "a question": {"model": "m1", "input": "Hello", "max_output_tokens": 24, "temperature": 0, "store": False},
}


class Proxy(BaseHTTPRequestHandler):
    """Passes requests on, and remembers each with the answer's bytes."""

    protocol_version = "HTTP/1.1"
    engine = ""
    seen: list[tuple[str, bytes, bytes]]

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""

    def do_GET(self) -> None:
        self._pass("GET", b"")

    def do_POST(self) -> None:
        self._pass("POST", self.rfile.read(int(self.headers["content-length"])))

    def _pass(self, method: str, body: bytes) -> None:
        headers = {"content-type": self.headers.get("content-type", "application/json")}
        with httpx.stream(method, self.engine + self.path, content=body, headers=headers, timeout=SECONDS, trust_env=False) as answer:
            self.send_response(answer.status_code)
            self.send_header("content-type", answer.headers.get("content-type", ""))
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            whole = b""
            for data in answer.iter_bytes():
                whole += data
                self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
                self.wfile.flush()
        self.seen.append((self.path, body, whole))  # before the client can know that this is all
        self.wfile.write(b"0\r\n\r\n")


def asked(gatehouse: Gatehouse, path: str, body: dict[str, Any]) -> bytes:
    answer = httpx.post(gatehouse.url + path, json=body, headers={"x-api-key": KEY}, timeout=SECONDS, trust_env=False)
    assert answer.status_code == 200, answer.text
    return answer.content


def passes(gatehouse: Gatehouse, seen: list[tuple[str, bytes, bytes]], path: str, body: dict[str, Any]) -> list[str]:
    """What differs of a whole answer and a stream: of the request's values, and of the answer's bytes."""
    found = []
    for streams in (False, True):
        sent = {**body, "stream": True} if streams else body
        told = asked(gatehouse, path, sent)
        at, request, answer = seen[-1]
        got = json.loads(request)
        if at != path or {**got, "store": False} != {**sent, "store": False}:
            found.append(f"the request{' of a stream' if streams else ''} arrived as {got} at {at}")
        if told != answer:
            found.append(f"{'a stream' if streams else 'an answer'} of {len(answer)} bytes came as {len(told)}")
    return found


def counts(gatehouse: Gatehouse, body: dict[str, Any]) -> list[str]:
    """Whether tokens are counted as the engine reports them."""
    counted = json.loads(asked(gatehouse, "/v1/messages/count_tokens", {name: body[name] for name in body if name in COUNTED}))
    usage = json.loads(asked(gatehouse, "/v1/messages", body))["usage"]
    reported = usage["input_tokens"] + (usage.get("cache_read_input_tokens") or 0)
    return [] if counted["input_tokens"] == reported else [f"{counted['input_tokens']} tokens were counted, {reported} reported"]


COUNTED = ("model", "system", "messages", "tools")


def clients(gatehouse: Gatehouse) -> list[str]:
    """The official clients read what passes."""
    anthropic = Anthropic(base_url=gatehouse.url, api_key=KEY)
    with anthropic, anthropic.messages.stream(model="m1", max_tokens=24, messages=[{"role": "user", "content": "Hello"}]) as stream:
        message = stream.get_final_message()
    with OpenAI(base_url=f"{gatehouse.url}/v1", api_key=KEY) as openai:
        response = openai.responses.create(model="m1", input="Hello", max_output_tokens=24, store=False)
    said = [block.text for block in message.content if block.type == "text"]
    return [] if said and said[0] and response.output_text else [f"{message} {response}"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", help="its URL, without /v1")
    options = parser.parse_args()
    seen: list[tuple[str, bytes, bytes]] = []
    proxy = ThreadingHTTPServer(("127.0.0.1", 0), type("Remembering", (Proxy,), {"seen": seen, "engine": options.engine.rstrip("/")}))
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    home, differ = Path(tempfile.mkdtemp()), 0
    engine = external("native", proxy.server_port, slots=4, apis=["messages", "responses"])
    with Gatehouse(home, configuration(home / "state", engines=[engine], models=[{"name": "m1", "pool": ["native"]}])) as gatehouse:
        results = {f"Messages, {name}": passes(gatehouse, seen, "/v1/messages", body) for name, body in MESSAGES.items()}
        results |= {f"tokens of Messages, {name}": counts(gatehouse, body) for name, body in MESSAGES.items()}
        results |= {f"Responses, {name}": passes(gatehouse, seen, "/v1/responses", body) for name, body in RESPONSES.items()}
        results["the official clients"] = clients(gatehouse)
        for name, found in results.items():
            differ |= bool(found)
            print(f"{name}: {'; '.join(found) or 'the same'}")
    proxy.shutdown()
    return int(differ)


if __name__ == "__main__":
    raise SystemExit(main())
