"""The shell's promises, asked of a real process over its real socket."""

import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest

from engines.sidecar.http import Request, Response, Router
from engines.sidecar.loading import LoadError, verify_sha256
from engines.sidecar.shell import read_spec
from tests.unit.engines.test_confinement import landlock
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[4]
DEADLINE = 150.0


class Process:
    """A started sidecar: `client` talks to its socket, `process.stdin` is the lifeline."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.socket = directory / "s.sock"
        spec = {"name": "fake", "runtime": "onnx", "model": "m", "socket": str(self.socket), "state_dir": str(directory), **settings}
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("fake_sidecar.py"))], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(spec).encode() + b"\n")
        self.process.stdin.flush()
        self.client = httpx.Client(transport=httpx.HTTPTransport(uds=str(self.socket)), base_url="http://sidecar", timeout=DEADLINE)

    def health(self) -> dict[str, Any]:
        with socket.socket(socket.AF_UNIX) as probe:  # httpx leaks its socket when nobody listens
            if probe.connect_ex(str(self.socket)) != 0:
                return {"state": "unreachable"}
        return dict(self.client.get("/health").json())

    def in_state(self, *states: str) -> dict[str, Any]:
        def reached() -> dict[str, Any] | None:
            report = self.health()
            return report if report["state"] in states else None

        return dict(until(reached))

    def ended(self) -> int:
        return self.process.wait(DEADLINE)

    def errors(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.read().decode()

    def close(self) -> None:
        self.client.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(DEADLINE)
        for pipe in (self.process.stdin, self.process.stderr):
            if pipe is not None:
                pipe.close()


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="gh") as path:  # short: socket paths are limited
        yield Path(path)


@pytest.fixture
def start(directory: Path) -> Iterator[Callable[..., Process]]:
    started: list[Process] = []

    def make(**settings: Any) -> Process:
        started.append(Process(directory, **settings))
        return started[-1]

    yield make
    for process in started:
        process.close()


@pytest.fixture(scope="module")
def ready() -> Iterator[Process]:
    with tempfile.TemporaryDirectory(prefix="gh") as path:
        process = Process(Path(path), options={"max_body_bytes": 1000})
        process.in_state("ready")
        yield process
        process.close()


def test_health_answers_while_the_model_loads_and_requests_wait_for_ready(start: Callable[..., Process], directory: Path) -> None:
    gate = directory / "gate"
    sidecar = start(options={"load_when_exists": str(gate)}, device="cpu", wanted="cuda:0", slots=5)
    report = sidecar.in_state("loading")
    assert report["device"] == "cpu" and report["wanted"] == "cuda:0" and report["slots"] == 5 and report["in_use"] == 0
    assert report["resident_bytes"] > 1 << 20
    answer = sidecar.client.post("/v1/echo", content=b"x")
    assert answer.status_code == 503 and answer.json()["error"]["code"] == "model_loading" and "retry-after" in answer.headers
    gate.touch()
    assert sidecar.in_state("ready")["in_use"] == 3
    assert sidecar.client.post("/v1/echo", content=b"x").content == b"x"


def test_the_socket_is_private(ready: Process) -> None:
    assert stat.S_IMODE(ready.socket.stat().st_mode) == 0o600


def test_handlers_see_the_gateways_headers(ready: Process) -> None:
    for value, rank in {"interactive": "0", "standard": "1", "batch": "2", "nonsense": "1"}.items():
        answer = ready.client.post("/v1/echo", content=b"x", headers={"x-gatehouse-priority": value})
        assert answer.headers["x-priority"] == rank
    assert ready.client.post("/v1/echo", headers={"x-gatehouse-deadline-ms": "soon"}).json()["error"]["param"] == "x-gatehouse-deadline-ms"
    assert ready.client.post("/v1/echo", content=b"x", headers={"x-gatehouse-deadline-ms": "9" * 400}).content == b"x"


def test_words_of_an_error_are_bounded(ready: Process) -> None:
    error = ready.client.post("/v1/" + "x" * 5000).json()["error"]
    assert error["code"] == "not_found" and len(error["message"]) == 2000


def test_placeholders_of_a_path(ready: Process) -> None:
    assert ready.client.post("/v2/models/some-model/infer").text == "some-model"


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/v1/refuse", 400, "invalid_value"),
        ("/v1/broken", 500, "internal_error"),
        ("/nowhere", 404, "not_found"),
        ("/v1/classify", 400, "unsupported_operation"),
        ("/v2/models/a/versions/1/infer", 400, "unsupported_operation"),
    ],
)
def test_errors_have_the_contracts_body(ready: Process, path: str, status: int, code: str) -> None:
    answer = ready.client.post(path, headers={"x-request-id": "r-1"})
    error = answer.json()["error"]
    assert answer.status_code == status and error["code"] == code and set(error) == {"message", "type", "param", "code"}
    assert "secret detail" not in answer.text


def test_a_body_over_the_bound_is_refused_declared_or_not(ready: Process) -> None:
    assert ready.client.post("/v1/echo", content=b"x" * 1001).status_code == 413
    assert ready.client.post("/v1/echo", content=iter([b"x" * 600, b"x" * 600])).status_code == 413
    assert ready.client.post("/v1/echo", content=iter([b"x" * 500, b"x" * 500])).content == b"x" * 1000


def test_the_deadline_ends_a_request_with_504(ready: Process) -> None:
    answer = ready.client.post("/v1/wait", headers={"x-gatehouse-deadline-ms": "30"})
    assert answer.status_code == 504 and answer.json()["error"]["code"] == "engine_timeout"


def begun(process: Process, count: bytes) -> httpx.Response:
    """The answer to a stream that began before its deadline ended it: where the machine stands still, it ends before."""

    def asked() -> httpx.Response | None:
        answer = process.client.post("/v1/stream", content=count, headers={"x-gatehouse-deadline-ms": "1000"})
        return answer if answer.status_code == 200 else None

    answer = until(asked, what="a stream")
    assert isinstance(answer, httpx.Response)
    return answer


def test_the_deadline_ends_a_stream_with_an_error_event(ready: Process) -> None:
    answer = begun(ready, b"2")
    events = answer.text.split("\n\n")
    assert events[:2] == ["data: 0", "data: 1"]
    assert json.loads(events[2].removeprefix("data: "))["error"]["code"] == "engine_timeout" and events[3] == "data: [DONE]"


@contextmanager
def asked(process: Process, path: str) -> Iterator[None]:
    """A connection on which a request has been sent; nobody reads the answer."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(process.socket))
        sock.sendall(f"POST {path} HTTP/1.1\r\nhost: s\r\ncontent-length: 0\r\n\r\n".encode())
        yield


def test_a_client_that_leaves_cancels_its_request(ready: Process) -> None:
    before = ready.health()["cancelled"]
    with asked(ready, "/v1/wait"):
        until(lambda: ready.health()["waiting"] == 1)
    until(lambda: ready.health()["cancelled"] > before)


def test_a_sidecar_reads_its_model_and_nothing_beside_it(start: Callable[..., Process], directory: Path) -> None:
    with tempfile.TemporaryDirectory() as elsewhere:
        model, secret = Path(elsewhere) / "m.gguf", Path(elsewhere) / "secret"
        model.write_text("weights")
        secret.write_text("key")
        sidecar = start(model=str(model))
        report = sidecar.in_state("ready")["confinement"]
        assert (report["no_new_privs"], report["landlock"], report["core_dumps"]) == (True, landlock(), False)
        assert sidecar.client.post("/v1/open", content=str(model)).text == "weights"
        assert sidecar.client.post("/v1/open", content=str(secret)).status_code == (403 if landlock() else 200)


def test_of_folders_beside_a_graph_it_reads_how_texts_are_pooled(start: Callable[..., Process], directory: Path) -> None:
    with tempfile.TemporaryDirectory() as elsewhere:
        beside = [Path(elsewhere) / name for name in ("1_Pooling/config.json", "1_Pooling/other.json", "2_Dense/config.json")]
        for file in beside:
            file.parent.mkdir(exist_ok=True)
            file.write_text("{}")
        model = Path(elsewhere) / "m.onnx"
        model.write_text("weights")
        sidecar = start(model=str(model))
        sidecar.in_state("ready")
        found = [sidecar.client.post("/v1/open", content=str(file)).status_code for file in beside]
        assert found == ([200, 403, 403] if landlock() else [200, 200, 200])


def test_only_a_traced_request_that_knows_its_phases_tells_them() -> None:
    def told(traceparent: bytes | None, timed: bool = True) -> list[str]:
        request = Request("POST", "/v1/echo", {} if traceparent is None else {b"traceparent": traceparent})
        request.timed = (lambda: [("queue", 1), ("run", 2)]) if timed else None
        return [value.decode() for name, value in request.phases() if name == b"x-gatehouse-phases"]

    trace = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-"
    [phases] = told(trace + b"01")
    assert re.fullmatch(r"received=\d+;queue=1;run=2", phases)
    assert told(trace + b"03")
    assert [told(None), told(trace + b"00"), told(trace + b"02"), told(trace), told(b""), told(trace + b"01", timed=False)] == [[]] * 6


def test_a_stream_that_is_silent_says_that_the_engine_works(start: Callable[..., Process]) -> None:
    sidecar = start(options={"working_interval": 0.02})
    sidecar.in_state("ready")
    with sidecar.client.stream("POST", "/v1/stream", content=b"0") as answer:
        lines = answer.iter_lines()
        assert [next(lines) for _ in range(4)] == [": working", "", ": working", ""], "before anything else came"
        assert (answer.status_code, answer.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        sidecar.client.post("/v1/release")
        rest = [line for line in lines if line not in (": working", "")]
    assert rest == ["data: [DONE]"]


def test_an_error_of_a_stream_that_said_so_is_an_event(start: Callable[..., Process]) -> None:
    sidecar = start(options={"working_interval": 0.02})
    sidecar.in_state("ready")
    answer = begun(sidecar, b"0")
    events = [line for line in answer.text.splitlines() if line.startswith("data: ")]
    assert '"code":"engine_timeout"' in events[0] and events[1:] == ["data: [DONE]"]


def test_a_stream_may_be_left_silent(start: Callable[..., Process]) -> None:
    sidecar = start(options={"working_interval": 0})
    sidecar.in_state("ready")
    answer = sidecar.client.post("/v1/stream", content=b"0", headers={"x-gatehouse-deadline-ms": "300"})
    assert answer.status_code == 504


def test_a_client_that_leaves_closes_its_stream(ready: Process) -> None:
    before = ready.health()["closed_streams"]
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(ready.socket)), base_url="http://s") as client:
        with client.stream("POST", "/v1/stream", content=b"1") as answer:
            chunks = answer.iter_raw()  # kept: httpx closes the connection with its iterator
            assert next(chunks) == b"data: 0\n\n"
            assert ready.health()["closed_streams"] == before
        until(lambda: ready.health()["closed_streams"] == before + 1)


def test_metrics_count_by_route_and_status(ready: Process) -> None:
    ready.client.post("/v2/models/a/infer")
    ready.client.post("/v2/models/b/infer")
    ready.client.get("/a/path/nobody/knows")
    text = ready.client.get("/metrics").text
    assert 'path="/v2/models/{model}/infer",status="200"' in text and "nobody" not in text and text.endswith("fake 1\n")


def test_the_end_of_the_lifeline_ends_the_process_even_with_a_stuck_loop(start: Callable[..., Process], directory: Path) -> None:
    stuck = directory / "stuck"
    sidecar = start(options={"stuck": str(stuck)})
    sidecar.in_state("ready")
    with asked(sidecar, "/v1/block"):
        until(stuck.exists)
        assert sidecar.process.stdin is not None
        sidecar.process.stdin.close()
        sidecar.ended()
    assert not sidecar.socket.exists()


def test_requests_under_way_are_finished_after_the_end_of_the_lifeline(start: Callable[..., Process], directory: Path) -> None:
    """Others may wait for them: the control process is dead, its workers are not."""
    gate = directory / "gate"
    sidecar = start(drain_timeout=3600.0)
    sidecar.in_state("ready")
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(sidecar.client.post, "/v1/gate", content=str(gate).encode())
        until(lambda: sidecar.health()["waiting"] == 1)
        assert "gatehouse_sidecar_active" in sidecar.client.get("/metrics").text
        assert sidecar.process.stdin is not None
        sidecar.process.stdin.close()
        sidecar.in_state("draining")
        assert sidecar.client.post("/v1/echo", content=b"x").status_code == 503
        gate.touch()
        assert answer.result(DEADLINE).json() == "through"
    assert sidecar.ended() == 0


def test_what_is_not_finished_in_time_ends_after_the_lifeline(start: Callable[..., Process]) -> None:
    sidecar = start(drain_timeout=0.1)
    sidecar.in_state("ready")
    with asked(sidecar, "/v1/wait"):
        until(lambda: sidecar.health()["waiting"] == 1)
        assert sidecar.process.stdin is not None
        sidecar.process.stdin.close()
        assert sidecar.ended() == 0


def inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None


def test_one_that_ends_late_leaves_the_socket_to_its_successor(start: Callable[..., Process]) -> None:
    late = start()
    late.in_state("ready")
    late.process.send_signal(signal.SIGSTOP)  # so it does not see that its supervisor has died
    os.waitid(os.P_PID, late.process.pid, os.WSTOPPED)  # all of its threads: the one that watches might be faster than the signal
    assert late.process.stdin is not None
    late.process.stdin.close()
    its = inode(late.socket)
    successor = start()
    until(lambda: inode(late.socket) not in (its, None))
    successor.in_state("ready")
    late.process.send_signal(signal.SIGCONT)
    late.ended()
    assert successor.socket.exists() and successor.health()["state"] == "ready"
    successor.process.terminate()
    successor.ended()
    assert not successor.socket.exists()


@pytest.mark.parametrize("how", ["signal", "request"])
def test_draining_finishes_what_runs_and_refuses_the_rest(start: Callable[..., Process], how: str) -> None:
    sidecar = start()
    sidecar.in_state("ready")
    with sidecar.client.stream("POST", "/v1/stream", content=b"1") as answer:
        chunks = answer.iter_raw()
        assert next(chunks) == b"data: 0\n\n"
        if how == "signal":
            sidecar.process.send_signal(signal.SIGTERM)
        else:
            assert sidecar.client.post("/control/drain").status_code == 202
        sidecar.in_state("draining")
        refused = sidecar.client.post("/v1/echo", content=b"x")
        assert refused.status_code == 503 and refused.json()["error"]["code"] == "overloaded"
        assert sidecar.process.poll() is None
    assert sidecar.ended() == 0  # the client left: nothing runs any more
    assert "closed" in sidecar.errors() and not sidecar.socket.exists()


def test_draining_waits_no_longer_than_the_drain_timeout(start: Callable[..., Process]) -> None:
    sidecar = start(drain_timeout=0.2)
    sidecar.in_state("ready")
    with sidecar.client.stream("POST", "/v1/stream", content=b"1") as answer:
        chunks = answer.iter_raw()
        next(chunks)
        sidecar.client.post("/control/drain")
        assert sidecar.ended() == 0


def test_ctrl_c_is_the_supervisors_business(start: Callable[..., Process]) -> None:
    sidecar = start()
    sidecar.in_state("ready")
    sidecar.process.send_signal(signal.SIGINT)
    assert sidecar.client.post("/v1/echo", content=b"still here").content == b"still here"


@pytest.mark.parametrize(("fail", "reason"), [("load_error", "the file is no model"), ("exception", "m: ZeroDivisionError: native")])
def test_a_failed_load_is_told_and_ends_with_code_1(start: Callable[..., Process], fail: str, reason: str) -> None:
    sidecar = start(options={"fail": fail})
    report = sidecar.in_state("failed")
    assert report["reason"] == reason
    assert sidecar.client.post("/v1/echo").json()["error"]["code"] == "engine_failed"
    sidecar.process.terminate()  # do not wait for the linger
    assert sidecar.ended() == 1
    assert f"engine fake: {reason}" in sidecar.errors()


def test_a_stop_during_a_long_load_is_not_waited_for(start: Callable[..., Process], directory: Path) -> None:
    sidecar = start(options={"load_when_exists": str(directory / "never")})
    sidecar.in_state("loading")
    sidecar.process.terminate()
    assert sidecar.ended() == 0
    assert not sidecar.socket.exists()


def test_a_socket_path_that_the_kernel_would_cut_is_refused(start: Callable[..., Process], directory: Path) -> None:
    sidecar = start(socket=str(directory / ("x" * 100)))
    assert sidecar.ended() == 1
    assert "longer than 99 bytes" in sidecar.errors()


def test_settings_that_do_not_parse_are_refused() -> None:
    for line in (b"", b"{}", b'{"name": 1}', b"not json"):
        with pytest.raises(ValueError, match="settings on standard input"):
            read_spec(line)


def test_a_checksum_is_verified(tmp_path: Path) -> None:
    file = tmp_path / "model"
    file.write_bytes(b"weights")
    right = sha256(b"weights").hexdigest()
    assert verify_sha256(file, right.upper()) == right == verify_sha256(file, None)
    with pytest.raises(LoadError, match="sha256 is") as caught:
        verify_sha256(file, "0" * 64)
    assert caught.value.code == "checksum_mismatch"


async def _handler(request: Request) -> Response:
    return Response(request.body)


def test_the_path_table() -> None:
    router = Router({("GET", "/v2"): _handler, ("POST", "/v2/models/{m}/versions/{v}/infer"): _handler})
    assert router.find("GET", "/v2") == (_handler, {}, "/v2")
    found = router.find("POST", "/v2/models/a/versions/1/infer")
    assert found is not None and found[1] == {"m": "a", "v": "1"}
    for method, path in [("POST", "/v2"), ("GET", "/v2/"), ("POST", "/v2/models/a/infer"), ("POST", "/v2/models/a/version/1/infer")]:
        assert router.find(method, path) is None
