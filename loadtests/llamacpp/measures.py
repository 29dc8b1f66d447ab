"""What is measured of one server: tokens a second, the gap that a long prompt makes, what conversations reuse."""

from __future__ import annotations

import itertools
import math
import random
import statistics
import time
from typing import Any

from loadtests.llamacpp.client import Client, Reply
from loadtests.llamacpp.peers import LLAMA_SERVER, Server
from loadtests.llamacpp.random_gguf import NORMAL, vocabulary

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
"""Each is one token of the random vocabulary, and no two of them merge."""
ANSWER = "root ::= [A-Z0-9]{24}"
"""Answers of conversations: random weights write no text, and the next turn must repeat the very tokens."""
VISIBLE = {str(token): -100 for token, kind in enumerate(vocabulary()[2]) if kind != NORMAL}
"""Keeps streams to tokens that are text by themselves: of others (control tokens, half characters) no server sends an event, and the step
that made one looks like a gap."""
STREAMS = 7
LONG = 1500
BEFORE = 40
"""Gaps of each stream before the long prompt, of which the usual one is the median."""
TURNS = 6


def prompt(seed: int, tokens: int) -> str:
    """A text of so many tokens that shares next to no beginning with another seed's."""
    generator = random.Random(seed)
    return "".join(generator.choice(LETTERS) for _ in range(tokens))


def sampling(server: Server) -> dict[str, Any]:
    """The same work everywhere: draws over the whole vocabulary off, the end token banned."""
    greedy = {"model": "bench", "temperature": 0.0, "seed": 1}
    return greedy if server.name == LLAMA_SERVER else {**greedy, "ignore_eos": True}


def throughput(server: Server, count: int, tokens: int, seed: int) -> dict[str, float]:
    """Tokens a second with `count` requests at once, prompts of 16 tokens that nobody has seen; processor milliseconds of a token."""
    client = Client(server)
    used, begin = server.cpu_seconds(), time.monotonic()
    replies = [
        client.send("/v1/completions", {**sampling(server), "prompt": prompt(seed * 100 + n, 16), "max_tokens": tokens})
        for n in range(count)
    ]
    client.read(lambda: all(reply.ended for reply in replies))
    seconds, used = time.monotonic() - begin, server.cpu_seconds() - used
    made = sum(reply.parse().tokens for reply in replies)
    return {"tok/s": made / seconds, "cpu ms/tok": 1000 * used / made}


class Effort:
    """What a server's processors did between the tokens of one stream."""

    def __init__(self, server: Server, stream: Reply) -> None:
        self._server, self._stream = server, stream
        self._marks: list[tuple[float, float]] = []

    def note(self) -> bool:
        """To be called whenever something was read; always true, so that it can stand in front of a condition."""
        if len(self._stream.reads) > len(self._marks):
            self._marks += [(time.monotonic(), self._server.cpu_seconds())] * (len(self._stream.reads) - len(self._marks))
        return True

    def between(self, begin: float, end: float) -> list[float]:
        """Processor seconds from one token to the next, of those that were read in this time; in order of their size."""
        return sorted(b[1] - a[1] for a, b in itertools.pairwise(self._marks) if begin < a[0] and b[0] <= end)


def gap(server: Server, seed: int) -> dict[str, float]:
    """Seven streams run; a prompt of 1,500 tokens arrives: their gaps until its first token against their usual (median) one.

    `alone` is the longest gap of the same streams before the prompt: what the machine does to them without it. `work` is the same as
    the longest gap, in processor time instead of time: what the server did in it, without what other machines took meanwhile.
    """
    client = Client(server)
    body = {**sampling(server), "logit_bias": VISIBLE, "max_tokens": 1500}
    bodies = [{**body, "prompt": prompt(seed * 100 + n, 16)} for n in range(STREAMS)]
    streams = [client.send("/v1/completions", body) for body in bodies]
    effort = Effort(server, streams[0])
    client.read(lambda: effort.note() and all(len(stream.reads) > BEFORE + 10 or stream.ended for stream in streams))
    long = client.send("/v1/completions", {**sampling(server), "prompt": prompt(seed * 100 + 99, LONG), "max_tokens": 4})
    client.read(lambda: effort.note() and long.ended)
    client.drop([*streams, long])
    end = long.parse().times[0]
    quiet, busy = effort.between(streams[0].reads[5][0], long.started), effort.between(long.started, end)
    before = [gap for stream in streams for at, gap in gaps(stream)[5:] if at < long.started]
    during = sorted(gap for stream in streams for at, gap in gaps(stream) if at > long.started and at - gap < end)
    usual = statistics.median(before)
    return {
        "usual gap ms": 1000 * usual, "alone ms": 1000 * max(before), "median gap ms": 1000 * statistics.median(during),
        "longest gap ms": 1000 * during[-1], "median ratio": statistics.median(during) / usual,
        "p99 ratio": during[len(during) * 99 // 100] / usual,
        "work ratio": busy[-1] / statistics.median(quiet) if busy else math.nan,
        "ratio": during[-1] / usual, "alone ratio": max(before) / usual, "first token s": end - long.started,
    }  # fmt: skip


def gaps(stream: Reply) -> list[tuple[float, float]]:
    """(when it ended, its length in seconds) of each gap between two tokens."""
    times = stream.times or stream.parse().times
    return [(b, b - a) for a, b in itertools.pairwise(times)]


def conversations(server: Server, seed: int) -> dict[str, float]:
    """Four conversations of six turns at once, a shared system prompt of 200 tokens: cached share, first tokens."""
    client = Client(server)
    system = {"role": "system", "content": prompt(seed * 1000 + 900, 200)}
    talks: list[list[dict[str, str]]] = [[system] for _ in range(4)]
    first: dict[int, list[float]] = {turn: [] for turn in range(TURNS)}
    cached = total = 0
    body = {"model": "bench", "temperature": 0.0, "max_tokens": 32, "grammar": ANSWER}
    for turn in range(TURNS):
        replies = []
        for number, messages in enumerate(talks):
            messages.append({"role": "user", "content": prompt(seed * 1000 + number * 100 + turn, 40)})
            replies.append(client.send("/v1/chat/completions", {**body, "messages": messages}))
        client.read(lambda asked=replies: all(reply.ended for reply in asked))  # type: ignore[misc]
        for reply, messages in zip(replies, talks, strict=True):
            messages.append({"role": "assistant", "content": reply.parse().text})
            details = reply.usage.get("prompt_tokens_details") or {}
            cached += int(details.get("cached_tokens") or 0)
            total += int(reply.usage["prompt_tokens"])
            first[turn].append(1000 * (reply.times[0] - reply.started))
    one, six = statistics.median(first[0]), statistics.median(first[TURNS - 1])
    return {"cached share": cached / total, "turn 1 first token ms": one, "turn 6 first token ms": six, "turn 6 of turn 1": six / one}
