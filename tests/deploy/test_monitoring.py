"""Rules, routes and dashboards against the real tools: promtool, amtool, and a Prometheus that scrapes a gateway that serves."""

import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.cluster.servers import RedisServer
from tests.deploy.expressions import METRICS, documented, kept, mistakes, selectors
from tests.e2e.adminapi import KEYS, admin
from tests.e2e.harness import DEMO_MODEL, KEY, OTHER_KEY, Gatehouse, configuration
from tests.fakes.http_receiver import HttpReceiver
from tests.fakes.names import NameServer
from tests.fakes.ports import empty_port
from tests.pki import Authority
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[2]
PROMETHEUS = ROOT / "deploy/prometheus"
ALERTMANAGER = ROOT / "deploy/alertmanager/alertmanager.yml"
DASHBOARDS = sorted((ROOT / "deploy/grafana/dashboards").glob("*.json"))
ALERTS: list[dict[str, Any]] = [
    rule for group in yaml.safe_load((PROMETHEUS / "alerts.yaml").read_text())["groups"] for rule in group["rules"]
]
RULES: dict[str, str] = {
    rule["record"]: rule["expr"]
    for group in yaml.safe_load((PROMETHEUS / "recording.yaml").read_text())["groups"]
    for rule in group["rules"]
}


def tool(*command: str | Path) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


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
    files = sorted(PROMETHEUS.glob("tests*.yaml"))
    cases = [case for file in files for case in yaml.safe_load(file.read_text())["tests"]]
    assert tool("promtool", "test", "rules", *files).count("SUCCESS") == len(files)
    tests = [test for case in cases for test in case["alert_rule_test"]]
    known = {rule["alert"] for rule in ALERTS}
    assert {test["alertname"] for test in tests if test["exp_alerts"]} == known, "each alert fires in a test"
    assert {test["alertname"] for test in tests if not test["exp_alerts"]} == known, "and is silent in one"


def test_what_is_recorded_is_tested_before_what_reads_it() -> None:
    """promtool takes groups that are not named in any order; then an alert would read what was recorded one interval earlier."""
    rules = [yaml.safe_load((PROMETHEUS / name).read_text())["groups"] for name in ("recording.yaml", "alerts.yaml")]
    groups = [group["name"] for each in rules for group in each]
    assert len(groups) == len(set(groups)), "a PrometheusRule holds them all, and no two of one name"
    for file in PROMETHEUS.glob("tests*.yaml"):
        assert yaml.safe_load(file.read_text())["group_eval_order"] == groups


def test_every_recorded_series_that_an_alert_reads_is_recorded() -> None:
    recorded = {name for rule in ALERTS for name in re.findall(r"\w+:\w+:\w+", rule["expr"])}
    assert recorded and recorded <= set(RULES)


def test_every_query_asks_for_what_its_metrics_have() -> None:
    """A misspelt label or value is an empty panel, or an alert that never fires. test_docs.py holds docs/metrics.md to the sources."""
    known = documented(METRICS.read_text())
    dashboards = [json.loads(path.read_text()) for path in DASHBOARDS]
    variables = [one["query"]["query"] for board in dashboards for one in board["templating"]["list"] if one["type"] == "query"]
    asked = [(rule["alert"], rule["expr"]) for rule in ALERTS] + list(panels()) + list(RULES.items()) + [("variable", v) for v in variables]
    scaler = yaml.safe_load((ROOT / "deploy/kustomize/components/keda/scaledobject.yaml").read_text())
    asked += [("KEDA", trigger["metadata"]["query"].replace('pool="chat"', 'pool="$pool"')) for trigger in scaler["spec"]["triggers"]]
    assert sum(len(list(selectors(query))) for _, query in asked) > 180
    assert [f"{where}: {wrong}" for where, query in asked for wrong in mistakes(query, known)] == []
    for variable in variables:
        assert re.fullmatch(r"label_values\(.+, (job|instance|model)\)", variable)


def test_what_a_text_says_of_a_series_is_a_label_that_it_has() -> None:
    known = documented(METRICS.read_text())
    texts = [(rule["expr"], rule["annotations"]["summary"].replace("$labels.", "")) for rule in ALERTS]
    texts += [
        (target["expr"], target.get("legendFormat", ""))
        for path in DASHBOARDS
        for panel in json.loads(path.read_text())["panels"]
        for target in panel.get("targets", ())
    ]
    seen = 0
    for query, text in texts:
        recorded = " ".join(RULES[name] for name in re.findall(r"\w+:\w+:\w+", query))
        for label in re.findall(r"\{\{ ?(?!(?:else|end)\b)(\w+) ?\}\}", text):
            seen += 1
            assert label in kept(recorded or query, known), f"{text}: {query}"
    assert seen > 80


@pytest.mark.parametrize(
    ("query", "wrong"),
    [
        ("sum(rate(gatehouse_requests_totals[1m]))", "'gatehouse_requests_totals'"),
        ('gatehouse_queued{modell="x"} > 1', "gatehouse_queued has no label modell"),
        ('increase(gatehouse_tls_reloads_total{outcome="refuse"}[1h]) > 0', "gatehouse_tls_reloads_total: outcome is never 'refuse'"),
        ('rate(gatehouse_requests_total{outcome=~"failed|late"}[5m])', "gatehouse_requests_total: outcome is never 'late'"),
        ("sum by (job, engine) (gatehouse_endpoint_up)", "gatehouse_endpoint_up has no label engine to group by"),
        ("rate(gatehouse_queued[5m])", "gatehouse_queued is a gauge: it has no rate"),
        ("gatehouse_audit_lost_total > 0", "gatehouse_audit_lost_total is a counter: its value alone says little"),
        ("histogram_quantile(0.5, rate(gatehouse_ttft_seconds[5m]))", "gatehouse_ttft_seconds is a histogram: its series are"),
        ("histogram_quantile(0.5, sum by (le) (rate(gatehouse_ttft_seconds_sum[5m])))", "has no label le to group by"),
        ("rate(gatehouse_queued_sum[5m])", "gatehouse_queued is no histogram"),
    ],
)
def test_a_query_that_is_empty_for_ever_is_found(query: str, wrong: str) -> None:
    (found,) = mistakes(query, documented(METRICS.read_text()))
    assert wrong in found


def test_the_count_of_gateways_leaves_out_what_else_prometheus_watches() -> None:
    """Also where the dashboard's job is `All`, which is `.*`."""
    (query,) = [query for where, query in panels() if where.endswith(": Gateways up")]
    (down,) = [rule["expr"] for rule in ALERTS if rule["alert"] == "GatehouseIsDown"]
    (job,) = re.findall(r"job=~\"([^$\"]+)\"", down)
    assert f'job=~"{job}"' in query and query.endswith("or vector(0)"), "none is a number, too"
    assert [bool(re.fullmatch(job, name)) for name in ("gatehouse", "gatehouse/live", "node", "gatehouse-test")] == [
        True,
        True,
        False,
        False,
    ]


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


SUPPRESSED = [
    # what explains, what is left out, what is told all the same
    ("GatehouseIsDown instance=a", "GatehouseStoreIsAway instance=a", "GatehouseStoreIsAway instance=b"),
    ("GatehouseNoEndpointUp", "GatehouseEndpointDown endpoint=x", "GatehouseQueueGrows job=other"),
    ("GatehouseEndpointDown endpoint=x instance=a", "GatehouseBreakerOpen endpoint=x", "GatehouseBreakerOpen endpoint=y"),
    ("GatehouseStoreIsAway instance=a", "GatehouseUsageIsBehind instance=a", "GatehouseUsageIsBehind instance=b"),
    ("GatehouseStoreIsAway instance=a", "GatehouseAuditHoldsUnknown instance=a", "GatehouseAuditRefuses instance=a"),
    (
        "GatehouseStoreIsAway instance=a",
        "GatehouseHintsAreAway instance=a carrier=postgresql",
        "GatehouseHintsAreAway instance=a carrier=redis",
    ),
    (
        "GatehouseRedisIsAway instance=a",
        "GatehouseHintsAreAway instance=a carrier=redis",
        "GatehouseHintsAreAway instance=a carrier=postgresql",
    ),
    ("GatehouseRedisIsAway instance=a", "GatehouseCacheIsAway instance=a tier=redis", "GatehouseCacheIsAway instance=a tier=disk"),
    ("GatehouseRedisIsAway instance=a", "GatehouseProofsAreAlone instance=a", "GatehouseLimitsForget instance=a"),
    ("GatehouseAuditRefuses instance=a", "GatehouseAuditIsSlow instance=a", "GatehouseAuditLostRecords instance=a"),
    ("GatehouseErrorBudgetBurnsFast", "GatehouseErrorBudgetBurns", "GatehouseErrorBudgetBurns job=other"),
    ("GatehouseIsDown instance=a", "GatehouseDiskFills instance=a", "GatehouseDiskFills instance=a job=other"),
]


def test_an_alert_leaves_out_what_it_explains_and_nothing_else(tmp_path: Path) -> None:
    def alert(text: str, case: int) -> dict[str, Any]:
        name, *labels = text.split()
        given = {"job": f"gatehouse-{case}", **dict(one.split("=") for one in labels)}
        for label in {"instance", "endpoint"} & given.keys():
            given[label] += str(case)  # one server for all cases, which do not meet
        return {"labels": {"alertname": name, "case": str(case), **given}}

    alerts = [[alert(text, case) for text in texts] for case, texts in enumerate(SUPPRESSED)]
    with open(tmp_path / "log", "wb") as log, ExitStack() as stack:
        listen = f"127.0.0.1:{stack.enter_context(empty_port())}"
        arguments = [
            f"--config.file={ALERTMANAGER}",
            f"--storage.path={tmp_path}",
            f"--web.listen-address={listen}",
            "--cluster.listen-address=",
        ]
        server = stack.enter_context(subprocess.Popen(["prometheus-alertmanager", *arguments], stdout=log, stderr=subprocess.STDOUT))
        stack.callback(server.terminate)
        api = stack.enter_context(httpx.Client(base_url=f"http://{listen}/api/v2", timeout=30, trust_env=False))

        def sent() -> bool:
            with suppress(httpx.TransportError):
                return api.post("/alerts", json=[one for each in alerts for one in each]).status_code == 200
            return False

        until(sent, what="the alertmanager")

        def states() -> dict[str, list[str]]:
            return {json.dumps(one["labels"], sort_keys=True): one["status"]["inhibitedBy"] for one in api.get("/alerts").json()}

        until(lambda: len(states()) == 3 * len(SUPPRESSED), what="the alerts")

        def left_out() -> list[list[bool]]:
            found = states()
            return [[bool(found[json.dumps(one["labels"], sort_keys=True)]) for one in each] for each in alerts]

        wanted = [[False, True, False]] * len(SUPPRESSED)
        with suppress(AssertionError):
            until(lambda: left_out() == wanted)  # what leaves others out hears of an alert after it is listed
        assert left_out() == wanted, list(zip(SUPPRESSED, left_out(), strict=True))


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A Prometheus with our rules that has scraped a gateway while it served; its HTTP API. The gateway has two workers, TLS, Redis, a
    sink, limits, a guardrail, a sidecar and an engine behind a name, so that nearly every query has something to show."""
    folder = tmp_path_factory.mktemp("monitoring")
    with ExitStack() as stack:
        engine = subprocess.Popen([sys.executable, "-m", "tests.fakes.engine", "--port", "0"], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert engine.stdout is not None
        stack.enter_context(engine)
        stack.callback(engine.terminate)
        names = stack.enter_context(NameServer())
        names.put("engine.test", "A", ["127.0.0.1"])
        redis = RedisServer(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gatehouse-")))).start()
        stack.callback(redis.stop)
        siem = HttpReceiver()
        stack.callback(siem.close)
        authority = Authority(folder / "ca")
        port = int(engine.stdout.readline().split()[1].rpartition(":")[2])
        config = whole(folder / "state", port, names.address, redis.socket, siem.url, authority)
        gatehouse = stack.enter_context(Gatehouse(folder, config, arguments=["--workers", "2"]))
        prometheus = folder / "prometheus.yml"
        target = gatehouse.admin_url.removeprefix("http://")
        prometheus.write_text(
            "global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 300ms}\n"  # a slow machine takes its time to answer
            f"rule_files: [{PROMETHEUS}/recording.yaml, {PROMETHEUS}/alerts.yaml]\n"
            f"scrape_configs: [{{job_name: gatehouse, static_configs: [{{targets: ['{target}']}}]}}]\n"
        )
        listen = f"127.0.0.1:{stack.enter_context(empty_port())}"
        arguments = [f"--config.file={prometheus}", f"--storage.tsdb.path={folder}/data", f"--web.listen-address={listen}"]
        with open(folder / "prometheus.log", "wb") as log:
            server = stack.enter_context(subprocess.Popen(["prometheus", *arguments], stdout=log, stderr=subprocess.STDOUT))
        stack.callback(server.terminate)
        api = stack.enter_context(httpx.Client(base_url=f"http://{listen}/api/v1", timeout=30))
        until(lambda: value(api, "up"), what="the first scrape")
        serve(gatehouse, authority)
        with admin(gatehouse) as operator:
            assert operator.post("/models/own/reload").status_code == 200
        until(lambda: value(api, 'gatehouse_requests_total{outcome="ok"} offset 1s'), what="the requests")
        # A counter that was first scraped with its last value has not grown: there is more traffic until one has.
        until(lambda: value(api, "job:gatehouse_requests_bad:ratio_rate5m") or serve(gatehouse, authority), what="the recorded ratio")
        yield api


def whole(state: Path, port: int, names: str, redis: str, siem: str, authority: Authority) -> dict[str, Any]:
    """The gateway's configuration: the engine at a port, behind the name `engine.test` of a name server."""
    served = authority.server()
    following = {"servers": [names], "networks": ["127.0.0.0/8"]}
    vllm = {"name": "vllm", "runtime": "external", "url": f"http://engine.test:{port}", "dns": following}
    sidecar = {"name": "own", "runtime": "llama.cpp", "model": DEMO_MODEL, "slots": 2, "context": 256, "scale": {"max": 1}}
    made = configuration(
        state,
        listen={"tls": {"cert": served.cert, "key": served.key}},
        engines=[vllm, sidecar],
        models=[
            {"name": "chat", "pool": ["vllm"], "cache": {"also_in": "disk", "temperature": "any"}},
            {"name": "own", "pool": ["own"]},
            {"name": "trying", "pool": ["vllm", "own"], "canary": {"engine": "own"}},
        ],
        caches={"disk": {"max_bytes": "8MiB"}},
        files={"enabled": True},
        batches={"enabled": True},
        jobs={"enabled": True},
        responses={},
        alerts={"webhooks": [{"name": "mail", "url": siem, "secret": KEYS["admin"]}]},
        redis={"url": f"unix://{redis}"},
        limits=[
            {"name": "few", "match": {"key": "other"}, "requests": {"rate": 1, "per": "1h"}},
            {"name": "planned", "match": {"key": "test"}, "requests": {"rate": 1, "per": "1h"}, "enforce": False},
        ],
        guardrails=[{"name": "projects", "type": "denylist", "settings": {"phrases": ["project aurora"], "action": "block"}}],
        audit={"sinks": [{"type": "file"}, {"type": "http", "name": "siem", "settings": {"url": siem}}]},
        telemetry={"tenant_metrics": 4},
    )
    made["identity"]["api_keys"]["static"].append({"id": "op", "key": KEYS["admin"], "tenant": "acme", "models": [], "roles": ["admin"]})
    return made


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


def serve(gatehouse: Gatehouse, authority: Authority) -> None:
    """Requests that succeed, and one each that a login, a guardrail and a limit refuse."""
    with httpx.Client(base_url=gatehouse.url, verify=authority.context(), trust_env=False, timeout=90) as client:

        def asked(key: str, model: str = "chat", text: str = "Hello!", **fields: Any) -> int:
            body = {"model": model, "messages": [{"role": "user", "content": text}], **fields}
            return client.post("/v1/chat/completions", json=body, headers={"authorization": f"Bearer {key}"}).status_code

        assert [asked(KEY, stream=stream) for stream in (False, True) * 3] == [200] * 6
        assert asked(KEY, "own", max_tokens=4) == 200
        assert asked("gh_nobody") == 401
        assert asked(KEY, text="What of project aurora?") == 400
        assert {asked(OTHER_KEY) for _ in range(2)} <= {200, 429}


NOTHING_HERE = {
    "gatehouse-engines: Share of the traffic on a new process",  # of a reload that is soon over
    "gatehouse-machine: Copies started and stopped",  # no load that lasts
    "gatehouse-policy: Guardrails that failed",  # none does
    "gatehouse-policy: Archive: age of the oldest segment that waits",  # no bucket
    "gatehouse-machine: Time in the queue",  # nobody has to wait
    "gatehouse-policy: The master key and the archive answer",  # nothing is encrypted, no bucket
    "gatehouse-work: Attempts at jobs",  # none was made
    "gatehouse-work: Mirrored requests",  # the rest: no shadow, no pipeline, no machine, no store of models
    "gatehouse-work: Likeness of answers, mean",
    "gatehouse-work: Hedged requests",
    "gatehouse-work: Steps of pipelines",
    "gatehouse-work: Machines",
    "gatehouse-work: Engines of machines: slots in use",
    "gatehouse-work: The store of model files works",
}
"""What may show nothing in this gateway. That its metrics and labels exist, `test_every_query_asks_for_what_its_metrics_have` says."""


def test_every_panel_shows_something(scraped: httpx.Client) -> None:
    left = {f"{where}: {query}": concrete(query) for where, query in panels() if where not in NOTHING_HERE}
    assert len(left) >= 80

    def shown() -> bool:
        for where, query in list(left.items()):
            if value(scraped, query):
                del left[where]
        return not left

    with suppress(AssertionError):
        until(shown, what="every panel")
    assert left == {}


def test_rules_are_evaluated_and_a_healthy_gateway_raises_no_alert(scraped: httpx.Client) -> None:
    groups = scraped.get("/rules").json()["data"]["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) == len(ALERTS) + len(RULES)
    assert [rule["name"] for rule in rules if rule["health"] == "err"] == []
    assert [rule["name"] for rule in rules if rule.get("state") == "firing"] == []


def test_what_is_scraped_is_well_formed(scraped: httpx.Client) -> None:
    target = scraped.get("/targets").json()["data"]["activeTargets"][0]
    metrics = httpx.get(target["scrapeUrl"], timeout=60).text
    done = subprocess.run(["promtool", "check", "metrics"], input=metrics, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
