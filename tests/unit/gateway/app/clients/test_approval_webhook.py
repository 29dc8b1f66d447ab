"""The webhook of approvals against a real server: what is told is signed, and what comes back counts once."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from gateway.app.clients import approval_webhook
from gateway.app.clients.approval_webhook import ApprovalWebhook
from gateway.app.clients.approvals import ApprovalBook
from gateway.core import signed
from gateway.core.approvals import Hold, Take
from gateway.core.clock import FakeClock
from gateway.core.errors import AuthenticationError, GatehouseError, NotFound, PermissionDenied, RequestError, VersionMismatch
from gateway.core.secret import Secret
from gateway.core.specs.approvals import ApprovalsSpec, ApprovalWebhookSpec
from gateway.core.tasks import TaskOwner
from gateway.core.types import Principal
from gateway.identity import keys
from gateway.store.store import Store
from tests.contract.store.test_approvals import ME, hold, take
from tests.stores import migrated

SECRET = "s" * 32


class Server:
    """Keeps what it is told; `statuses`: how it answers, 204 after these."""

    def __init__(self) -> None:
        self.told: list[tuple[dict[str, str], bytes]] = []
        self.statuses: list[int] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                server.told.append(({name.lower(): value for name, value in self.headers.items()}, body))
                self.send_response(server.statuses.pop(0) if server.statuses else 204)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                """Says nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook?x=1"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Bench:
    """A store, a book and a webhook."""

    def __init__(self, directory: Path) -> None:
        self.server, self.clock, self.owner = Server(), FakeClock(), TaskOwner("test")
        self.store = Store("sqlite", migrated(directory), keys, database_clock=lambda connection: self.clock.wall(), deadline=60.0)
        self.events: list[tuple[str, str]] = []
        self.settings = ApprovalsSpec(webhook=ApprovalWebhookSpec(url=self.server.url, secret=Secret(SECRET)))
        self.approvers: tuple[str, ...] | None = ()
        """Of the guardrail, as the configuration in force has it; None: it is gone."""
        self.book = ApprovalBook(self.store.approvals, lambda: self.settings, self.record, self.owner, lambda guardrail: self.approvers)
        self.webhook = ApprovalWebhook(self.book, self.store, lambda: self.settings.webhook, self.record, self.owner, self.clock)

    def record(self, event: str, target: str, detail: dict[str, Any], *, actor: str = "", outcome: str = "ok") -> None:
        self.events.append((event, outcome))

    async def asked(self, **changes: Any) -> str:
        wanted: Hold = hold(**{"approvers": (), **changes})
        return (await self.book.keep(wanted)).id

    async def delivered(self) -> None:
        await self.owner.finish(60.0)

    def decision(self, approval: str, nonce: str = "n" * 16, **changes: Any) -> tuple[dict[str, str], bytes]:
        wanted = {"id": approval, "decision": "approve", "reason": "fine", "by": "boss", "arguments_sha256": "a" * 64, **changes}
        body = json.dumps(wanted).encode()
        return signed.headers(SECRET, body, self.clock.wall(), nonce), body


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    made = Bench(tmp_path)
    await made.store.start()
    yield made
    await made.owner.aclose()
    await made.store.aclose()
    made.server.close()


async def test_what_is_told_is_signed_and_holds_no_arguments(bench: Bench) -> None:
    id = await bench.asked()
    await bench.delivered()
    ((headers, body),) = bench.server.told
    assert signed.verified(SECRET, headers, body, bench.clock.wall()) is not None
    told = json.loads(body)
    assert (told["event"], told["id"], told["tools"][0]["tool"]) == ("approval.asked", id, "delete") and b"falcon" not in body


async def test_a_server_that_fails_is_told_again_and_given_up_at_last(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(approval_webhook, "PAUSES", (0.0, 0.0))
    bench.server.statuses = [500, 503]
    await bench.asked()
    while bench.webhook._under_way:
        await bench.owner.wait(bench.webhook._book.sweep())
    assert len(bench.server.told) == 3 and len({headers[signed.NONCE] for headers, _ in bench.server.told}) == 3
    bench.server.statuses = [500] * 3
    await bench.asked()
    await bench.delivered()
    assert ("approval_webhook_failed", "failed") in bench.events


async def test_a_signed_decision_counts_once(bench: Bench) -> None:
    id = await bench.asked()
    headers, body = bench.decision(id)
    decided = await bench.webhook.decide(headers, body)
    assert (decided.state, decided.decider) == ("approved", "webhook/boss")
    with pytest.raises(VersionMismatch) as replayed:
        await bench.webhook.decide(headers, body)
    assert replayed.value.code == "replayed"
    assert (await bench.book.give(take(id))).state == "taken"
    assert [event for event, _ in bench.events][-2:] == ["approval_webhook_replayed", "approval_returned"]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"by": "k"}, PermissionDenied),
        ({"arguments_sha256": "b" * 64}, PermissionDenied),
        ({"id": "apr-none"}, NotFound),
        ({"decision": "maybe"}, RequestError),
        ({"arguments_sha256": None}, RequestError),
    ],
)
async def test_a_decision_that_may_not_be_leaves_everything_as_it_was(
    bench: Bench, change: dict[str, Any], error: type[GatehouseError]
) -> None:
    id = await bench.asked()
    with pytest.raises(error):
        await bench.webhook.decide(*bench.decision(id, **change))
    assert (await bench.book.give(take(id))).state == "pending"


async def test_only_a_signature_of_ours_of_now_counts(bench: Bench) -> None:
    id = await bench.asked()
    headers, body = bench.decision(id)
    for given, sent in ((headers, body + b" "), ({}, body), ({**headers, signed.SIGNATURE: "v1=00"}, body)):
        with pytest.raises(AuthenticationError):
            await bench.webhook.decide(given, sent)
    bench.clock.advance(301.0)
    with pytest.raises(AuthenticationError):
        await bench.webhook.decide(headers, body)


async def test_approvers_that_a_guardrail_names_bind_the_webhook_too(bench: Bench) -> None:
    bench.approvers = ("role/approver", "user/boss")
    id = await bench.asked(approvers=bench.approvers)
    with pytest.raises(PermissionDenied) as refused:
        await bench.webhook.decide(*bench.decision(id, by="clerk"))
    assert refused.value.code == "not_an_approver"
    assert (await bench.webhook.decide(*bench.decision(id, nonce="m" * 16))).state == "approved"


async def test_approvers_are_those_of_the_configuration_in_force(bench: Bench) -> None:
    id = await bench.asked(approvers=("user/boss",))
    bench.approvers = ("user/clerk",)
    with pytest.raises(PermissionDenied, match="This is for user/clerk to decide"):
        await bench.webhook.decide(*bench.decision(id))
    assert (await bench.book.get(id)).approvers == ("user/clerk",)
    assert [one.approvers for one in (await bench.book.page(tenant=None, state=None, limit=10, cursor=None)).items] == [("user/clerk",)]
    decided = await bench.webhook.decide(*bench.decision(id, nonce="m" * 16, by="clerk"))
    bench.approvers = ("user/somebody",)
    assert decided.state == "approved" and (await bench.book.give(take(id))).state == "taken", "what was decided stays so"


async def test_what_a_guardrail_held_that_is_gone_can_only_be_denied(bench: Bench) -> None:
    id = await bench.asked(approvers=("user/boss",))
    bench.approvers = None
    with pytest.raises(PermissionDenied, match="is gone") as refused:
        await bench.webhook.decide(*bench.decision(id))
    assert refused.value.code == "not_an_approver"
    with pytest.raises(PermissionDenied, match="This is for user/boss"):
        await bench.webhook.decide(*bench.decision(id, nonce="m" * 16, by="clerk", decision="deny"))
    assert (await bench.webhook.decide(*bench.decision(id, nonce="o" * 16, decision="deny"))).state == "denied"


async def test_without_a_webhook_there_is_no_such_path(bench: Bench) -> None:
    bench.settings = ApprovalsSpec()
    id = await bench.asked()
    with pytest.raises(NotFound):
        await bench.webhook.decide(*bench.decision(id))
    assert bench.server.told == []


async def test_expired_ones_are_swept_counted_and_told(bench: Bench) -> None:
    id = await bench.asked()
    bench.clock.advance(61.0)
    await bench.book.sweep()
    await bench.delivered()
    assert [json.loads(body)["event"] for _, body in bench.server.told].count("approval.expired") == 1
    samples = {(sample.name, *sample.labels.values()): sample.value for metric in bench.book.collect() for sample in metric.samples}
    assert samples["gatehouse_approvals", "expired"] == 1 and samples["gatehouse_approval_events_total", "expired"] == 1
    assert samples["gatehouse_approvals_bytes",] == 0 and (await bench.book.get(id)).state == "expired"


@pytest.mark.parametrize("separation", ["credential", "person"])
async def test_two_keys_of_one_tenant_are_one_where_only_a_person_counts(bench: Bench, separation: Any) -> None:
    bench.settings = ApprovalsSpec(separation=separation)
    requester = type(ME)(tenant="acme", id="k", kind="api_key", identities=("key acme k", "tenant acme"))
    id = await bench.asked(requester=requester)
    operator = Principal("other", "acme", "api_key")
    if separation == "credential":
        assert (await bench.book.decide(id, True, "r", operator, "acme/other", None)).state == "approved"
    else:
        with pytest.raises(PermissionDenied) as refused:
            await bench.book.decide(id, True, "r", operator, "acme/other", None)
        assert refused.value.code == "self_approval"
    assert isinstance(take(id), Take)
