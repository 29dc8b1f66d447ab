"""Direct tickets: a real machine with the demo model, a gateway with workers, clients that run their requests at the machine."""

from __future__ import annotations

import json
import re
import socket
import ssl
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from gatehouse.client.tickets import RECEIPT, AsyncTickets, TicketRefused, Tickets, receipt_in
from tests.e2e.adminapi import KEYS, admin
from tests.e2e.harness import ROOT, Gatehouse
from tests.e2e.joining import CHAT as ENGINE
from tests.e2e.joining import JoinedMachine, gateway_config, token
from tests.waiting import until

LIMITED = "limited-key-0123456789abcdef0123456789"
CHAT = {"model": "m1", "messages": [{"role": "user", "content": "Hello there"}], "max_tokens": 8, "temperature": 0}


@pytest.fixture(scope="module")
def gatehouse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gatehouse]:
    directory = tmp_path_factory.mktemp("gateway")
    made = gateway_config(directory / "state", lease="60s")
    made["models"] += [
        {"name": "read", "pool": ["chat"]},
        {"name": "other", "pool": ["chat"]},
        {"name": "last", "pool": ["chat"], "fallbacks": ["m1"]},
    ]
    made["guardrails"] = [{"name": "words", "type": "denylist", "models": ["read"], "settings": {"phrases": ["forbidden"]}}]
    made["tickets"] = {"enabled": True, "models": ["m1", "read", "last"], "expiry": "20s", "grace": "1s", "max_open": 2}
    static = made["identity"]["api_keys"]["static"]
    static.append({"id": "limited", "key": LIMITED, "tenant": "beta", "models": ["*"]})
    with Gatehouse(directory, made, arguments=["--workers", "2"]) as running:
        yield running


@pytest.fixture(scope="module")
def machine(gatehouse: Gatehouse, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JoinedMachine]:
    made = JoinedMachine(tmp_path_factory.mktemp("machines"), "gpu-1", [{**ENGINE, "slots": 4}])
    made.start(gatehouse.admin_url, token(gatehouse)["token"], "--tickets", "127.0.0.1:0")
    try:
        until(lambda: ready(gatehouse), what="the machine")
        yield made
    finally:
        made.stop()


def ready(gatehouse: Gatehouse) -> bool:
    """Every worker knows: the kernel spreads connections over them, so that sixteen in a row all but surely meet both."""
    with admin(gatehouse) as api:
        if {one["name"]: one["state"] for one in api.get("/endpoints").json()["items"]} != {"chat@gpu-1": "ready"}:
            return False
    return all(relayed(gatehouse) == 200 for _ in range(16))


def relayed(gatehouse: Gatehouse) -> int:
    headers = {"authorization": f"Bearer {KEYS['none']}"}
    return httpx.post(f"{gatehouse.url}/v1/chat/completions", json=CHAT, headers=headers, trust_env=False, timeout=60).status_code


def wish(gatehouse: Gatehouse, request: dict[str, Any] | None = None, key: str = KEYS["none"], **fields: Any) -> httpx.Response:
    body = {"endpoint": "/v1/chat/completions", "request": request or CHAT, **fields}
    headers = {"authorization": f"Bearer {key}"}
    return httpx.post(f"{gatehouse.url}/v1/tickets", json=body, headers=headers, trust_env=False, timeout=60)


def given(gatehouse: Gatehouse, request: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    answer = wish(gatehouse, request, **fields)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def run(ticket: dict[str, Any], body: str | None = None, text: str | None = None, path: str | None = None) -> httpx.Response:
    """The request at the machine, whose certificate is verified by the authority that came with the ticket."""
    host, context = urlsplit(ticket["url"]).hostname, ssl.create_default_context(cadata=ticket["ca"])
    with httpx.Client(verify=context, trust_env=False, timeout=60) as client:
        return client.post(
            f"https://{ticket['address']}{path or urlsplit(ticket['url']).path}",
            content=(body if body is not None else ticket["body"]).encode(),
            headers={"authorization": f"Bearer {text or ticket['ticket']}", "content-type": "application/json", "host": str(host)},
            extensions={"sni_hostname": host},
        )


def outcomes(gatehouse: Gatehouse, id: str) -> list[dict[str, Any]]:
    """The records of a ticket."""
    return [one for one in gatehouse.audit() if ((one.get("detail") or {}).get("ticket") or {}).get("id") == id]


def settled(gatehouse: Gatehouse, id: str) -> dict[str, Any]:
    found = until(lambda: [one for one in outcomes(gatehouse, id) if one["kind"] == "outcome"], what="the outcome")
    assert len(found) == 1
    return found[0]


def test_a_request_runs_at_the_machine_and_its_receipt_settles_it(gatehouse: Gatehouse, machine: JoinedMachine) -> None:
    ticket = given(gatehouse)
    assert ticket["machine"] == "gpu-1" and ticket["max_tokens"] == 8
    answer = run(ticket)
    assert answer.status_code == 200, "\n".join([answer.text, *machine.lines])
    said = answer.json()
    assert said["choices"][0]["message"]["content"] and answer.headers["x-gatehouse-receipt"].startswith("ghr_")
    record = settled(gatehouse, ticket["id"])
    assert (record["outcome"], record["endpoint"], record["operation"]) == ("ok", "chat@gpu-1", "chat")
    assert (record["prompt_tokens"], record["completion_tokens"]) == (said["usage"]["prompt_tokens"], said["usage"]["completion_tokens"])
    assert record["finish"] == said["choices"][0]["finish_reason"] and record["bytes"] == len(answer.content)
    kinds = [one["kind"] for one in outcomes(gatehouse, ticket["id"])]
    assert kinds == ["intent", "outcome"]
    assert run(ticket).json()["error"]["code"] == "used_ticket"


def test_a_stream_passes_as_it_comes_and_ends_with_its_receipt(gatehouse: Gatehouse, machine: JoinedMachine) -> None:
    ticket = given(gatehouse, {**CHAT, "stream": True})
    answer = run(ticket)
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = answer.text.split("\n\n")
    assert "data: [DONE]" in events and events[-2].startswith(": x-gatehouse-receipt: ghr_")
    record = settled(gatehouse, ticket["id"])
    assert record["outcome"] == "ok" and record["completion_tokens"] == 8 and not record.get("estimated")


def test_what_was_altered_is_refused_and_uses_nothing_up(gatehouse: Gatehouse, machine: JoinedMachine) -> None:
    ticket = given(gatehouse)
    other = json.dumps({**json.loads(ticket["body"]), "max_tokens": 4000})
    assert run(ticket, body=other).json()["error"]["code"] == "ticket_mismatch"
    assert run(ticket, body=ticket["body"] + " ").json()["error"]["code"] == "ticket_mismatch"
    assert run(ticket, path="/v1/completions").json()["error"]["code"] == "ticket_mismatch"
    place = len(ticket["ticket"]) // 2
    letter = "A" if ticket["ticket"][place] != "A" else "B"
    forged = ticket["ticket"][:place] + letter + ticket["ticket"][place + 1 :]
    assert run(ticket, text=forged).json()["error"]["code"] == "invalid_ticket"
    assert run(ticket, path="/v1/models").status_code == 404
    assert run(ticket).status_code == 200


def test_of_a_ticket_one_body_at_a_time_is_received(gatehouse: Gatehouse, machine: JoinedMachine) -> None:
    """Else whoever has one ticket could fill the machine's memory with its body."""
    ticket = given(gatehouse)
    body, url, (host, _, port) = ticket["body"].encode(), urlsplit(ticket["url"]), ticket["address"].rpartition(":")
    lines = (
        f"POST {url.path} HTTP/1.1",
        f"host: {url.hostname}",
        f"authorization: Bearer {ticket['ticket']}",
        f"content-length: {len(body)}",
    )
    head = "\r\n".join((*lines, "", ""))
    context = ssl.create_default_context(cadata=ticket["ca"])
    with (
        socket.create_connection((host, int(port)), timeout=60) as plain,
        context.wrap_socket(plain, server_hostname=url.hostname) as slow,
    ):
        slow.sendall(head.encode() + body[:-1])
        until(lambda: run(ticket, body=ticket["body"] + " ").status_code == 503, what="the refusal of a second body")
        slow.sendall(body[-1:])
        assert slow.recv(12) == b"HTTP/1.1 200"


def test_requests_whose_answers_the_gateway_must_see_get_no_ticket(gatehouse: Gatehouse, machine: JoinedMachine) -> None:
    for model in ("read", "other", "last"):
        answer = wish(gatehouse, {**CHAT, "model": model})
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "ticket_not_possible"), answer.text
    assert wish(gatehouse, {**CHAT, "model": "none"}).json()["error"]["code"] == "model_not_found"
    assert wish(gatehouse, {**CHAT, "max_tokens": 100_000}).json()["error"]["param"] == "max_tokens"
    unbound = {name: value for name, value in CHAT.items() if name != "max_tokens"}
    assert wish(gatehouse, unbound).json()["error"]["param"] == "request.max_tokens"
    assert wish(gatehouse, endpoint="/v1/rerank").json()["error"]["param"] == "endpoint"
    assert wish(gatehouse, key="no-key-at-all-0123456789abcdef").status_code == 401


def test_the_client_asks_and_runs_in_two_calls(gatehouse: Gatehouse, machine: JoinedMachine) -> None:
    with Tickets(gatehouse.url, KEYS["none"]) as tickets:
        ticket = tickets.ask(CHAT)
        said = tickets.run(ticket).json()
        assert said["usage"]["completion_tokens"] == settled(gatehouse, ticket.id)["completion_tokens"] == 8
        with pytest.raises(TicketRefused) as caught:
            tickets.run(ticket)
        assert (caught.value.status, caught.value.code) == (409, "used_ticket")
        with pytest.raises(TicketRefused) as caught:
            tickets.ask({**CHAT, "model": "read"})
        assert (caught.value.status, caught.value.code) == (409, "ticket_not_possible")
        with tickets.stream(streamed := tickets.ask({**CHAT, "stream": True})) as response:
            lines = list(response.iter_lines())
        assert "data: [DONE]" in lines and receipt_in("\n".join(lines)).startswith("ghr_")
        assert settled(gatehouse, streamed.id)["outcome"] == "ok"


def test_the_example_of_the_page_runs(gatehouse: Gatehouse, machine: JoinedMachine, capsys: pytest.CaptureFixture[str]) -> None:
    example = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "tickets.md").read_text(encoding="utf-8"), re.DOTALL)
    text = example[0].replace("https://gateway.example", gatehouse.url).replace("demo-chat", "m1")
    exec(compile(text, "tickets.md", "exec"), {"key": KEYS["none"]})
    assert len(example) == 1 and capsys.readouterr().out.strip()


async def test_the_client_for_asyncio_does_the_same(gatehouse: Gatehouse, machine: JoinedMachine) -> None:
    async with AsyncTickets(gatehouse.url, KEYS["none"]) as tickets:
        answer = await tickets.run(await tickets.ask(CHAT))
        assert answer.json()["usage"]["completion_tokens"] == 8 and answer.headers[RECEIPT].startswith("ghr_")
        async with tickets.stream(await tickets.ask({**CHAT, "stream": True})) as response:
            assert "data: [DONE]" in [line async for line in response.aiter_lines()]
        with pytest.raises(TicketRefused):
            await tickets.ask({**CHAT, "model": "other"})


def test_what_nobody_uses_is_charged_in_full(gatehouse: Gatehouse, machine: JoinedMachine) -> None:
    ticket = given(gatehouse, key=LIMITED, expires_in=1)
    record = settled(gatehouse, ticket["id"])
    assert (record["outcome"], record["code"], record["completion_tokens"]) == ("unknown", "ticket_unsettled", 8)
    assert record["estimated"] and record["charged"] and record["prompt_tokens"] > 0
    until(lambda: time.time() > ticket["expires_at"], what="the ticket's end")
    assert run(ticket).json()["error"]["code"] in ("used_ticket", "expired_ticket")


def test_a_machine_that_was_restarted_takes_no_ticket_of_before(gatehouse: Gatehouse, machine: JoinedMachine) -> None:
    ticket = given(gatehouse, expires_in=1)  # which process it is for is looked at first
    port = next(line for line in machine.lines if line.startswith("tickets: ")).rpartition(" ")[2]
    machine.kill()
    machine.start(gatehouse.admin_url, None, "--tickets", port)

    def runs_tickets() -> bool:
        answer = wish(gatehouse, key=LIMITED, expires_in=1) if any(line.startswith("tickets: ") for line in machine.lines) else None
        return answer is not None and answer.status_code == 200 and run(answer.json()).status_code == 200

    until(runs_tickets, what="the machine again")
    assert run(ticket).json()["error"]["code"] == "invalid_ticket"
