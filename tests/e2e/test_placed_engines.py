"""Engines that a gateway places on joined machines: two real ones that start nothing by themselves, behind a gateway with workers."""

from __future__ import annotations

import contextlib
import hashlib
import socket
import ssl
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from gateway.core.joining import host_of
from gateway.core.placing import orders_host_of
from tests.cluster.machine import Ports
from tests.e2e.adminapi import admin
from tests.e2e.harness import DEMO_MODEL, ROOT, Gatehouse, errors_of
from tests.e2e.joining import JoinedMachine, gateway_config, stop_all, token
from tests.fakes.barred_way import BarredWay
from tests.waiting import until

MIB = 1024 * 1024
PLACE = {"runtime": "llama.cpp", "model": DEMO_MODEL, "slots": 2, "context": 256}
ACCEPTS = {"memory_bytes": 512 * MIB, "disk_bytes": 512 * MIB}


@pytest.fixture(scope="module")
def gatehouse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gatehouse]:
    directory = tmp_path_factory.mktemp("gateway")
    config = gateway_config(directory / "state", lease="10s", place=PLACE)  # a machine of a test may stand still for some seconds
    large = {**PLACE, "context": 4 * MIB, "slots": 1024}
    config["engines"].append({**config["engines"][0], "name": "large", "joined": {**config["engines"][0]["joined"], "place": large}})
    config["models"].append({"name": "m2", "pool": ["large"]})
    config["machines"] |= {"reassign": "1s", "failing": "8s"}
    with Gatehouse(directory, config, arguments=["--workers", "2"]) as running:
        yield running


@pytest.fixture(scope="module")
def ways() -> Iterator[dict[str, tuple[BarredWay, list[str]]]]:
    """The ways to machines, and what their command lines say of them."""
    ports, made = Ports(), {}
    for name in ("gpu-1", "gpu-2"):
        listen, advertised = ports.take(), ports.take()
        arguments = ["--listen", f"127.0.0.1:{listen}", "--advertise", f"127.0.0.1:{advertised}"]
        made[name] = (BarredWay(advertised, listen), arguments)
    yield made
    for way, _ in made.values():
        way.close()
    ports.close()


@pytest.fixture(scope="module")
def machines(
    gatehouse: Gatehouse, ways: dict[str, tuple[BarredWay, list[str]]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, JoinedMachine]]:
    directory, text = tmp_path_factory.mktemp("machines"), token(gatehouse, engines=["*"])["token"]
    made = {name: JoinedMachine(directory, name, [], accepts=ACCEPTS) for name in ways}
    try:
        for name, machine in made.items():
            machine.start(gatehouse.admin_url, text, *ways[name][1])
        until(lambda: "ready" in where(gatehouse).values(), what="the engine at a machine")
        yield made
    finally:
        stop_all(made.values())


def engine(gatehouse: Gatehouse, name: str = "chat") -> dict[str, Any]:
    with admin(gatehouse) as api:
        found: dict[str, Any] = next(one for one in api.get("/engines").json()["items"] if one["name"] == name)
    return found


def where(gatehouse: Gatehouse) -> dict[str, str]:
    """Machines that have the engine, with its state there."""
    return {one["machine"]: one["state"] for one in engine(gatehouse)["machines"]}


def at(gatehouse: Gatehouse, machine: str) -> bool:
    """Whether the engine is ready at this machine alone, and requests are served there."""
    if where(gatehouse) != {machine: "ready"}:
        return False
    answer = gatehouse.chat(max_tokens=1)
    return answer.status_code == 200 and answer.headers["x-gatehouse-endpoint"] == f"chat@{machine}"


def test_an_engine_is_started_where_there_is_room_with_the_files_that_are_sent(
    gatehouse: Gatehouse, machines: dict[str, JoinedMachine]
) -> None:
    name = until(lambda: next((one for one in machines if at(gatehouse, one)), None), what="the engine at one machine")
    files = machines[name].directory / name / "received" / "files"
    sha256 = hashlib.sha256((ROOT / "engines/demo/artefacts" / DEMO_MODEL).read_bytes()).hexdigest()
    assert [file.name for file in files.iterdir()] == [sha256]
    with admin(gatehouse) as api:
        told = api.get(f"/machines/{name}").json()
        refused = api.delete(f"/model-files/{PLACE['model']}").json()
    assert told["engines"][0]["sha256"] == sha256, "the sidecar has verified it, too"
    assert refused["code"] in ("in_use", "read_only")
    until(lambda: "it fits on no machine" in str(engine(gatehouse, "large")["reason"]), what="the reason")
    answer = until(lambda: (found := gatehouse.chat(model="m2")).status_code == 507 and found, what="the refusal in each worker")
    assert errors_of(answer)["code"] == "insufficient_memory"
    placed = [record for record in gatehouse.audit() if record.get("event") == "engine_placed"]
    assert ("chat", name) in [(one["target"], one["detail"]["machine"]) for one in placed]


def test_an_engine_that_cannot_be_reached_for_long_is_started_elsewhere(
    gatehouse: Gatehouse, machines: dict[str, JoinedMachine], ways: dict[str, tuple[BarredWay, list[str]]]
) -> None:
    first = until(lambda: next((one for one in machines if at(gatehouse, one)), None), what="the engine at one machine")
    other = next(name for name in machines if name != first)
    ways[first][0].bar(host_of(first, "chat"))
    try:

        def told() -> bool:
            with admin(gatehouse) as api:
                return where(gatehouse).get(first) == "failing" and "chat: " in api.get(f"/machines/{first}").json()["reason"]

        until(told, what="that it fails at the first machine")
        until(lambda: at(gatehouse, other), what="the engine at the other machine alone")
    finally:
        ways[first][0].bar("")

    def events() -> list[tuple[str, str]]:
        """What became of the engine since it failed, and where. The log has it a moment later."""
        told = [one for one in gatehouse.audit() if one.get("target") == "chat" and "machine" in one.get("detail", {})]
        found = [(one["event"], one["detail"]["machine"]) for one in told]
        return found[found.index(("engine_failing", first)) :]

    until(lambda: len(events()) >= 3, what="the events")
    assert events()[1:] == [("engine_placed", other), ("engine_unplaced", first)]


def test_a_killed_machines_engine_is_started_elsewhere_and_stays_there(gatehouse: Gatehouse, machines: dict[str, JoinedMachine]) -> None:
    first = until(lambda: next((one for one in machines if at(gatehouse, one)), None), what="the engine at one machine")
    other = next(name for name in machines if name != first)
    machines[first].kill()
    until(lambda: where(gatehouse).get(other) == "ready" and gatehouse.chat(max_tokens=1).status_code == 200, what="the engine elsewhere")
    machines[first].start(gatehouse.admin_url)

    def back() -> bool:
        with admin(gatehouse) as api:
            return bool(api.get(f"/machines/{first}").json()["state"] == "there")

    until(back, what="the machine again")
    until(lambda: at(gatehouse, other), what="one machine alone with the engine")


def test_a_drained_machine_hands_its_engine_over_without_a_lost_request(gatehouse: Gatehouse, machines: dict[str, JoinedMachine]) -> None:
    first = until(lambda: next((one for one in machines if at(gatehouse, one)), None), what="the engine at one machine")
    other, over, codes = next(name for name in machines if name != first), threading.Event(), []

    def ask() -> None:
        while not over.is_set():
            codes.append(gatehouse.chat(max_tokens=8).status_code)

    askers = [threading.Thread(target=ask) for _ in range(2)]
    for asker in askers:
        asker.start()
    try:
        with admin(gatehouse, "operator") as api:
            assert api.post(f"/machines/{first}/drain").json()["drained"]
            until(lambda: at(gatehouse, other), what="the engine at the other machine")
            assert not api.post(f"/machines/{first}/resume").json()["drained"]
    finally:
        over.set()
        for asker in askers:
            asker.join()
    assert set(codes) == {200}


def ears(gatehouse: Gatehouse, machine: JoinedMachine) -> tuple[httpx.Client, str]:
    """What somebody who has taken over the gateway has: its certificate, and the machine's address."""
    own = gatehouse.state_dir / "machines"
    context = ssl.create_default_context(cafile=str(own / "machines.pem"))
    context.load_cert_chain(next(own.glob("gateway-*.pem")), next(own.glob("key-*.pem")))
    host, port = machine.address
    return httpx.Client(verify=context, trust_env=False, timeout=60), f"https://{host}:{port}"


def test_a_gateway_that_was_taken_over_gets_nothing_on_a_machine_but_models(
    gatehouse: Gatehouse, machines: dict[str, JoinedMachine]
) -> None:
    machine = machines["gpu-1"]
    client, url = ears(gatehouse, machine)
    named = {"sni_hostname": orders_host_of("gpu-1")}
    content = b"not a model"
    sha256 = hashlib.sha256(content).hexdigest()
    order = {
        "fence": 2**40, "revision": "0" * 32, "runtime": "llama.cpp", "model": "m.gguf", "device": "cpu",
        "files": [{"path": "m.gguf", "size": len(content), "sha256": sha256}],
    }  # fmt: skip

    def put(name: str, **fields: Any) -> tuple[int, str]:
        answer = client.put(f"{url}/v1/engines/{name}", json={**order, **fields}, extensions=named)
        return answer.status_code, answer.json()["error"]["code"] if answer.status_code >= 300 else ""

    assert put("evil", runtime="command", options={"command": ["/bin/sh"]}) == (403, "not_accepted")
    assert put("evil", options={"confine": False}) == (403, "not_accepted")
    assert put("evil", runtime="onnx", options={"provider": {"load_config": "/etc/passwd"}}) == (403, "not_accepted")
    assert put("evil", options={"batch": "many"}) == (403, "not_accepted")
    assert put("evil", device="cuda:0") == (403, "not_accepted")
    assert put("evil", model="other.gguf") == (403, "not_accepted")
    for path in ("../m.gguf", "/etc/passwd", "a/../../m.gguf", ".hidden", "a//b", "m.gguf\x00"):
        assert put("evil", model=path, files=[{**order["files"][0], "path": path}])[1] == "invalid_value", path
    assert put("evil", api_key="x")[1] == "invalid_value", "a field that orders do not have"
    assert put("evil") == (409, "missing_files")
    where_ = f"{url}/v1/files/{sha256}"
    wrong = client.put(f"{where_}?size={len(content)}&offset=0", content=b"another one", extensions=named).json()
    assert wrong == {"offset": len(content), "verified": False}
    until(lambda: client.get(f"{where_}?size={len(content)}", extensions=named).json()["offset"] == 0, what="its deletion")
    assert client.put(f"{where_}?size={2**43}&offset=0", content=b"x", extensions=named).status_code == 507
    assert client.put(f"{url}/v1/files/..%2f..%2fkey?size=1&offset=0", content=b"x", extensions=named).status_code == 404
    client.put(f"{where_}?size={len(content)}&offset=0", content=content, extensions=named)
    until(lambda: client.get(f"{where_}?size={len(content)}", extensions=named).json()["verified"], what="its verification")
    assert put("evil") == (202, "")
    with admin(gatehouse) as api:
        until(lambda: "model cannot be used" in str(machine.lines), what="that it is no model")
        assert "evil" not in str(api.get("/machines/gpu-1").json()["engines"])
    with contextlib.suppress(OSError):  # in TLS 1.3 a client hears of its refusal with its first read
        bare = ssl.create_default_context()
        bare.check_hostname, bare.verify_mode = False, ssl.CERT_NONE
        plain = socket.create_connection(machine.address, timeout=60)
        with plain, bare.wrap_socket(plain, server_hostname=orders_host_of("gpu-1")) as secure:
            secure.sendall(b"GET /v1/files/" + sha256.encode() + b"?size=1 HTTP/1.1\r\nhost: x\r\n\r\n")
            assert secure.recv(100) == b"", "without a gateway's certificate"
    ear = next((machine.directory / "gpu-1" / "run").glob("orders-*/s.sock"), None)
    if ear is not None:  # else the path is too long, and it is elsewhere
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as local:
            local.connect(str(ear))
            local.sendall(b"GET /v1/files/" + sha256.encode() + b"?size=1 HTTP/1.1\r\nhost: x\r\n\r\n")
            assert local.recv(100) == b"", "another process of the same user"
    client.close()
