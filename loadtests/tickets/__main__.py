"""Tickets against a real machine: how many of 1,000 tampered ones are accepted, and what a ticket with its receipt costs the gateway beside
a relayed request. `python -m loadtests.tickets`. Both run on this machine; CPU is the gateway's process alone, user and system."""

from __future__ import annotations

import json
import os
import random
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gatehouse.client.tickets import Ticket, TicketRefused, Tickets, machine_context
from gateway.core.tickets import TICKET, opened, sealed
from gateway.core.tickets import Ticket as Signed
from tests.e2e.adminapi import KEYS, admin
from tests.e2e.harness import Gatehouse
from tests.e2e.joining import CHAT, JoinedMachine, gateway_config, token
from tests.waiting import until

TAMPERED, MEASURED = 1000, 100
ANOTHER = Ed25519PrivateKey.generate()
"""The key of another gateway."""


def cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def tampered(ticket: Any, other: Any, rng: random.Random) -> tuple[str, bytes, str]:
    """(credential, body, path), of which at least one is not as it was given."""
    text, body = ticket.ticket, ticket.body.encode()
    kind = rng.randrange(7)
    if kind <= 2:
        place = rng.randrange(4, len(text))
        letter = rng.choice([c for c in "ABCDEFabcdef0123456789-_." if c != text[place]])
        return text[:place] + letter + text[place + 1 :], body, "/v1/chat/completions"
    if kind == 3:
        place = rng.randrange(len(body))
        return text, body[:place] + bytes([body[place] ^ (1 << rng.randrange(7))]) + body[place + 1 :], "/v1/chat/completions"
    if kind == 4:
        return text.rpartition(".")[0] + "." + other.ticket.rpartition(".")[2], body, "/v1/chat/completions"
    if kind == 5:
        return text, body + b" ", "/v1/chat/completions"
    return sealed(TICKET, opened(TICKET, text, Signed)[0], ANOTHER.sign), body, "/v1/chat/completions"


def main() -> None:
    rng = random.Random(24)
    with tempfile.TemporaryDirectory(prefix="tickets-") as folder:
        directory = Path(folder)
        made = gateway_config(directory / "state")
        made["tickets"] = {"enabled": True, "expiry": "5m", "max_open": 1000}
        with Gatehouse(directory, made) as gateway:
            machine = JoinedMachine(directory / "m", "gpu-1", [{**CHAT, "slots": 4, "context": 1024}])
            machine.start(gateway.admin_url, token(gateway)["token"], "--tickets", "127.0.0.1:0")

            def ready() -> bool:
                with admin(gateway) as api:
                    return [one["state"] for one in api.get("/endpoints").json()["items"]] == ["ready"]

            until(ready, what="the machine")
            try:
                with Tickets(gateway.url, KEYS["none"]) as tickets:
                    print(json.dumps({"tampered": attack(tickets, rng), **measure(gateway, tickets)}, indent=1))
            finally:
                machine.stop()


def asked(tickets: Tickets, request: dict[str, Any]) -> Ticket:
    """A ticket as soon as a slot is free: an engine that has just come has one at first, and a receipt takes a moment."""
    for _ in range(200):
        try:
            return tickets.ask(request)
        except TicketRefused as error:
            if error.code != "overloaded":
                raise
            time.sleep(0.05)
    raise TimeoutError("no slot became free")


def attack(tickets: Tickets, rng: random.Random) -> dict[str, Any]:
    request = {"model": "m1", "max_tokens": 4, "messages": [{"role": "user", "content": "Hello"}]}
    ticket, other = asked(tickets, request), asked(tickets, request)
    answers: Counter[str] = Counter()
    host = ticket.url.split("/")[2].rpartition(":")[0]
    with httpx.Client(verify=machine_context(ticket), trust_env=False, timeout=60) as client:
        for _ in range(TAMPERED):
            text, body, path = tampered(ticket, other, rng)
            headers = {"authorization": f"Bearer {text}", "content-type": "application/json", "host": host}
            answer = client.post(f"https://{ticket.address}{path}", content=body, headers=headers, extensions={"sni_hostname": host})
            answers["accepted" if answer.status_code == 200 else answer.json()["error"]["code"]] += 1
    genuine = [tickets.run(one).status_code for one in (ticket, other)]
    again = [refusal(tickets, one) for one in (ticket, other) for _ in range(10)]
    return {"answers": dict(answers), "accepted": answers["accepted"], "genuine_afterwards": genuine, "replayed": dict(Counter(again))}


def refusal(tickets: Tickets, ticket: Ticket) -> str:
    try:
        return str(tickets.run(ticket).status_code)
    except TicketRefused as error:
        return error.code


def measure(gateway: Gatehouse, tickets: Tickets) -> dict[str, Any]:
    assert gateway.process is not None
    pid, found = gateway.process.pid, dict[str, Any]()
    headers = {"authorization": f"Bearer {KEYS['none']}"}
    client = httpx.Client(base_url=gateway.url, headers=headers, trust_env=False, timeout=120)
    for name, stream, tokens, count in (("whole", False, 8, MEASURED), ("streamed", True, 400, MEASURED // 10)):
        request = {
            "model": "m1",
            "max_tokens": tokens,
            "ignore_eos": True,
            "messages": [{"role": "user", "content": "Hi"}],
            "stream": stream,
        }
        began, begun = cpu(pid), time.monotonic()
        time.sleep(2)
        idle = (cpu(pid) - began) / (time.monotonic() - begun)
        for way in ("relayed", "ticket"):
            began, begun, size = cpu(pid), time.monotonic(), 0
            for _ in range(count):
                if way == "relayed":
                    size += len(client.post("/v1/chat/completions", json=request).content)
                else:
                    ticket = asked(tickets, request)
                    size += len(tickets.run(ticket).content)
            time.sleep(1)
            used = cpu(pid) - began - idle * (time.monotonic() - begun)
            found[f"{name}_{way}"] = {
                "cpu_ms": round(1000 * used / count, 3),
                "bytes": size // count,
                "wall_s": round(time.monotonic() - begun, 1),
            }
    return found


if __name__ == "__main__":
    main()
