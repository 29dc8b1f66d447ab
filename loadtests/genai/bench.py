"""Tokens a second and processor milliseconds a token of the genai and the llama.cpp sidecar with the same weights, the demo chat model's.

    python -m loadtests.genai.bench

Rounds of both in turn; the median, and the least and the greatest. Ten seconds.
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


def main() -> None:
    """Prints a line for each number of streams and sidecar."""
    with tempfile.TemporaryDirectory(prefix="gh") as one, tempfile.TemporaryDirectory(prefix="gh") as two:
        sidecars = {
            "genai": GenaiSidecar(Path(one), genai.write(Path(one) / "m"), slots=8, context=512),
            "llama.cpp": Sidecar(Path(two), genai.GGUF, slots=8, context=512),
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
        finally:
            for sidecar in sidecars.values():
                sidecar.close()


if __name__ == "__main__":
    main()
