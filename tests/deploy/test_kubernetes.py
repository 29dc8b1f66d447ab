"""Kustomize and Helm, rendered by the real tools: every object is what its API's schema allows, runs without rights, and brings a
configuration that the gateway's own loader accepts."""

import json
import re
import subprocess
import sys
import threading
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import kubernetes_validate
import pytest
import yaml

from gateway.app.configuration.plugins import OURS
from gateway.app.replicas.replica import valid
from gateway.config.load import parse
from gateway.core.specs import ListenSpec
from tests.deploy.containerfile import stages
from tests.e2e.harness import Gatehouse
from tests.fakes.ports import empty_port
from tests.pki import Authority

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / "tests/deploy/tools/node_modules/.layer"
KUSTOMIZE = ROOT / "deploy/kustomize"
CHART = ROOT / "deploy/helm/gatehouse"
OVERLAYS = ("dev", "production", "gpu", "inference")
VALUES = {
    "default": "",
    "full": "autoscaling.enabled=true,ingress.enabled=true,ingress.host=a.example,serviceMonitor.enabled=true,"
    "gpu.enabled=true,gpu.modelsClaim=models",
    "small": "networkPolicy.enabled=false,disruptionBudget.enabled=false,replicas=1,"
    "adminTls.secretName=,config.listen.admin=127.0.0.1:8081,config.listen.admin_tls=null,"
    "config.store=null,config.redis=null,secrets.variables.GATEHOUSE_DATABASE_URL=null,secrets.variables.GATEHOUSE_REDIS_URL=null",
    "files": "config.listen.tls.cert=/etc/c/tls.crt,config.listen.tls.key=/etc/c/tls.key,config.listen.drain_timeout=1m30s,"
    "terminationGracePeriodSeconds=105,volumes[0].name=c,volumes[0].secret.secretName=c,volumeMounts[0].name=c,volumeMounts[0].mountPath=/etc/c",
    "mutual": "config.listen.tls.cert=/etc/c/tls.crt,config.listen.tls.key=/etc/c/tls.key,config.listen.tls.client_ca=/etc/c/ca.crt,"
    "config.listen.tls.require_client=true,config.listen.grpc=0.0.0.0:9000,config.model_sharing.listen=0.0.0.0:8086,config.watch=false,"
    "volumes[0].name=c,volumes[0].secret.secretName=c,volumeMounts[0].name=c,volumeMounts[0].mountPath=/etc/c",
    "ipv6": "config.listen.data=[::]:8080,config.listen.admin=[::]:8081",
}
VERSIONS = ("1.27", "1.31", "1.35")
"""From the oldest that Chart.yaml takes to the newest whose schemas there are."""
FOREIGN = {"ServiceMonitor", "PrometheusRule", "ScaledObject", "ExternalSecret", "Certificate"}
"""Kinds of other projects, whose schemas are not Kubernetes' own."""
SECRET = "example-secret-0123456789abcdef0123456789abcdef"

IMAGE = dict(
    pair.split("=", 1)
    for word, text in stages(ROOT / "deploy/containers/gateway.Containerfile")[-1].steps
    if word == "ENV"
    for pair in text.split()
)
"""Variables of the image, which those of the pod precede."""

Objects = list[dict[str, Any]]


def render(*command: str | Path) -> Objects:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return [item for item in yaml.safe_load_all(done.stdout) if item]


def helm(values: str, release: str = "g") -> Objects:
    return render(TOOLS / "helm/helm", "template", release, CHART, "--namespace", "n", *(["--set", values] if values else []))


@pytest.fixture(scope="module", params=[*(f"kustomize-{name}" for name in OVERLAYS), *(f"helm-{name}" for name in VALUES)])
def objects(request: pytest.FixtureRequest) -> Objects:
    kind, _, name = request.param.partition("-")
    return render(TOOLS / "kubectl/kubectl", "kustomize", KUSTOMIZE / "overlays" / name) if kind == "kustomize" else helm(VALUES[name])


def of(objects: Objects, kind: str) -> Objects:
    return [item for item in objects if item["kind"] == kind]


def pods(objects: Objects) -> Objects:
    return [item["spec"]["template"] for item in objects if item["kind"] in ("StatefulSet", "Deployment")]


def test_every_object_is_what_its_api_allows(objects: Objects) -> None:
    for item in objects:
        for version in VERSIONS:
            if item["kind"] not in FOREIGN:
                kubernetes_validate.validate(item, version, strict=True)
    assert [item for item in objects if item["kind"] == "Secret"] == [], "secrets are referenced, never written down"


def test_a_mistake_is_found(objects: Objects) -> None:
    wrong = {**pods(objects)[0], "apiVersion": "v1", "kind": "Pod"}
    wrong["spec"] = {**wrong["spec"], "terminationGracePeriod": 5}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[0], strict=True)


def test_containers_run_without_rights_and_within_bounds(objects: Objects) -> None:
    for pod in pods(objects):
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False
        for container in spec["containers"]:
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False and security["capabilities"]["drop"] == ["ALL"]
            assert "memory" in container["resources"]["limits"] and "cpu" in container["resources"]["requests"]
            assert {"startupProbe", "livenessProbe", "readinessProbe"} <= set(container)
            tag = container["image"].rpartition("/")[2].partition(":")[2]
            assert tag and tag != "latest"
            if container["name"] == "gatehouse":
                assert security["readOnlyRootFilesystem"] is True
                assert spec["securityContext"]["runAsNonRoot"] is True and spec["securityContext"]["runAsUser"] == 10001


def test_the_configuration_loads_with_the_variables_and_files_that_the_pod_has(objects: Objects) -> None:
    texts = [item["data"]["gatehouse.yaml"] for item in of(objects, "ConfigMap")]
    for text, pod in zip(texts, [p for p in pods(objects) if p["spec"]["containers"][0]["name"] == "gatehouse"], strict=True):
        container = pod["spec"]["containers"][0]
        given = {entry["name"]: entry.get("value", SECRET) for entry in container["env"]}
        variables = IMAGE | {name: value.replace("$(GATEHOUSE_REPLICA)", "g-0") for name, value in given.items()}
        variables |= {
            name: url
            for name, url in (("GATEHOUSE_DATABASE_URL", "postgresql://u@db/g"), ("GATEHOUSE_REDIS_URL", "redis://redis"))
            if name in variables
        }
        variables.pop("GATEHOUSE_PEPPER", None)
        used = set(re.findall(r"\$\{env:(\w+)\}", text))
        assert used <= set(variables), "the pod gives no such variable"
        spec = parse(text, file="gatehouse.yaml", environ=variables, schemas=OURS.schemas())
        mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
        assert (spec.listen.admin_tls is None) == spec.listen.admin.startswith("127.")
        assert spec.listen.admin_tls is None or "/etc/gatehouse/tls" in mounts
        assert spec.state_dir.startswith("/var/lib/gatehouse/")
        seconds = pod["spec"]["terminationGracePeriodSeconds"]
        assert seconds >= spec.listen.drain_delay + spec.listen.drain_timeout + 10
        assert spec.listen.tls is None or spec.listen.tls.cert.rpartition("/")[0] in mounts
        assert spec.listen.data == yaml.safe_load(text)["listen"]["data"], "a variable precedes the file"
        sharing = spec.model_sharing
        listeners = {
            "data": spec.listen.data,
            "admin": spec.listen.admin,
            "grpc": spec.listen.grpc,
            "models": sharing.listen,
        }
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert ports == {name: int(address.rpartition(":")[2]) for name, address in listeners.items() if address}
        if sharing.listen:
            assert sharing.address == "g-0.g-replicas.n.svc:8086", "the name of a pod alone is known to no other pod"
        reached = {port["port"] for policy in of(objects, "NetworkPolicy") for rule in policy["spec"]["ingress"] for port in rule["ports"]}
        assert reached in (set(), set(ports))
        offered = {port.get("targetPort", port["name"]) for item in of(objects, "Service") for port in item["spec"]["ports"]}
        assert set(ports) <= offered


@pytest.mark.parametrize("values", ["small", "mutual"])
def test_probes_are_answered_and_none_that_restarts_the_pod_asks_for_engines(values: str, tmp_path: Path) -> None:
    """As kubelet asks: it follows no authority and has no certificate. The engine of the configuration is away."""
    objects = helm(VALUES[values])
    (container,) = (pod["spec"]["containers"][0] for pod in pods(objects))
    config = yaml.safe_load(of(objects, "ConfigMap")[0]["data"]["gatehouse.yaml"])
    authority = Authority(tmp_path / "ca")
    served = authority.server()
    config["listen"] |= {"data": "127.0.0.1:0", "admin": "127.0.0.1:0", "drain_delay": 0}
    config["listen"].pop("grpc", None)
    for tls in filter(None, (config["listen"].get("tls"), config["listen"].get("admin_tls"))):
        tls |= {"cert": served.cert, "key": served.key}
    if "tls" in config["listen"]:
        config["listen"]["tls"]["client_ca"] = authority.cert
    config |= {"state_dir": str(tmp_path / "state"), "store": {}}
    for elsewhere in ("redis", "model_sharing"):
        config.pop(elsewhere, None)
    with ExitStack() as stack:
        config["engines"][0]["url"] = f"http://127.0.0.1:{stack.enter_context(empty_port())}"
        environ = {"GATEHOUSE_OPERATOR_KEY": SECRET, "GATEHOUSE_PEPPER": "ab" * 32}
        gatehouse = stack.enter_context(Gatehouse(tmp_path, config, environ))
        urls = {"data": gatehouse.url, "admin": gatehouse.admin_url}
        found = {}
        with httpx.Client(verify=False, trust_env=False, timeout=60) as kubelet:
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                asked = container[probe]["httpGet"]
                host = urls[asked["port"]].partition("://")[2]
                found[probe] = kubelet.get(f"{asked['scheme'].lower()}://{host}{asked['path']}").status_code
    assert found == {"startupProbe": 200, "livenessProbe": 200, "readinessProbe": 503}


def test_a_configuration_that_is_not_watched_restarts_the_pods_when_it_changes() -> None:
    def told(values: str) -> str | None:
        (pod,) = pods(helm(values))
        given: str | None = pod["metadata"].get("annotations", {}).get("checksum/config")
        return given

    assert told("") is None
    assert told("config.watch=false") not in (None, told("config.watch=false,config.listen.drain_delay=4s"))


def test_what_the_gateway_takes_gets_through_the_ingress(objects: Objects) -> None:
    limits = parse("version: 1\nidentity: {api_keys: {rely_on_store: true}}\n", file=None, environ={}, schemas=OURS.schemas()).listen
    for ingress in of(objects, "Ingress"):
        given = {name.rpartition("/")[2]: value for name, value in ingress["metadata"]["annotations"].items()}
        assert int(given["proxy-body-size"].removesuffix("m")) << 20 >= max(limits.max_body_bytes, limits.max_upload_bytes)
        assert min(int(given["proxy-read-timeout"]), int(given["proxy-send-timeout"])) > limits.request_timeout
        assert given["proxy-buffering"] == "off"


def test_engines_on_gpus_get_the_image_that_can_use_them(objects: Objects) -> None:
    for pod in pods(objects):
        for container in pod["spec"]["containers"]:
            if container["name"] == "gatehouse":
                name = container["image"].rpartition("/")[2].partition(":")[0]
                assert name == ("gatehouse-cuda" if "nvidia.com/gpu" in container["resources"]["limits"] else "gatehouse")


def test_the_models_of_gpu_engines_can_be_put_where_the_gateways_read_them() -> None:
    objects = render(TOOLS / "kubectl/kubectl", "kustomize", KUSTOMIZE / "overlays/gpu")
    filler = yaml.safe_load((KUSTOMIZE / "components/gpu/filler.yaml").read_text())
    for version in VERSIONS:
        kubernetes_validate.validate(filler, version, strict=True)
    (claim,) = of(objects, "PersistentVolumeClaim")
    (gateway,) = pods(objects)
    claims = [
        volume["persistentVolumeClaim"]
        for spec in (filler["spec"], gateway["spec"])
        for volume in spec["volumes"]
        if volume["name"] == "models"
    ]
    assert [(one["claimName"], one.get("readOnly", False)) for one in claims] == [("models", False), ("models", True)]
    assert claim["metadata"]["namespace"] == filler["metadata"]["namespace"] and claim["spec"]["accessModes"] == ["ReadWriteMany"]
    user = {"runAsUser", "runAsGroup", "fsGroup"}
    assert all(filler["spec"]["securityContext"][name] == gateway["spec"]["securityContext"][name] for name in user)


def test_policies_let_through_what_gateways_ask(objects: Objects) -> None:
    """Names, engines, PostgreSQL, Redis, traces, syslog over TLS, and what is asked over HTTPS."""
    for policy in of(objects, "NetworkPolicy"):
        if policy["metadata"]["name"] == "vllm":
            continue  # it says who reaches the engines: test_nobody_but_the_gateways_asks_the_engines
        found = {port["port"] for rule in policy["spec"]["egress"] for port in rule["ports"]}
        assert found - {"models"} == {53, 8000, 5432, 6379, 4318, 443, 6514}


def test_services_budgets_and_policies_select_the_pods(objects: Objects) -> None:
    labels = [pod["metadata"]["labels"] for pod in pods(objects)]
    for kind, find in (
        ("Service", lambda spec: spec["selector"]),
        ("PodDisruptionBudget", lambda spec: spec["selector"]["matchLabels"]),
        ("NetworkPolicy", lambda spec: spec["podSelector"]["matchLabels"]),
        ("StatefulSet", lambda spec: spec["selector"]["matchLabels"]),
        ("Deployment", lambda spec: spec["selector"]["matchLabels"]),
    ):
        for item in of(objects, kind):
            wanted = find(item["spec"])
            assert any(wanted.items() <= found.items() for found in labels), f"{kind} {item['metadata']['name']}"


def test_gateways_are_spread_over_nodes_and_zones(objects: Objects) -> None:
    for gateways in of(objects, "StatefulSet"):
        spread = gateways["spec"]["template"]["spec"]["topologySpreadConstraints"]
        assert [one["topologyKey"] for one in spread] == ["kubernetes.io/hostname", "topology.kubernetes.io/zone"]
        assert all(one["labelSelector"] == gateways["spec"]["selector"] for one in spread)


def test_what_scales_names_what_is_there(objects: Objects) -> None:
    for scaler in of(objects, "HorizontalPodAutoscaler"):
        target = scaler["spec"]["scaleTargetRef"]
        found = [item for item in of(objects, target["kind"]) if item["metadata"]["name"] == target["name"]]
        assert len(found) == 1 and "replicas" not in found[0]["spec"], "a number would fight with the autoscaler at each apply"
    for scaler in of(objects, "ScaledObject"):
        engines = render(TOOLS / "kubectl/kubectl", "kustomize", KUSTOMIZE / "overlays/inference")
        (target,) = [item for item in of(engines, "Deployment") if item["metadata"]["name"] == scaler["spec"]["scaleTargetRef"]["name"]]
        config = yaml.safe_load(of(objects, "ConfigMap")[0]["data"]["gatehouse.yaml"])
        pool = re.findall(r'pool="(\w+)"', scaler["spec"]["triggers"][0]["metadata"]["query"])
        (names,) = [model["pool"] for model in config["models"] if [model["name"]] == pool]
        (engine,) = [engine for engine in config["engines"] if [engine["name"]] == names]
        host, _, rest = engine["url"].removeprefix("http://").partition(".")
        (service,) = [item for item in of(engines, "Service") if item["metadata"]["name"] == host]
        assert rest == f"{service['metadata']['namespace']}.svc:{service['spec']['ports'][0]['port']}"
        assert "dns" in engine and service["spec"]["clusterIP"] == "None", "or what is started beside the first gets no requests"
        assert service["spec"]["selector"].items() <= target["spec"]["template"]["metadata"]["labels"].items()


def test_nobody_but_the_gateways_asks_the_engines() -> None:
    objects = render(TOOLS / "kubectl/kubectl", "kustomize", KUSTOMIZE / "overlays/inference")
    (policy,) = of(objects, "NetworkPolicy")
    (deployment,) = of(objects, "Deployment")
    assert policy["spec"]["podSelector"] == deployment["spec"]["selector"] and "Ingress" in policy["spec"]["policyTypes"]
    (named,) = policy["spec"]["ingress"][0]["from"][0]["namespaceSelector"]["matchExpressions"]
    gateways = [render(TOOLS / "kubectl/kubectl", "kustomize", KUSTOMIZE / "overlays" / name) for name in ("production", "dev")]
    assert set(named["values"]) == {of(found, "StatefulSet")[0]["metadata"]["namespace"] for found in gateways} | {"monitoring"}
    grace = deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace > ListenSpec().request_timeout + 10, "an answer may take as long as the gateway lets it"


def test_an_engine_is_told_to_stop_when_it_has_answered() -> None:
    """vLLM ends what it is answering at SIGTERM, which kubelet sends when this hook is over."""
    left = [(2, 1), (1, 0), (0, 1), (0, 0), (7, 7)]

    class Vllm(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            running, waiting = left.pop(0)
            self.send_response(200)
            self.end_headers()
            lines = ["# HELP vllm:num_requests_running Requests.", 'vllm:num_requests_waiting_by_reason{reason="capacity"} 0.0']
            lines += [f'vllm:num_requests_running{{engine="0"}} {running}.0', f'vllm:num_requests_waiting{{engine="0"}} {waiting}.0']
            self.wfile.write("\n".join(lines).encode())

        def log_message(self, format: str, *args: object) -> None: ...

    objects = render(TOOLS / "kubectl/kubectl", "kustomize", KUSTOMIZE / "overlays/inference")
    (container,) = of(objects, "Deployment")[0]["spec"]["template"]["spec"]["containers"]
    python, flag, code = container["lifecycle"]["preStop"]["exec"]["command"]
    assert (python, container["ports"][0]["containerPort"]) == ("python3", 8000)
    with ThreadingHTTPServer(("127.0.0.1", 0), Vllm) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        here = re.sub(r"sleep\(\d+\)", "sleep(0)", code).replace(":8000", f":{server.server_port}")
        done = subprocess.run([sys.executable, flag, here], env={}, capture_output=True, text=True, timeout=60, check=False)
        server.shutdown()
    assert (done.returncode, left) == (0, [(7, 7)]), done.stderr


def test_whoever_asks_the_admin_listener_finds_the_name_in_its_certificate() -> None:
    """Prometheus by the name that the monitor says, other pods by the Service's, and `kubectl port-forward` by localhost."""
    objects = render(TOOLS / "kubectl/kubectl", "kustomize", KUSTOMIZE / "overlays/production")
    (certificate,), (monitor,) = of(objects, "Certificate"), of(objects, "ServiceMonitor")
    (service,) = [item["metadata"] for item in of(objects, "Service") if item["metadata"]["name"].endswith("-admin")]
    names = certificate["spec"]["dnsNames"]
    asked = [monitor["spec"]["endpoints"][0]["tlsConfig"]["serverName"], f"{service['name']}.{service['namespace']}.svc", "localhost"]
    assert names == asked


def test_prometheus_finds_the_monitor_by_the_labels_that_it_selects() -> None:
    (monitor,) = of(
        helm("serviceMonitor.enabled=true,serviceMonitor.labels.release=prometheus,serviceMonitor.interval=30s"), "ServiceMonitor"
    )
    assert monitor["metadata"]["labels"].items() >= {"release": "prometheus", "app.kubernetes.io/name": "gatehouse"}.items()
    assert monitor["spec"]["endpoints"][0]["interval"] == "30s"


def test_the_chart_gives_pods_what_a_cluster_asks_of_them() -> None:
    objects = helm("serviceAccount.annotations.example\\.com/role=archive,priorityClassName=high,affinity.podAffinity.x=1")
    (account,), (gateways,) = of(objects, "ServiceAccount"), of(objects, "StatefulSet")
    assert account["metadata"]["annotations"] == {"example.com/role": "archive"}
    assert gateways["spec"]["template"]["spec"]["priorityClassName"] == "high"
    assert gateways["spec"]["template"]["spec"]["affinity"] == {"podAffinity": {"x": 1}}


@pytest.mark.parametrize("release", ["gatehouse", "a" * 53, "team-a.inference-gateway-of-production", "llm" + "-" * 29 + "a"])
def test_a_release_of_any_name_has_replicas_with_valid_ids(release: str) -> None:
    objects = helm("autoscaling.enabled=true,autoscaling.max=100", release)
    (name,) = (item["metadata"]["name"] for item in of(objects, "StatefulSet"))
    assert valid(f"{name}-0") and valid(f"{name}-99"), "GATEHOUSE_REPLICA is the pod's name"
    assert all(re.fullmatch(r"[a-z][a-z0-9-]{0,61}[a-z0-9]", item["metadata"]["name"]) for item in of(objects, "Service"))
    for item in objects:
        assert all(isinstance(value, str) for value in item["metadata"]["labels"].values())


def test_the_rules_in_the_cluster_are_those_of_prometheus(tmp_path: Path) -> None:
    held = yaml.safe_load((KUSTOMIZE / "components/monitoring/prometheusrule.yaml").read_text())["spec"]["groups"]
    files = [yaml.safe_load((ROOT / "deploy/prometheus" / name).read_text())["groups"] for name in ("recording.yaml", "alerts.yaml")]
    assert held == files[0] + files[1]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": held}))
    done = subprocess.run(["promtool", "check", "rules", tmp_path / "rules.yaml"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr  # in one file no two groups have one name


def test_each_installation_is_a_job_of_its_own(objects: Objects) -> None:
    """The rules add up the gateways of a job."""
    for monitor in of(objects, "ServiceMonitor"):
        namespace, (endpoint,) = monitor["metadata"].get("namespace", "n"), monitor["spec"]["endpoints"]
        made = {one["targetLabel"]: one for one in endpoint["relabelings"]}
        assert made["instance"] == {"sourceLabels": ["__meta_kubernetes_pod_name"], "targetLabel": "instance"}
        job = made["job"]["replacement"].replace("$1", namespace)
        assert ("$1" in made["job"]["replacement"]) == (made["job"].get("sourceLabels") == ["__meta_kubernetes_namespace"])
        assert job.startswith(f"gatehouse/{namespace}")
        for scaler in of(objects, "ScaledObject"):
            assert f'job="{job}"' in scaler["spec"]["triggers"][0]["metadata"]["query"]


def test_the_chart_is_clean_and_refuses_wrong_values() -> None:
    done = subprocess.run(
        [str(TOOLS / "helm/helm"), "lint", "--strict", str(CHART)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for wrong, said in (
        ("replicas=0", "replicas"),
        ("replica=3", "replica"),
        ("image.tag=latest", "tag"),
        ("ingress.enabled=true", "ingress.host is needed"),
        ("autoscaling.enabled=true,autoscaling.min=9,autoscaling.max=2", "greater than"),
        ("config.version=2", "version"),
        ("adminTls.secretName=", "adminTls.secretName is empty"),
        ("config.store=null", "2 replicas need a PostgreSQL"),
        ("config.store.url=sqlite,replicas=1,autoscaling.enabled=true", "12 replicas need a PostgreSQL"),
        ("config.listen.data=0.0.0.0:9000", "config.listen.data must be"),
        ("config.listen.data=null", "config.listen.data must be"),
        ("config.listen.admin=0.0.0.0:9001", "config.listen.admin must have the port 8081"),
        ("config.listen.admin_tls=null", "needs config.listen.admin_tls"),
        ("serviceMonitor.interval=5m", "/serviceMonitor/interval"),
        (
            "serviceMonitor.enabled=true,adminTls.secretName=,config.listen.admin=127.0.0.1:8081,config.listen.admin_tls=null",
            "serviceMonitor",
        ),
        ("config.listen.drain_timeout=1m30s", "need 105"),
        ("config.listen.grpc=127.0.0.1:9000", "config.listen.grpc must be"),
        ("config.model_sharing.listen=gw:8086", "config.model_sharing.listen must be"),
        ("config.listen.proxy_protocol=required,config.listen.admin_proxy_protocol=required", "must then need neither"),
        (
            "config.listen.tls.require_client=true,adminTls.secretName=,config.listen.admin=127.0.0.1:8081,config.listen.admin_tls=null",
            "set config.listen.admin to",
        ),
        ("serviceMonitor.enabled=true,config.listen.admin_tls.require_client=true", "Prometheus has no client certificate"),
        ("config.listen=null", "missing property 'listen'"),
        ("adminTls=null", "missing property 'adminTls'"),
        ("nodeSelector.gpu=true", "/nodeSelector/gpu"),
    ):
        command = [str(TOOLS / "helm/helm"), "template", "g", str(CHART), "--set", wrong]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode != 0 and said in done.stderr, wrong


def test_the_terraform_example_gives_the_chart_what_it_takes() -> None:
    text = (ROOT / "deploy/terraform/main.tf").read_text()
    values = re.search(r"values = \[yamlencode\(\{\n(.*?)\n  \}\)\]", text, re.DOTALL)
    secret = re.search(r"  data = \{\n(.*?)\n  \}", text, re.DOTALL)
    assert values and secret
    given = {"var.image": '{ repository = "registry.example/gatehouse", digest = "sha256:%s" }' % ("a" * 64), "var.host": '"a.example"'}
    given["var.ingress_networks"] = '["10.1.0.0/16"]'
    given["[for network in var.database_networks : { ipBlock = { cidr = network } }]"] = '[{ipBlock: {cidr: "10.0.0.0/8"}}]'
    given["[for port in var.database_ports : { port = port }]"] = "[{port: 5432}, {port: 6379}]"
    as_yaml = re.sub(r'(\w"?) += ', r"\1: ", re.sub("|".join(map(re.escape, given)), lambda found: given[found[0]], values[1]))
    command = [str(TOOLS / "helm/helm"), "template", "g", str(CHART), "--values", "-"]
    done = subprocess.run(command, input=as_yaml, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    objects = [item for item in yaml.safe_load_all(done.stdout) if item]
    assert {"StatefulSet", "HorizontalPodAutoscaler", "Ingress", "ServiceMonitor"} <= {item["kind"] for item in objects}
    listen = yaml.safe_load(of(objects, "ConfigMap")[0]["data"]["gatehouse.yaml"])["listen"]
    assert listen["trusted_peers"] == ["10.1.0.0/16"], "or every client would be the ingress controller"
    policy, usual = (of(found, "NetworkPolicy")[0]["spec"]["egress"] for found in (objects, helm("")))
    assert [rule["ports"] for rule in policy] == [rule["ports"] for rule in usual]
    assert [rule["to"] for rule in policy if "ipBlock" in rule.get("to", [{}])[0]] == [[{"ipBlock": {"cidr": "10.0.0.0/8"}}]]
    kept = set(re.findall(r"^    ([a-z-]+) +=", secret[1], re.MULTILINE))
    pod = json.dumps([item for item in objects if item["kind"] == "StatefulSet"])
    named = set(re.findall(r'"secret(?:Key)?(?:Name|Ref)": (?:\{"name": )?"([a-z-]+)"', pod))
    assert named == set(re.findall(r'kubernetes_secret_v1" "\w+" \{\n  metadata \{\n    name += "([a-z-]+)"', text))
    assert kept == {"pepper", "database-url", "redis-url", "operator-key"} and all(f'"key": "{key}"' in pod for key in kept)
