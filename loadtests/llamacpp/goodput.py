"""Short prompts beside long ones: how soon each is answered, and how many requests of a mix are served within an objective."""

from __future__ import annotations

import statistics
import time

from loadtests.llamacpp.client import Client, Reply
from loadtests.llamacpp.measures import STREAMS, VISIBLE, gaps, prompt, sampling
from loadtests.llamacpp.peers import Server
from loadtests.llamacpp.traffic import MIXED, MIXES, OBJECTIVES, Served, mix

LONG, SHORT = 2500, 8
"""Tokens of the prompts that arrive one after the other."""
BEFORE = 25
"""Tokens of each stream before they come."""


def beside(server: Server, seed: int, streams: int = 4) -> dict[str, float]:
    """Streams run; a prompt of 2,500 tokens arrives, and half a second later one of 8: their first tokens, and what the streams notice."""
    client = Client(server)
    seed = 1_000_000 + seed * 10 + streams  # prompts of its own: one that was read before would be remembered
    body = {**sampling(server), "logit_bias": VISIBLE}
    running = [client.send("/v1/completions", {**body, "max_tokens": 1500, "prompt": prompt(seed * 100 + n, 16)}) for n in range(streams)]
    client.read(lambda: all(len(stream.reads) > BEFORE or stream.ended for stream in running))
    long = client.send("/v1/completions", {**body, "prompt": prompt(seed * 100 + 99, LONG), "max_tokens": 4})
    client.wait(long.started + 0.5)
    short = client.send("/v1/completions", {**body, "prompt": prompt(seed * 100 + 98, SHORT), "max_tokens": 8})
    client.read(lambda: long.ended and short.ended)
    client.drop(running)
    end = long.parse().times[0]
    found = {
        f"short first token s +{streams}": short.parse().times[0] - short.started,
        f"long first token s +{streams}": end - long.started,
    }
    before = [gap for stream in running for at, gap in gaps(stream)[5:] if at < long.started]
    during = [gap for stream in running for at, gap in gaps(stream) if at > long.started and at - gap < end]
    if during:
        usual = statistics.median(before)
        found |= {
            f"median gap ratio +{streams}": statistics.median(during) / usual, f"longest gap ratio +{streams}": max(during) / usual,
            f"usual gap ms +{streams}": 1000 * usual,
        }  # fmt: skip
    return found


def alone(server: Server, seed: int) -> dict[str, float]:
    """As `beside`, without any stream."""
    return beside(server, seed, 0)


def crowded(server: Server, seed: int) -> dict[str, float]:
    """As `beside`, with all slots but one for each prompt in use."""
    return beside(server, seed, STREAMS - 1)


def mixed(server: Server, seed: int, rate: float, count: int, kind: str = MIXED) -> dict[str, float]:
    """Requests of a mix at random times: which share met the objectives, and the first tokens of short and of long prompts."""
    client, begin = Client(server), time.monotonic()
    body = {**sampling(server), "logit_bias": VISIBLE}
    sent: list[Reply] = []
    requests = mix(seed, count, rate, MIXES[kind])
    for number, request in enumerate(requests):
        client.wait(begin + request.at)
        text = prompt(seed * 1000 + number, request.prompt)
        sent.append(client.send("/v1/completions", {**body, "prompt": text, "max_tokens": request.tokens}))
    client.read(lambda: all(reply.ended for reply in sent))
    served = [Served(request, [at - begin for at in reply.parse().times]) for request, reply in zip(requests, sent, strict=True)]
    short = [item.first for item in served if item.request.prompt <= 64]
    long = [item.first for item in served if item.request.prompt > 1000]
    found = {f"goodput, {objective.name}": objective.share(served) for objective in OBJECTIVES}
    found |= {"short first token s median": statistics.median(short), "short first token s max": max(short)}
    if long:
        found["long first token s median"] = statistics.median(long)
    return {**found, "gap ms median": 1000 * statistics.median(item.mean_gap for item in served)}
