"""The relay benchmark measures what it says: its arithmetic, and its loads against servers whose answers are known."""

import asyncio
import contextlib
import json
import os
import re
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtests.relay import load, processes, report, run, targets
from tests.fakes.ports import empty_port

JSON = run.MODES["json"]
RATE = run.MODES["rate"]


class Handler(socketserver.StreamRequestHandler):
    answer = b""

    def handle(self) -> None:
        length = 0
        with contextlib.suppress(ConnectionError):
            while line := self.rfile.readline().lower():
                if line.startswith(b"content-length: "):
                    length = int(line.partition(b" ")[2])
                elif line == b"\r\n":
                    self.rfile.read(length)
                    self.wfile.write(self.answer)


@contextlib.contextmanager
def server(answer: bytes) -> Iterator[int]:
    """Answers every request on loopback with the same bytes, from threads of its own."""
    handler = type("Answering", (Handler,), {"answer": answer})
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as listener:
        thread = threading.Thread(target=listener.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield listener.server_address[1]
        finally:
            listener.shutdown()
            thread.join(10)


def whole(status: str, body: bytes) -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


@contextlib.contextmanager
def streaming_engine(tmp_path: Path, chunks: int) -> Iterator[int]:
    log = tmp_path / "log"
    with empty_port() as port, log.open("wb") as file:
        command = [sys.executable, str(targets.HERE / "engine_sse.py"), str(port), str(chunks), "0.001"]
        engine = subprocess.Popen(command, stdout=file, stderr=file)
        try:
            processes.wait_until_answers(port, load.http_request({}, b"{}"), run.MARKER.encode(), log, limit=60)
            yield port
        finally:
            engine.terminate()
            engine.wait(60)


def test_percentile_is_the_nearest_rank() -> None:
    values = [float(n) for n in range(1, 101)]
    assert [load.percentile(values, share) for share in (0.5, 0.99, 1.0)] == [51.0, 100.0, 100.0]
    assert load.percentile([], 0.5) != load.percentile([], 0.5)


def test_the_summary_takes_medians_sums_bad_answers_and_divides_by_the_first() -> None:
    rounds = {
        "a": [{"rps": 90.0, "bad": 0.0}, {"rps": 100.0, "bad": 1.0}, {"rps": 1000.0, "bad": 2.0}],
        "b": [{"rps": 150.0, "bad": 0.0}] * 3,
    }
    summary = run.summarise(rounds, JSON)
    assert summary == {"a": {"rps": 100.0, "bad": 3.0, "ratio": 1.0}, "b": {"rps": 150.0, "bad": 0.0, "ratio": 1.5}}
    assert "150.00" in run.table(summary)


def test_the_ratio_of_paired_rounds_is_the_median_of_their_own() -> None:
    """The machine grew ten times as fast after the first round: each round still compares what ran beside each other."""
    rounds = {"a": [{"rps": 10.0, "bad": 0.0}, {"rps": 100.0, "bad": 0.0}, {"rps": 100.0, "bad": 0.0}]}
    rounds["b"] = [{"rps": 20.0, "bad": 0.0}, {"rps": 30.0, "bad": 0.0}, {"rps": 150.0, "bad": 0.0}]
    assert run.summarise(rounds, JSON, paired=True)["b"]["ratio"] == 1.5
    assert run.summarise(rounds, JSON)["b"]["ratio"] == 0.3


def test_an_expectation_is_missed_by_a_ratio_on_the_wrong_side_or_a_bad_answer() -> None:
    summary = {"a": {"rps": 1.0, "p99_us": 1.0, "bad": 0.0, "ratio": 1.0}, "b": {"rps": 0.9, "p99_us": 0.9, "bad": 2.0, "ratio": 0.9}}
    assert run.shortfalls(summary, JSON, [("a", 1.0)]) == []
    assert run.shortfalls(summary, JSON, [("b", 1.0)]) == ["b: 2 bad answers", "b: rps is 0.90 of the first target's, expected >= 1.0"]
    assert run.shortfalls(summary, RATE, [("b", 1.0)]) == ["b: 2 bad answers"]
    assert run.shortfalls(summary, RATE, [("a", 0.5)]) == ["a: p99_us is 1.00 of the first target's, expected <= 0.5"]


def test_a_target_is_a_known_name_or_a_command(tmp_path: Path) -> None:
    places = targets.Places(port=1, extra=2, engine="http://127.0.0.1:3", key="k", folder=tmp_path, peer="/p")
    assert targets.prepare(targets.parse("mine=serve {port} {engine}"), places)[0] == ["sh", "-c", "exec serve 1 http://127.0.0.1:3"]
    assert targets.parse("mine=8080:serve").port == 8080
    command, env = targets.prepare(targets.parse("gatehouse-fsync"), places)
    assert command[0] == f"{targets.ROOT}/.venv/bin/gatehouse"
    assert env["GATEHOUSE__AUDIT__DURABILITY"] == "fsync" and env["BENCH_ENGINE"] == "http://127.0.0.1:3"
    command, env = targets.prepare(targets.parse("gatehouse-redis"), places)
    assert f"redis-server --port 0 --unixsocket {tmp_path}/redis.sock" in command[2]
    assert env["GATEHOUSE__REDIS__URL"] == f"unix://{tmp_path}/redis.sock"
    targets.prepare(targets.parse("nginx"), places)
    assert "server 127.0.0.1:3;" in (tmp_path / "nginx.conf").read_text()
    with pytest.raises(SystemExit, match="no such target: nothing"):
        targets.parse("nothing")


def test_a_body_survives_the_quoting_for_wrk() -> None:
    assert load.lua_string('{"a": "b\\n é"}') == '"{\\034a\\034: \\034b\\092n \\195\\169\\034}"'


def test_the_open_loop_sends_all_and_counts_whole_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "GRACE", 60.0)
    with server(whole("200 OK", b'{"x": 1}')) as port:
        figures = load.open_loop(port, {}, b"{}", rate=500, seconds=0.2)
    assert figures["bad"] == 0
    assert 0 < figures["p50_us"] <= figures["p99_us"] <= figures["p999_us"] < 60e6


@pytest.mark.parametrize("answer", [whole("503 Busy", b"{}"), b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"])
def test_the_open_loop_counts_everything_else_as_bad(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "GRACE", 0.2)
    with server(answer) as port:
        assert load.open_loop(port, {}, b"{}", rate=100, seconds=0.1)["bad"] == 10


def test_the_open_loop_counts_refused_connections_as_bad() -> None:
    with empty_port() as port:
        assert load.open_loop(port, {}, b"{}", rate=100, seconds=0.1)["bad"] == 10


async def test_the_open_loop_has_a_bound_of_connections_and_a_request_that_waits_for_one_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """One for each request that is due while a gateway stands still would be more than select() takes."""
    monkeypatch.setattr(load, "GRACE", 60.0)
    connections, answering = 0, asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while await reader.read(65536):
            await answering.wait()
            writer.write(whole("200 OK", b"{}"))
        writer.close()

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as listener:
        loop = load.OpenLoop(listener.sockets[0].getsockname()[1], load.http_request({}, b"{}"), rate=1000, seconds=0.05, most=4)
        running = asyncio.create_task(loop.run())
        while len(loop.late) < 46:
            await asyncio.sleep(0.001)
        answering.set()
        figures = await running
    assert (figures["bad"], len(loop.took), connections) == (0, 50, 4)


async def test_the_open_loop_sends_nothing_on_a_connection_that_was_closed_while_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "GRACE", 60.0)
    connections = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.readuntil(b"{}")
        writer.write(whole("200 OK", b"{}"))
        writer.close()

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as listener:
        loop = load.OpenLoop(listener.sockets[0].getsockname()[1], load.http_request({}, b"{}"), rate=1000, seconds=0.0, most=4)
        for number in range(1, 4):
            loop.late.append(time.monotonic())
            loop._send_late()
            while len(loop.took) < number or loop.open:
                await asyncio.sleep(0.001)
        await loop._end()
    assert (loop.bad, connections, loop.idle) == (0, 3, [])


def test_streams_are_counted_to_their_end(tmp_path: Path) -> None:
    with streaming_engine(tmp_path, chunks=20) as port:
        figures = load.side_by_side(port, {}, b"{}", count=8)
    assert figures["chunks"] == 8 * (20 + 2)  # and the one that says why it ended, and the usage
    assert figures["lost"] == 0
    assert 0 < figures["ttft_p50_ms"] <= figures["ttft_p99_ms"]


async def test_a_stream_without_its_end_is_lost() -> None:
    cut = b'HTTP/1.1 200 OK\r\nConnection: close\r\n\r\ndata: {"a": 1}\n\ndata: {"a": 2}\n\n'

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(cut)
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as listener:
        figures = await load.streams(listener.sockets[0].getsockname()[1], load.http_request({}, b""), 3, 60)
    assert (figures["chunks"], figures["lost"]) == (6, 3)


@pytest.mark.parametrize("size", [1, 2, 5, 7, 11])
async def test_an_event_counts_once_however_the_bytes_are_cut(size: int) -> None:
    stream = load.Stream(b"", asyncio.get_running_loop().create_future())
    stream.transport = Sink()
    text = b'data: {"a": 1}\n\ndata: {"a": 2}\n\ndata: [DONE]\n\n'
    for at in range(0, len(text), size):
        stream.data_received(text[at : at + size])
    assert stream.events == 2
    assert stream.ended.result() is True


class Sink(asyncio.Transport):
    def close(self) -> None:
        pass


def test_the_usage_of_a_process_counts_its_children(tmp_path: Path) -> None:
    burn = "import time\nend = time.process_time() + 0.2\nwhile time.process_time() < end: pass"
    code = f"import subprocess, sys\nchild = subprocess.Popen([sys.executable, '-c', {burn + chr(10) + 'input()'!r}])\nchild.wait()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as parent:
        try:
            end = time.monotonic() + 60
            while (seen := processes.usage(parent.pid)).cpu < 0.2:
                assert time.monotonic() < end, seen
            assert seen.rss_mib > 5
        finally:
            assert parent.stdin is not None
            parent.stdin.close()
            parent.wait(60)


def test_a_record_holds_the_settings_the_machine_and_every_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "BASELINES", tmp_path)
    monkeypatch.setattr(sys, "argv", ["run.py", "json", "--rounds", "2", "--target", "nginx"])
    rounds = {"nginx": [{"rps": 1.0, "bad": 0.0}, {"rps": 3.0, "bad": 0.0}]}
    kept = json.loads(run.record("x", run.described(run.arguments(), rounds, run.summarise(rounds, JSON))).read_text())
    assert kept["settings"] == {"mode": "json", "paired": False, "rounds": 2, "seconds": 5, "connections": 32}
    assert kept["summary"]["nginx"]["rps"] == 2.0 and kept["rounds"] == rounds
    assert kept["machine"]["cores"] >= 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--rounds", "0"], "argument --rounds: must be 1 or more"),
        (["--connections", "0"], "argument --connections: must be 1 or more"),
        (["--cores", "0,4095"], r"--cores: this process may not use \[4095\]"),
        (["--expect", "other=1.0"], "--expect names no target: other"),
        (["--body", "/nothing/here.json"], "--body: .*No such file"),
    ],
)
def test_what_cannot_work_is_said_before_anything_runs(
    words: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["run.py", "json", "--target", "nginx", *words])
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    with pytest.raises(SystemExit):
        run.arguments()
    assert re.search(said, capsys.readouterr().err)


def test_installed_targets_are_those_of_a_run_that_names_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr(sys, "argv", ["run.py", "json", "--installed"])
    assert [target.name for target in run.arguments().targets] == ["gatehouse", "gatehouse-everything"]
    assert "no peer is installed" in capsys.readouterr().err
    (tmp_path / "gatehouse/peers/vllm-router--1").mkdir(parents=True)
    (tmp_path / "gatehouse/peers/vllm-router--1/.complete").touch()
    assert [target.name for target in run.arguments().targets] == ["vllm-router", "gatehouse", "gatehouse-everything"]
    monkeypatch.setattr(sys, "argv", ["run.py", "json", "--installed", "--target", "nginx"])
    assert [target.name for target in run.arguments().targets] == ["nginx"]


def test_a_gateway_that_ends_before_it_serves_is_not_waited_for(tmp_path: Path) -> None:
    command = ["sh", "-c", "echo no such option >&2"]
    with (
        (tmp_path / "log").open("wb") as log,
        empty_port() as port,
        processes.running(command, 0, log) as pid,
        pytest.raises(SystemExit, match=r"ended before it relayed an answer(?s:.*)no such option"),
    ):
        processes.wait_until_answers(port, load.http_request({}, b"{}"), b"x", tmp_path / "log", limit=60, pid=pid)


def test_a_report_has_a_table_and_a_plot_of_every_target(tmp_path: Path) -> None:
    rounds = {name: [{"rps": rps, "bad": 0.0}, {"rps": rps + 20, "bad": 0.0}] for name, rps in (("peer", 100.0), ("gatehouse", 150.0))}
    machine = {"cpu": "a processor", "cores": 2, "kernel": "6", "python": "3.11"}
    about = {
        "when": "2026-01-01T00:00:00Z",
        "commit": "abc",
        "machine": machine,
        "settings": {"mode": "json", "rounds": 2, "connections": 16},
    }
    kept = {**about, "key": "rps", "summary": run.summarise(rounds, JSON), "rounds": rounds}
    table, picture = report.write(kept, tmp_path / "made")
    assert "| gatehouse | 160.00 | 0.00 | 1.45 |" in table.read_text()
    assert "requests/s, 16 connections" in table.read_text()
    assert picture.read_bytes().startswith(b"\x89PNG")
