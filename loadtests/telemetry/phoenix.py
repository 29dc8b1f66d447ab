"""Traces of a running gateway in a real receiver, Arize Phoenix: one tree through gateway, guardrails, queue and engine.

    python -m venv /tmp/beside && /tmp/beside/bin/pip install arize-phoenix
    python -m loadtests.telemetry.phoenix /tmp/beside/bin/phoenix

Starts Phoenix and a gateway over sidecars with the demo models, both on free ports of loopback, asks, reads the spans back from Phoenix and
prints the trees. Exits with 1 when a span is missing, is in another trace or not within its parent, when a text or a credential is in a
span, when tokens are counted twice, when a failure is not traced at ratio 0, or when requests fail while Phoenix is stopped. Phoenix is no
dependency of the gateway.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import httpx

from tests.e2e.conftest import EngineThread
from tests.e2e.harness import DEMO_MODEL, KEY, Gatehouse, configuration, external
from tests.fakes.ports import empty_port
from tests.waiting import until

TEXT: Final = "Tell me about the lighthouse of Kampen"
STREAM: Final = "0af7651916cd43dd8448eb211c80319c"
WHOLE: Final = "0af7651916cd43dd8448eb211c80319d"
EMBEDDING: Final = "0af7651916cd43dd8448eb211c80319e"
FAILED: Final = "0af7651916cd43dd8448eb211c80319f"
PARENT: Final = "b7ad6b7169203331"
SLACK: Final = 0.001
"""Seconds by which a span may reach beyond its parent: Phoenix keeps microseconds."""
PAGE: Final = 1000


class Phoenix:
    """One Phoenix with a folder of its own. Use as a context manager."""

    def __init__(self, program: str, directory: Path) -> None:
        with empty_port() as self.port, empty_port() as grpc:
            settings = {
                "PHOENIX_WORKING_DIR": str(directory), "PHOENIX_HOST": "127.0.0.1", "PHOENIX_PORT": str(self.port),
                "PHOENIX_GRPC_PORT": str(grpc), "PHOENIX_TELEMETRY_ENABLED": "false",
            }  # fmt: skip
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = (directory / "log").open("wb")
        self.process = subprocess.Popen([program, "serve"], env={**os.environ, **settings}, stdout=self._log, stderr=self._log)

    def __enter__(self) -> Phoenix:
        until(self._answers, 300, "Phoenix")
        return self

    def __exit__(self, *exc: object) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        self.process.wait(60)
        self._log.close()

    def _answers(self) -> bool:
        assert self.process.poll() is None, f"Phoenix has ended; see {self._log.name}"
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"{self.url}/healthz", timeout=5, trust_env=False).status_code == 200
        return False

    def spans(self, trace: str) -> list[dict[str, Any]]:
        """What it has of a trace."""
        query: dict[str, str | int] = {"trace_id": trace, "limit": PAGE}
        answer = httpx.get(f"{self.url}/v1/projects/default/spans", params=query, timeout=30, trust_env=False)
        found: list[dict[str, Any]] = [] if answer.status_code == 404 else answer.raise_for_status().json()["data"]
        return found

    def all(self) -> str:
        """Every span it has, as text."""
        return httpx.get(f"{self.url}/v1/projects/default/spans", params={"limit": PAGE}, timeout=30, trust_env=False).text

    def tree(self, trace: str, *names: str, requests: int = 1) -> Tree:
        """A trace once it has these spans, each of so many requests."""

        def whole() -> Tree | None:
            found = Tree(self.spans(trace))
            return found if all(found.names[name] >= requests for name in names) else None

        return until(whole, 60, f"{names} in {trace}")


class Tree:
    """The spans of one trace."""

    def __init__(self, spans: list[dict[str, Any]]) -> None:
        self.spans = {span["context"]["span_id"]: span for span in spans}
        self.names = Counter(span["name"] for span in spans)

    def show(self) -> None:
        roots = [key for key, span in self.spans.items() if span["parent_id"] not in self.spans]
        begin = min(_seconds(self.spans[key]["start_time"]) for key in roots)
        for root in roots:
            self._show(root, 0, begin)

    def _show(self, key: str, depth: int, begin: float) -> None:
        span = self.spans[key]
        first, last = (1000 * (_seconds(span[field]) - begin) for field in ("start_time", "end_time"))
        error = f"  {span['status_code']} {span.get('status_message') or ''}" if span["status_code"] != "UNSET" else ""
        print(f"  {'  ' * depth}{span['name']:{30 - 2 * depth}} {first:9.2f} to {last:9.2f} ms{error}")
        for child in sorted(self.spans, key=lambda other: self.spans[other]["start_time"]):
            if self.spans[child]["parent_id"] == key:
                self._show(child, depth + 1, begin)

    def faults(self, name: str, requests: int = 1) -> Iterator[str]:
        """What is wrong with its form."""
        roots = [span for span in self.spans.values() if span["parent_id"] not in self.spans]
        if [(root["name"], root["parent_id"]) for root in roots] != [(name, PARENT)] * requests:
            yield f"{name}: the roots are {[(root['name'], root['parent_id']) for root in roots]}"
        for span in self.spans.values():
            above = self.spans.get(span["parent_id"])
            if above is not None and not (
                _seconds(above["start_time"]) - SLACK <= _seconds(span["start_time"])
                and _seconds(span["end_time"]) <= _seconds(above["end_time"]) + SLACK
            ):
                yield f"{name}: {span['name']} is not within {above['name']}"

    def sum(self, attribute: str) -> float:
        return sum(span["attributes"].get(attribute, 0) for span in self.spans.values())


def _seconds(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()


def configured(directory: Path, endpoint: str, broken: int) -> dict[str, Any]:
    """broken: the port of an engine that fails."""
    return configuration(
        directory / "state",
        engines=[
            {"name": "chat", "runtime": "llama.cpp", "model": DEMO_MODEL, "slots": 1, "context": 1024},
            {"name": "embed", "runtime": "onnx", "model": "demo-embed"},
            external("broken", broken),
        ],
        models=[
            {"name": "demo-chat", "pool": ["chat"]},
            {"name": "demo-embed", "pool": ["embed"]},
            {"name": "broken", "pool": ["broken"]},
        ],
        guardrails=[{"name": "words", "type": "denylist", "settings": {"phrases": ["nightfall"], "action": "block"}}],
        telemetry={"traces": {"endpoint": endpoint, "ratio": 0}},
    )


def ask(gatehouse: Gatehouse, trace: str, path: str, body: dict[str, Any], flag: str = "01") -> httpx.Response:
    with gatehouse.client() as client:
        return client.post(path, json=body, headers={"traceparent": f"00-{trace}-{PARENT}-{flag}"})


def chat(gatehouse: Gatehouse, trace: str, stream: bool, flag: str = "01", model: str = "demo-chat") -> httpx.Response:
    body = {"model": model, "messages": [{"role": "user", "content": TEXT}], "max_tokens": 24, "temperature": 0, "stream": stream}
    return ask(gatehouse, trace, "/v1/chat/completions", body, flag)


def run(gatehouse: Gatehouse, phoenix: Phoenix, broken: EngineThread) -> Iterator[str]:
    """Yields what is wrong."""
    with ThreadPoolExecutor(4) as pool:  # four streams for one slot: some have to wait
        answers = [*pool.map(lambda _: chat(gatehouse, STREAM, True), range(4))]
    answers += [
        chat(gatehouse, WHOLE, False),
        ask(gatehouse, EMBEDDING, "/v1/embeddings", {"model": "demo-embed", "input": [TEXT, "harbour"]}),
    ]
    if wrong := [answer.status_code for answer in answers if answer.status_code != 200]:
        yield f"answers: {wrong}"
    if any("x-gatehouse-phases" in answer.headers for answer in answers):
        yield "a client was told an engine's phases"
    broken.play("status:code=500*4")
    if chat(gatehouse, FAILED, False, "00", "broken").status_code < 500:
        yield "the broken engine answered"

    streams = phoenix.tree(STREAM, "chat demo-chat", "guardrails", "engine", "prepare", "prefill", "decode", requests=4)
    if not streams.names["queue"]:
        yield "no stream waited"
    yield from streams.faults("chat demo-chat", 4)
    print("four streams for one slot, in one trace")
    streams.show()
    for trace, name, inner in (
        (WHOLE, "chat demo-chat", ("prepare", "prefill", "decode")),
        (EMBEDDING, "embeddings demo-embed", ("prepare", "run")),
    ):
        tree = phoenix.tree(trace, name, "engine", *inner)
        print(name)
        tree.show()
        yield from tree.faults(name)
    usage = answers[4].json()["usage"]
    told = (phoenix.tree(WHOLE).sum("gen_ai.usage.input_tokens"), phoenix.tree(WHOLE).sum("gen_ai.usage.output_tokens"))
    if told != (usage["prompt_tokens"], usage["completion_tokens"]):
        yield f"tokens in the trace: {told}, in the answer: {usage}"
    failed = phoenix.tree(FAILED, "chat broken")
    print("a failure that was not sampled, at ratio 0")
    failed.show()
    if [span["status_code"] for span in failed.spans.values()] != ["ERROR"]:
        yield "the failure is not one span with an error"
    everything = phoenix.all()
    texts = [TEXT, "harbour", KEY, json.loads(answers[4].text)["choices"][0]["message"]["content"]]
    yield from (f"in a span: {text!r}" for text in texts if text and text[:40] in everything)
    yield from away(gatehouse, phoenix)


def away(gatehouse: Gatehouse, phoenix: Phoenix) -> Iterator[str]:
    """Phoenix hangs, then goes on."""
    phoenix.process.send_signal(signal.SIGSTOP)
    lost = f"{1:032x}"
    slow = [answer.elapsed.total_seconds() for answer in (chat(gatehouse, lost, False) for _ in range(5)) if answer.status_code == 200]
    if len(slow) < 5:
        yield "requests failed while Phoenix hung"
    print(f"while Phoenix hangs: {len(slow)} of 5 answered, the slowest in {1000 * max(slow, default=0):.0f} ms")
    until(lambda: any("do not arrive" in line for line in gatehouse.lines), 90, "the line that says that traces do not arrive")
    phoenix.process.send_signal(signal.SIGCONT)
    chat(gatehouse, f"{2:032x}", False)
    phoenix.tree(f"{2:032x}", "chat demo-chat", "engine")
    print(f"traces sent {gatehouse.metric('gatehouse_traces_total', result='sent'):.0f}, "
          f"dropped {gatehouse.metric('gatehouse_traces_total', result='dropped'):.0f}")  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("phoenix", help="the program `phoenix` in an environment of its own")
    program = parser.parse_args().phoenix
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        directory = Path(name)
        (directory / "phoenix").mkdir()
        phoenix = stack.enter_context(Phoenix(program, directory / "phoenix"))
        broken = EngineThread()
        stack.callback(broken.close)
        gatehouse = stack.enter_context(Gatehouse(directory, configured(directory, phoenix.url, broken.port)))
        wrong = list(run(gatehouse, phoenix, broken))
    for fault in wrong:
        print(f"WRONG: {fault}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
