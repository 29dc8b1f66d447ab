"""Costs, usage and their reconciliation, through the whole gateway: exact over kills, restarts and several processes."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner, Result

from gateway.app.main import app
from tests.e2e import adminapi
from tests.e2e.adminapi import KEYS
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import KEY, Gatehouse
from tests.waiting import until

PRICES = [
    {"model": "m*", "prompt": 10, "completion": 30, "cached": 1, "request": 0.001},
    {"model": "free", "prompt": 0},
]
Launch = Callable[..., Gatehouse]


def config(tmp_path: Path, port: int, **parts: Any) -> dict[str, Any]:
    made = adminapi.config(tmp_path / "state", port, prices=PRICES, **parts)
    made["models"].append({"name": "free", "pool": [made["engines"][0]["name"]]})
    return made


def admin(gatehouse: Gatehouse, path: str, **params: Any) -> Any:
    headers = {"authorization": f"Bearer {KEYS['admin']}"}
    answer = httpx.get(f"{gatehouse.admin_url}/admin/v1{path}", params=params, headers=headers, trust_env=False, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


def cli(gatehouse: Gatehouse, home: Path, *arguments: str, code: int = 0) -> Result:
    environ = {"GATEHOUSE_URL": gatehouse.admin_url, "GATEHOUSE_KEY": KEYS["admin"], "XDG_CONFIG_HOME": str(home), "NO_COLOR": "1"}
    done = CliRunner().invoke(app, list(arguments), env=environ)
    assert done.exit_code == code, (done.stdout, done.stderr)
    return done


def reconciled(gatehouse: Gatehouse, requests: int) -> dict[tuple[str, str], int]:
    """What was charged, by scope and unit, once the log has the outcomes of so many requests and all are counted; nothing may differ."""

    def settled() -> Any:
        found = admin(gatehouse, "/usage:reconcile")
        assert found["difference"] == 0, [line for line in found["scopes"] if line["difference"]]
        charged = {(line["scope"], line["unit"]): line["charged"] for line in found["scopes"]}
        return charged if charged.get(("all", "requests")) == requests else None

    charged: dict[tuple[str, str], int] = until(settled, what="everything to be counted")
    return charged


def nano(prompt: int, completion: int, cached: int = 0) -> int:
    """The cost by PRICES of m1."""
    return (prompt - cached) * 10_000 + cached * 1_000 + completion * 30_000 + 1_000_000


def test_answers_say_what_they_cost_where_that_is_configured(launch: Launch, engine: EngineThread, tmp_path: Path) -> None:
    gatehouse = launch(config(tmp_path, engine.port, usage={"cost_header": True})).start()
    answer = gatehouse.chat()
    usage = answer.json()["usage"]
    cost = nano(usage["prompt_tokens"], usage["completion_tokens"])
    assert answer.headers["x-gatehouse-cost"] == f"{cost / 1e9:.9f}".rstrip("0") + " usd"
    record = gatehouse.outcome(answer.headers["x-request-id"])
    assert (record["cost"], record["currency"], len(record["price"])) == (cost, "usd", 12)
    assert gatehouse.chat(model="free").headers["x-gatehouse-cost"] == "0 usd"
    body = json.dumps({"model": "m1", "stream": True, "messages": [{"role": "user", "content": "Hi"}]}).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer %b\r\ncontent-length: %d\r\nconnection: close\r\n"
    plain = gatehouse.raw(head % (KEY.encode(), len(body)) + b"\r\n" + body)
    assert b"x-gatehouse-cost" not in plain and plain.endswith(b"\r\n0\r\n\r\n")
    trailed = gatehouse.raw(head % (KEY.encode(), len(body)) + b"te: trailers\r\n\r\n" + body)
    assert b"\r\ntrailer: x-gatehouse-cost\r\n" in trailed
    last = trailed[trailed.rindex(b"0\r\nx-gatehouse-cost: ") :].decode().split("\r\n")
    assert last[1].startswith("x-gatehouse-cost: 0.00") and last[1].endswith(" usd") and last[2:] == ["", ""]
    assert gatehouse.stop() == 0


def test_the_price_that_was_in_force_at_the_start_counts(launch: Launch, engine: EngineThread, tmp_path: Path) -> None:
    gatehouse = launch(config(tmp_path, engine.port)).start()
    first = gatehouse.outcome(gatehouse.chat().headers["x-request-id"])["price"]
    engine.play("hold")
    answers: list[httpx.Response] = []
    waiting = threading.Thread(target=lambda: answers.append(gatehouse.chat()))
    waiting.start()
    engine.holds(1)
    gatehouse.config["prices"] = [{"model": "*", "completion": 1}]
    text = json.dumps({**gatehouse.config})
    gatehouse.file.write_text(text)
    assert gatehouse.process is not None
    gatehouse.process.send_signal(signal.SIGHUP)
    until(lambda: gatehouse.outcome(gatehouse.chat().headers["x-request-id"])["price"] != first, what="the new price")
    engine.release()
    waiting.join(60)
    assert gatehouse.outcome(answers[0].headers["x-request-id"])["price"] == first
    assert gatehouse.stop() == 0


def killed_meanwhile(gatehouse: Gatehouse) -> None:
    with pytest.raises(httpx.HTTPError):
        gatehouse.chat(max_tokens=7)


@pytest.mark.parametrize("workers", [0, 2])
def test_usage_is_exact_over_kills_and_restarts(launch: Launch, engine: EngineThread, tmp_path: Path, workers: int) -> None:
    gatehouse = launch(config(tmp_path, engine.port))
    if workers:
        gatehouse.arguments = ["--workers", str(workers)]
    gatehouse.start()
    for _ in range(5):
        gatehouse.outcome(gatehouse.chat().headers["x-request-id"])  # a kill may lose the outcome of what was answered just before
    engine.play("hold; hold")
    clients = [threading.Thread(target=killed_meanwhile, args=(gatehouse,)) for _ in range(2)]
    for client in clients:
        client.start()
    engine.holds(2)
    assert gatehouse.process is not None
    pids = [gatehouse.process.pid]

    def serving() -> list[int] | None:
        found = [int(line.split()[-1].rstrip(")")) for line in list(gatehouse.lines) if " serves (process " in line]
        return found if len(found) == workers else None

    pids += until(serving, what="the workers") if workers else []
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    gatehouse.process.wait(60)
    for client in clients:
        client.join(60)
    gatehouse.start()
    assert gatehouse.chat().status_code == 200
    found = reconciled(gatehouse, 8)
    assert found["all", "unknown"] == 2
    outcomes = [record for record in gatehouse.audit() if record["kind"] == "outcome" and record.get("attempts")]
    assert len(outcomes) == 8
    assert found["all", "nano-usd"] == sum(record.get("cost", 0) for record in outcomes)
    unknown = [record for record in outcomes if record["outcome"] == "unknown"]
    assert [record["completion_tokens"] for record in unknown] == [7, 7] and all(record["cost"] >= 1_210_000 for record in unknown)
    assert gatehouse.stop() == 0
    gatehouse.start()
    assert reconciled(gatehouse, 8) == found
    assert gatehouse.stop() == 0


def test_reports_group_by_whom_and_by_cost_centre(launch: Launch, engine: EngineThread, tmp_path: Path) -> None:
    centres = [{"name": "=CC-1", "tenant": "acme", "key": "te*"}]
    gatehouse = launch(config(tmp_path, engine.port, usage={"cost_centres": centres})).start()
    for model in ("m1", "m1", "free"):
        assert gatehouse.chat(model=model).status_code == 200
    found = reconciled(gatehouse, 3)
    rows = {row["model"]: row for row in admin(gatehouse, "/usage", group_by="tenant,key,model,operation")["items"]}
    assert (rows["m1"]["requests"], rows["m1"]["currency"], rows["m1"]["operation"]) == (2, "usd", "chat")
    assert rows["m1"]["cost"] == f"{found['model/m1', 'nano-usd'] / 1e9:.9f}".rstrip("0")
    assert (rows["free"]["cost"], rows["free"]["currency"]) == ("0", "usd")
    day = admin(gatehouse, "/usage", group_by="day")["items"][0]["day"]
    report = cli(gatehouse, tmp_path, "usage", "report", "--month", day[:7]).stdout.splitlines()
    assert report[0].startswith("cost_centre,currency,cost,requests,prompt_tokens")
    assert report[1].startswith(f"'=CC-1,usd,{rows['m1']['cost']},3,")
    whole = json.loads(cli(gatehouse, tmp_path, "usage", "report", "--month", day[:7], "--format", "json").stdout)
    assert whole == json.loads(cli(gatehouse, tmp_path, "usage", "report", "--month", day[:7], "--output", "json").stdout)
    assert whole["month"] == day[:7] and whole["items"][0]["cost_centre"] == "=CC-1"
    assert "m1" in cli(gatehouse, tmp_path, "usage", "--by", "model,user", "--key-id", "test").stdout
    reconciliation = json.loads(cli(gatehouse, tmp_path, "limits", "reconcile", "--output", "json").stdout)
    assert reconciliation["difference"] == 0 and {"scope", "from_audit", "charged", "difference"} <= set(reconciliation["scopes"][0])
    assert cli(gatehouse, tmp_path, "usage", "report", "--month", "2026-13", code=1).stderr.startswith("error: ")
    assert gatehouse.stop() == 0


def test_a_difference_is_shown_with_exit_code_1(launch: Launch, engine: EngineThread, tmp_path: Path) -> None:
    gatehouse = launch(config(tmp_path, engine.port)).start()
    assert gatehouse.chat().status_code == 200
    reconciled(gatehouse, 1)
    (database,) = (tmp_path / "state").glob("*.db")
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("UPDATE usage SET cost = cost - 1")
    done = cli(gatehouse, tmp_path, "limits", "reconcile", code=1)
    assert "nano-usd" in done.stdout and "-1" in done.stdout and "what was charged is not what the audit log says" in done.stderr
    assert gatehouse.stop() == 0


def test_prices_of_the_store_count_at_once_and_never_overlap(launch: Launch, engine: EngineThread, tmp_path: Path) -> None:
    gatehouse = launch(adminapi.config(tmp_path / "state", engine.port)).start()
    assert "price" not in gatehouse.outcome(gatehouse.chat().headers["x-request-id"])
    cli(gatehouse, tmp_path, "prices", "set", "m1", "--prompt", "2.5", "--completion", "10", "--from", "2026-01-01")
    record = until(
        lambda: one if "price" in (one := gatehouse.outcome(gatehouse.chat().headers["x-request-id"])) else None, what="the price"
    )
    assert record["cost"] == record["prompt_tokens"] * 2_500 + record["completion_tokens"] * 10_000
    refused = cli(gatehouse, tmp_path, "prices", "set", "m1", "--prompt", "3", "--from", "2026-01-01", "--name", "again", code=1)
    assert "overlaps" in refused.stderr
    cli(gatehouse, tmp_path, "prices", "set", "m1", "--prompt", "3", "--from", "2026-01-01")  # in the place of the first
    table = tmp_path / "table.json"
    table.write_text(json.dumps({"vendor/big": {"input_cost_per_token": 2.5e-06, "output_cost_per_token": 1e-05}, "empty": {}}))
    cli(gatehouse, tmp_path, "prices", "import", str(table), "--model", "big=vendor/big", "--source", "a table of 2026-01-01")
    assert "no price" in cli(gatehouse, tmp_path, "prices", "import", str(table), "--model", "empty", code=2).stderr
    listed = json.loads(cli(gatehouse, tmp_path, "prices", "list", "--output", "json").stdout)
    assert [(one["name"], one["model"], one["prompt"]) for one in listed] == [("big", "big", 2.5e-06), ("m1-2026-01-01", "m1", 3.0)]
    assert listed[0]["reference"] == "a table of 2026-01-01" and listed[1]["from"] == "2026-01-01" and listed[1]["source"] == "store"
    cli(gatehouse, tmp_path, "prices", "delete", "m1-2026-01-01")
    until(lambda: "price" not in gatehouse.outcome(gatehouse.chat().headers["x-request-id"]), what="the end of the price")
    assert gatehouse.stop() == 0
