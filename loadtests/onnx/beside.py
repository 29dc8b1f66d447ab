"""What a short request waits beside one of 2,048 texts: `python -m loadtests.onnx.beside [--only onnx,llama] [--words N]`.

Two models of MiniLM's size with random weights: an ONNX encoder (`/v1/embeddings`) and a GGUF cross-encoder (`/v1/rerank`). A client asks
for one short text again and again, first alone, then beside one request of 2,048 texts, over the sidecar's socket and through a gateway.
Prints the short requests' times in milliseconds, what of them failed, the longest time that `/health` took meanwhile (how long the
sidecar's event loop was held), and what the large request took.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from engines.onnx.build_bert import convert
from loadtests.llamacpp.random_bert import Shape, write_reranker
from tests.e2e.harness import KEY, Gatehouse, configuration
from tests.integration.bert import MINILM, source

TEXTS = 2048
ALONE = 2.0
"""Seconds of the short requests alone."""
PAUSE = 0.02
"""Seconds between two short requests."""
WORDS = ("the", "fox", "jumps", "over", "red", "blue", "sky", "is", "what", "colour", "of", "sea", "bread")


class Case(NamedTuple):
    """An engine and its two requests."""

    runtime: str
    model: Path
    path: str
    short: dict[str, Any]
    large: dict[str, Any]


def cases(folder: Path, wanted: list[str], words: int) -> list[Case]:
    texts = [" ".join(WORDS[(number * 7 + at) % len(WORDS)] for at in range(words)) for number in range(TEXTS)]
    made = []
    if "onnx" in wanted:
        model = convert(source(folder / "source", MINILM), folder / "encoder").parent
        made.append(Case("onnx", model, "/v1/embeddings", {"input": "the cat sat on the mat"}, {"input": texts}))
    if "llama" in wanted:
        shape = Shape(layers=6, width=384, heads=12, feed_forward=1536, context=512)
        model = write_reranker(folder / "rank.gguf", shape)
        query = {"query": "what is the colour of the sky"}
        made.append(Case("llama.cpp", model, "/v1/rerank", query | {"documents": ["the sea is blue"]}, query | {"documents": texts}))
    return made


class Probe:
    """Asks again and again until it is told to end."""

    def __init__(self, client: httpx.Client, path: str, body: dict[str, Any] | None) -> None:
        self.times: list[float] = []
        self.failed: list[int] = []
        self._client, self._path, self._body = client, path, body
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Probe:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(PAUSE):
            began = time.perf_counter()
            answer = self._client.post(self._path, json=self._body) if self._body is not None else self._client.get(self._path)
            self.times.append(time.perf_counter() - began)
            if answer.status_code != 200:
                self.failed.append(answer.status_code)

    def show(self, name: str) -> None:
        ms = sorted(1000 * one for one in self.times)
        failed = f", {len(self.failed)} failed ({sorted(set(self.failed))})" if self.failed else ""
        p50, p99 = statistics.median(ms), ms[int(len(ms) * 0.99)]
        print(f"  {name:22} {len(ms):5} asked, p50 {p50:7.1f}  p99 {p99:7.1f}  worst {ms[-1]:7.1f} ms{failed}", flush=True)


def measure(client: httpx.Client, sidecar: httpx.Client, case: Case, model: str) -> None:
    """One way to the engine."""
    short, large = ({"model": model, **body} for body in (case.short, case.large))
    with Probe(client, case.path, short) as alone:
        time.sleep(ALONE)
    alone.show("alone")
    with Probe(client, case.path, short) as beside, Probe(sidecar, "/health", None) as health:
        began = time.perf_counter()
        answer = client.post(case.path, json=large)
        took = time.perf_counter() - began
    beside.show("beside the large one")
    health.show("health meanwhile")
    print(f"  the large one: {answer.status_code} after {took:.1f} s", flush=True)


def run(folder: Path, case: Case) -> None:
    name = case.runtime.partition(".")[0]
    engine = {"name": name, "runtime": case.runtime, "model": str(case.model), "slots": 8, "context": 512}
    place = folder / f"state-{name}"
    place.mkdir()
    config = configuration(place / "state", engines=[engine], models=[{"name": name, "pool": [name]}])
    with Gatehouse(place, config) as gateway:
        socket = next((place / "state").rglob(f"{name}-*/s.sock"))
        direct = httpx.Client(transport=httpx.HTTPTransport(uds=str(socket)), base_url="http://sidecar", timeout=600)
        through = httpx.Client(base_url=gateway.url, headers={"authorization": f"Bearer {KEY}"}, timeout=600)
        with direct, through:
            for way, client in (("socket", direct), ("gateway", through)):
                print(f"{case.runtime}, {way}", flush=True)
                measure(client, direct, case, name)


def main() -> None:
    parser = argparse.ArgumentParser(description="What a short request waits beside a large one.")
    parser.add_argument("--only", default="onnx,llama", help="engines")
    parser.add_argument("--words", type=int, default=4, help="words of each of the large request's texts")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gh") as scratch:
        for case in cases(Path(scratch), given.only.split(","), given.words):
            run(Path(scratch), case)


if __name__ == "__main__":
    main()
