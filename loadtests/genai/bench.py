"""Tokens a second and processor milliseconds a token of the genai and the llama.cpp sidecar with the same weights, the demo chat model's;
then what conversations save because the beginnings of their prompts are kept.

    python -m loadtests.genai.bench

Rounds of both in turn; the median, and the least and the greatest. Twenty seconds.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from pathlib import Path

from engines.demo import genai
from tests.integration.llamacpp.process import Sidecar

STREAMS, TOKENS, ROUNDS = (1, 4, 8), 80, 3
TURNS = ("What is Gatehouse?", "What is a key?", "What is a breaker?", "Where are the logs?", "What is a pool?", "What is a tenant?")
SYSTEM = "You answer questions about a gateway in front of engines, in one or two plain sentences, and never guess. " * 3


class GenaiSidecar(Sidecar):
    module, runtime, metrics = "engines.genai", "genai", "gatehouse_genai"


def processor(sidecar: Sidecar) -> float:
    """Seconds of processor time of the sidecar's process."""
    fields = Path(f"/proc/{sidecar.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measured(sidecar: Sidecar, streams: int, tokens: int = TOKENS) -> tuple[float, float]:
    """Tokens a second, and processor milliseconds a token."""

    def one() -> None:
        made = sidecar.complete("Gatehouse is", max_tokens=tokens, ignore_eos=True, temperature=0)
        assert made["usage"]["completion_tokens"] == tokens

    used, began = processor(sidecar), time.perf_counter()
    threads = [threading.Thread(target=one) for _ in range(streams)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    total = streams * tokens
    return total / (time.perf_counter() - began), (processor(sidecar) - used) * 1000 / total


def conversation(sidecar: Sidecar, salts: str) -> tuple[list[float], int, float]:
    """Milliseconds to the one token of each turn's answer, prompt tokens that were not read again, processor milliseconds of all turns.
    salts: the domain of each turn; nothing is kept from one domain for another."""
    messages: list[dict[str, str]] = [{"role": "system", "content": SYSTEM}]
    times, cached, used = [], 0, processor(sidecar)
    for question, salt in zip(TURNS, salts, strict=True):
        messages.append({"role": "user", "content": question})
        began = time.perf_counter()
        body = {"messages": messages, "max_tokens": 1, "temperature": 0}
        answer = sidecar.http.post("/v1/chat/completions", json=body, headers={"x-gatehouse-cache-salt": salt * 2}).json()
        times.append((time.perf_counter() - began) * 1000)
        cached += answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        messages.append({"role": "assistant", "content": "It is a part of the gateway, and the page about it says more."})
    return times, cached, (processor(sidecar) - used) * 1000


def main() -> None:
    """Prints a line for each number of streams and sidecar."""
    with tempfile.TemporaryDirectory(prefix="gh") as one, tempfile.TemporaryDirectory(prefix="gh") as two:
        sidecars = {
            "genai": GenaiSidecar(Path(one), genai.write(Path(one) / "m"), slots=8, context=2048),
            "llama.cpp": Sidecar(Path(two), genai.GGUF, slots=8, context=2048),
        }
        try:
            for sidecar in sidecars.values():
                sidecar.wait("ready", "failed")
                measured(sidecar, 1, 20)
            for streams in STREAMS:
                rounds = [{name: measured(sidecar, streams) for name, sidecar in sidecars.items()} for _ in range(ROUNDS)]
                for name in sidecars:
                    rates, costs = (sorted(done[name][at] for done in rounds) for at in (0, 1))
                    shown = f"{rates[ROUNDS // 2]:.0f} tokens/s ({rates[0]:.0f} to {rates[-1]:.0f})"
                    print(f"{streams} streams, {name}: {shown}, {costs[ROUNDS // 2]:.2f} ms ({costs[0]:.2f} to {costs[-1]:.2f}) a token")
            for name, sidecar in sidecars.items():
                for kept, salts in (("not kept", "0123456789abcdef01"), ("kept", "222222333333444444")):
                    turns = [conversation(sidecar, salts[at : at + 6]) for at in range(0, 18, 6)]
                    first, last = (sorted(times[at] for times, _cached, _used in turns)[1] for at in (0, -1))
                    cost, cached = sorted(used for _times, _cached, used in turns)[1], turns[1][1]
                    shown = f"first {first:.0f} ms, last {last:.0f} ms, {cost:.0f} ms of processor, {cached} tokens kept"
                    print(f"6 turns, {name}, {kept}: {shown}")
        finally:
            for sidecar in sidecars.values():
                sidecar.close()


if __name__ == "__main__":
    main()
