"""The compose file and what it mounts: files that exist, services that are named, a configuration that loads, receivers that accept it."""

import re
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from gateway.app.configuration.plugins import OURS
from gateway.config.load import load
from gateway.core.specs import ConfigSpec
from tests.fakes.ports import empty_port
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = ROOT / "deploy/compose"
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((COMPOSE / "compose.yaml").read_text())["services"]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder after `prepare`, twice: it makes each secret once. The checkout was made under a strict umask."""
    site = tmp_path_factory.mktemp("site")
    folder = site / "compose"
    shutil.copytree(COMPOSE, folder, ignore=shutil.ignore_patterns("admin.*", "*-key", "*-password", "alertmanager"))
    for name in ("prometheus", "alertmanager", "grafana", "rsyslog"):
        shutil.copytree(ROOT / "deploy" / name, site / name)
    for path in site.rglob("*"):
        path.chmod(path.stat().st_mode & 0o700)
    subprocess.run([str(folder / "prepare")], check=True, capture_output=True, timeout=60, umask=0o077)
    made = {path.name: path.read_bytes() for path in (folder / "secrets").iterdir() if path.is_file()}
    subprocess.run([str(folder / "prepare")], check=True, capture_output=True, timeout=60)
    assert made == {path.name: path.read_bytes() for path in (folder / "secrets").iterdir() if path.is_file()}
    return folder


@pytest.fixture(scope="module")
def spec(prepared: Path) -> ConfigSpec:
    return load(prepared / "gatehouse.yaml", {}, OURS.schemas()).spec


def test_there_is_all_that_a_site_needs() -> None:
    wanted = {"gateway", "vllm", "postgres", "redis", "rsyslog", "prometheus", "alertmanager", "grafana"}
    assert wanted == set(SERVICES)
    for name, service in SERVICES.items():
        image = service["image"].rpartition("/")[2]
        assert re.search(r":v?\d+[.-]\d+", image), f"{name}: {image} is no exact release"
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), "nothing is published beyond this machine"


def test_what_is_mounted_is_there(prepared: Path) -> None:
    for name, service in SERVICES.items():
        for mount in service.get("volumes", ()):
            source = mount.split(":")[0]
            if source.startswith("."):
                assert (prepared / source).exists(), f"{name} mounts {source}"
                assert mount.endswith(":ro,z"), f"{name}: SELinux keeps containers from what is not labelled for them"
    built = SERVICES["gateway"]["build"]
    assert (COMPOSE / built["context"] / built["dockerfile"]).is_file()


def test_the_gateway_finds_its_neighbours_and_its_certificate(spec: ConfigSpec, prepared: Path) -> None:
    text = (COMPOSE / "gatehouse.yaml").read_text() + (ROOT / "deploy/prometheus/prometheus.yml").read_text()
    hosts = set(re.findall(r"://(?:[^\s\"]*@)?([a-z]+)(?=[:/\"])", text))
    assert {"postgres", "redis", "rsyslog", "vllm"} <= hosts <= set(SERVICES)
    assert spec.models and spec.listen.admin_tls is not None
    mounts = dict(mount.split(":")[1::-1] for mount in SERVICES["gateway"]["volumes"])
    for path in (spec.listen.admin_tls.cert, spec.listen.admin_tls.key):  # not relative: the container works in its state directory
        folder, _, name = path.rpartition("/")
        assert mounts[folder] == "./secrets" and (prepared / "secrets" / name).is_file()
    assert {"postgres", "redis"} <= set(SERVICES["gateway"]["depends_on"])


def test_postgresql_is_healthy_only_when_other_containers_reach_it() -> None:
    """While its image makes the database, a first server listens on a socket, where pg_isready asks if nothing else is said."""
    assert "-h" in SERVICES["postgres"]["healthcheck"]["test"]


def test_secrets_are_in_no_file_of_the_repository() -> None:
    text = (COMPOSE / "compose.yaml").read_text() + (COMPOSE / "gatehouse.yaml").read_text()
    for name, value in re.findall(r"(\w*(?:PASSWORD|KEY|SECRET|TOKEN)\w*): ([^,}\s]+)", text):
        assert name.endswith("_FILE") and value.startswith("/run/"), name
    assert (COMPOSE / "secrets/.gitignore").read_text() == "*\n!.gitignore\n"


def test_every_container_can_read_its_secrets_and_no_other_user_of_the_machine(prepared: Path) -> None:
    """Their users have other numbers than the one who prepared, under whatever umask."""
    assert prepared.stat().st_mode & 0o777 == 0o700
    for path in (prepared / "secrets", *(prepared / "secrets").rglob("*")):
        wanted = 0o755 if path.is_dir() else 0o644
        assert path.name == ".gitignore" or path.stat().st_mode & 0o777 == wanted, path


def test_every_container_can_read_what_it_mounts_of_the_repository(prepared: Path) -> None:
    """Also where it was checked out under a umask that gives other users nothing."""
    for name, service in SERVICES.items():
        for source in (mount.split(":")[0] for mount in service.get("volumes", ()) if mount.startswith(".")):
            for path in (prepared / source, *(prepared / source).rglob("*")):
                needed = 0o055 if path.is_dir() else 0o044
                assert path.name == ".gitignore" or path.stat().st_mode & needed == needed, f"{name}: {path}"


def test_only_the_gateway_gets_all_secrets() -> None:
    for name, service in SERVICES.items():
        sources = [mount.split(":")[0] for mount in service.get("volumes", ())]
        assert name == "gateway" or "./secrets" not in sources
        for variable, value in service.get("environment", {}).items():
            if variable.endswith("_FILE"):
                assert f"./secrets/{value.rpartition('/')[2]}:{value}:ro,z" in service["volumes"]


def test_prometheus_accepts_its_file() -> None:
    file = ROOT / "deploy/prometheus/prometheus.yml"
    done = subprocess.run(
        ["promtool", "check", "config", "--syntax-only", str(file)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_rsyslog_keeps_each_record_as_it_was_sent(tmp_path: Path) -> None:
    text = (ROOT / "deploy/rsyslog/gatehouse.conf").read_text()
    record = '{"seq":17,"text":"' + "x" * 60_000 + '"}'
    with empty_port() as port:
        (tmp_path / "rsyslog.conf").write_text(
            text.replace("/var/log/gatehouse", str(tmp_path)).replace('port="514"', f'port="{port}" address="127.0.0.1"')
        )
        server = subprocess.Popen(["/usr/sbin/rsyslogd", "-n", "-iNONE", "-f", str(tmp_path / "rsyslog.conf")], stderr=subprocess.DEVNULL)
        try:
            frame = f'<108>1 2027-01-31T00:00:00.000Z gw gatehouse 1 - [gatehouse@32473 writer="gw" seq="17"] {record}'.encode()

            def sent() -> bool:
                try:
                    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
                        connection.sendall(str(len(frame)).encode() + b" " + frame)
                    return True
                except ConnectionRefusedError:
                    return False

            until(sent, what="rsyslog")
            kept = tmp_path / "audit.jsonl"
            until(lambda: kept.exists() and kept.read_text() == record + "\n", what="the record")
        finally:
            server.terminate()
            server.wait(90)


def test_alertmanager_starts_with_the_secrets_that_prepare_makes(prepared: Path, tmp_path: Path) -> None:
    text = (
        (ROOT / "deploy/alertmanager/alertmanager.yml")
        .read_text()
        .replace("/etc/alertmanager-secrets", str(prepared / "secrets/alertmanager"))
    )
    (tmp_path / "alertmanager.yml").write_text(text)
    with empty_port() as port:
        address = f"127.0.0.1:{port}"
        arguments = [f"--config.file={tmp_path}/alertmanager.yml", f"--storage.path={tmp_path}/data", f"--web.listen-address={address}"]
        with open(tmp_path / "log", "wb") as log:
            server = subprocess.Popen(["prometheus-alertmanager", *arguments, "--cluster.listen-address="], stdout=log, stderr=log)
        try:

            def ready() -> bool:
                assert server.poll() is None, (tmp_path / "log").read_text()
                try:
                    return httpx.get(f"http://{address}/api/v2/status", timeout=10).status_code == 200
                except httpx.TransportError:
                    return False

            until(ready, what="Alertmanager")
        finally:
            server.terminate()
            server.wait(90)
