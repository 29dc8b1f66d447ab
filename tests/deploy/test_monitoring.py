"""Rules, routes and dashboards against the real tools: promtool, amtool, and a Prometheus that scrapes a gateway that serves."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.e2e.harness import DEMO_MODEL, Gatehouse, configuration, external
from tests.fakes.ports import empty_port
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[2]
PROMETHEUS = ROOT / "deploy/prometheus"
ALERTMANAGER = ROOT / "deploy/alertmanager/alertmanager.yml"
DASHBOARDS = sorted((ROOT / "deploy/grafana/dashboards").glob("*.json"))
ALERTS: list[dict[str, Any]] = [
    rule for group in yaml.safe_load((PROMETHEUS / "alerts.yaml").read_text())["groups"] for rule in group["rules"]
]
RECORDED: list[str] = [
    rule["record"] for group in yaml.safe_load((PROMETHEUS / "recording.yaml").read_text())["groups"] for rule in group["rules"]
]
DOCUMENTED = set(re.findall(r"^\| `(gatehouse_\w+)`", (ROOT / "docs/metrics.md").read_text(), re.MULTILINE))


def tool(*command: str | Path) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def names(expression: str) -> set[str]:
    """The gateway's metrics in an expression, without the suffixes of histograms; recorded ones are left out."""
    found = set(re.findall(r"(?<![\w:])gatehouse_\w+(?!\w*:)", expression))
    return {
        re.sub(r"_(bucket|sum|count)$", "", name) if name.endswith(("seconds_bucket", "seconds_sum", "seconds_count")) else name
        for name in found
    }


def panels() -> Iterator[tuple[str, str]]:
    """Each query of each dashboard, with where it is."""
    for path in DASHBOARDS:
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel.get("targets", ()):
                yield f"{path.stem}: {panel['title']}", target["expr"]


def concrete(query: str) -> str:
    """A query as Grafana sends it."""
    return query.replace("$__rate_interval", "1m").replace("$job", ".*").replace("$instance", ".*").replace("$model", ".*")


def test_the_rules_do_what_their_tests_say() -> None:
    tool("promtool", "check", "rules", PROMETHEUS / "recording.yaml", PROMETHEUS / "alerts.yaml")
    assert "SUCCESS" in tool("promtool", "test", "rules", PROMETHEUS / "tests.yaml")
    tested = {
        test["alertname"] for case in yaml.safe_load((PROMETHEUS / "tests.yaml").read_text())["tests"] for test in case["alert_rule_test"]
    }
    assert len(tested) >= 9


def test_every_metric_of_rules_and_dashboards_is_documented() -> None:
    expressions = [rule["expr"] for rule in ALERTS] + [query for _, query in panels()] + [(PROMETHEUS / "recording.yaml").read_text()]
    used = set().union(*map(names, expressions))
    assert len(used) > 30
    assert used - DOCUMENTED - {name for record in RECORDED for name in names(record.replace(":", " "))} == set()
    recorded = {name for expression in expressions[: len(ALERTS)] for name in re.findall(r"\w+:\w+:\w+", expression)}
    assert recorded and recorded <= set(RECORDED)


def test_every_alert_has_a_runbook() -> None:
    headings = {line.lstrip("# ").lower() for line in (ROOT / "docs/operations.md").read_text().splitlines() if line.startswith("#")}
    for rule in ALERTS:
        page, _, anchor = rule["annotations"]["runbook"].partition("#")
        assert (page, anchor) == ("docs/operations.md", rule["alert"].lower())
        assert anchor in headings, f"docs/operations.md has no runbook {rule['alert']}"
        assert rule["labels"]["severity"] in ("page", "ticket")


@pytest.mark.parametrize(
    ("labels", "receivers"),
    [
        ("severity=page alertname=GatehouseIsDown", "on-call,channel"),
        ("severity=page alertname=GatehouseAuditRefuses", "on-call,channel,compliance"),
        ("severity=ticket alertname=GatehouseArchiveIsBehind", "compliance"),
        ("severity=ticket alertname=GatehouseEndpointDown", "tickets"),
    ],
)
def test_an_alert_reaches_those_whom_it_concerns(labels: str, receivers: str) -> None:
    tool("amtool", "check-config", ALERTMANAGER)
    said = tool("amtool", "config", "routes", "test", f"--config.file={ALERTMANAGER}", *labels.split())
    assert said.strip() == receivers


def test_what_suppresses_an_alert_exists() -> None:
    known = {rule["alert"] for rule in ALERTS}
    text = ALERTMANAGER.read_text()
    assert set(re.findall(r"Gatehouse[A-Z]\w+(?![\w.])", text)) <= known


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A Prometheus with our rules that has scraped a gateway while it served; its HTTP API."""
    folder = tmp_path_factory.mktemp("monitoring")
    engine = subprocess.Popen([sys.executable, "-m", "tests.fakes.engine", "--port", "0"], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert engine.stdout is not None
    port = int(engine.stdout.readline().split()[1].rpartition(":")[2])
    sidecar = {"name": "own", "runtime": "llama.cpp", "model": DEMO_MODEL, "slots": 2, "context": 256, "scale": {"max": 1}}
    config = configuration(
        folder / "state",
        engines=[external("vllm", port), sidecar],
        models=[{"name": "chat", "pool": ["vllm"]}, {"name": "own", "pool": ["own"]}],
        telemetry={"tenant_metrics": 4},
    )
    try:
        with Gatehouse(folder, config) as gatehouse:
            prometheus = folder / "prometheus.yml"
            target = gatehouse.admin_url.removeprefix("http://")
            prometheus.write_text(
                "global: {scrape_interval: 300ms, scrape_timeout: 300ms, evaluation_interval: 300ms}\n"
                f"rule_files: [{PROMETHEUS}/recording.yaml, {PROMETHEUS}/alerts.yaml]\n"
                f"scrape_configs: [{{job_name: gatehouse, static_configs: [{{targets: ['{target}']}}]}}]\n"
            )
            with empty_port() as free:
                listen = f"127.0.0.1:{free}"
            arguments = [f"--config.file={prometheus}", f"--storage.tsdb.path={folder}/data", f"--web.listen-address={listen}"]
            with open(folder / "prometheus.log", "wb") as log:
                server = subprocess.Popen(["prometheus", *arguments], stdout=log, stderr=subprocess.STDOUT)
            try:
                with httpx.Client(base_url=f"http://{listen}/api/v1", timeout=30) as api:
                    until(lambda: value(api, "up"), what="the first scrape")
                    serve(gatehouse)
                    until(lambda: value(api, 'gatehouse_requests_total{outcome="ok"} offset 1s'), what="the requests")
                    # A counter that was first scraped with its last value has not grown: there is more traffic until one has.
                    until(lambda: value(api, "job:gatehouse_requests_bad:ratio_rate5m") or serve(gatehouse), what="the recorded ratio")
                    yield api
            finally:
                server.terminate()
                server.wait(30)
    finally:
        engine.terminate()
        engine.wait(30)
        engine.stdout.close()


def value(api: httpx.Client, query: str) -> list[dict[str, Any]]:
    """What Prometheus answers; nothing while it cannot be reached yet."""
    try:
        answer = api.get("/query", params={"query": query})
    except httpx.TransportError:
        time.sleep(0.05)
        return []
    if answer.status_code == 503:
        return []
    assert answer.status_code == 200, f"{query}: {answer.text}"
    result: list[dict[str, Any]] = answer.json()["data"]["result"]
    return result


def serve(gatehouse: Gatehouse) -> None:
    for stream in (False, True):
        for _ in range(3):
            assert gatehouse.chat(model="chat", stream=stream).status_code == 200
    assert gatehouse.chat(model="own", max_tokens=4).status_code == 200
    assert gatehouse.chat(model="chat", key="gh_nobody").status_code == 401


def test_every_panel_shows_something_where_the_gateway_has_its_metrics(scraped: httpx.Client) -> None:
    there = set(scraped.get("/label/__name__/values").json()["data"])
    asked = filled = 0
    shown: set[str] = set()
    for where, query in panels():
        found = value(scraped, concrete(query))
        asked += 1
        used = names(query)
        if all(name in there or f"{name}_bucket" in there for name in used) and "action!=" not in query:
            assert found or "== 0" in query, f"{where}: {query}"
            filled += bool(found)
            shown |= {where} if found else set()
    assert asked >= 80 and filled >= 55
    empty = {
        f"gatehouse-machine: {title}" for title in ("Addresses behind names", "Copies started and stopped")
    }  # nothing is named or scaled here
    machine = {where for where, _ in panels() if where.startswith("gatehouse-machine: ")}
    assert machine - empty - {"gatehouse-machine: Time in the queue"} <= shown


def test_rules_are_evaluated_and_a_healthy_gateway_raises_no_alert(scraped: httpx.Client) -> None:
    groups = scraped.get("/rules").json()["data"]["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) == len(ALERTS) + len(RECORDED)
    assert [rule["name"] for rule in rules if rule["health"] == "err"] == []
    assert [rule["name"] for rule in rules if rule.get("state") == "firing"] == []


def test_what_is_scraped_is_well_formed(scraped: httpx.Client) -> None:
    target = scraped.get("/targets").json()["data"]["activeTargets"][0]
    metrics = httpx.get(target["scrapeUrl"]).text
    done = subprocess.run(["promtool", "check", "metrics"], input=metrics, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
