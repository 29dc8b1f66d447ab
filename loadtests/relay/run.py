"""The relay benchmark: several gateways on the same work, one after the other in interleaved rounds.

    python -m loadtests.relay.run json                 closed loop against a static JSON engine: requests/s, CPU a request, latency, memory
    python -m loadtests.relay.run rate --rate 2000     open loop: latency from when each request was due
    python -m loadtests.relay.run stream               streams side by side: CPU per chunk, time to the first chunk, lost streams

The gateway under test has one core, the engine behind it and the load share another. Figures are medians over the rounds;
ratios are to the first target. Absolute figures drift with the machine: compare ratios of one run. `--paired` starts all targets
once and measures them by turns; its ratio is the median of the rounds' own ratios, for machines whose speed changes by the
minute. `--record` keeps a run under loadtests/baselines/, `--expect NAME=RATIO` makes the exit status say whether the ratio was reached.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import platform
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from loadtests.relay import load, processes, targets
from loadtests.relay.load import Figures
from loadtests.relay.targets import ROOT, Target

BASELINES = ROOT / "loadtests" / "baselines"
BODY = {
    "model": "m1",
    "messages": [
        {"role": "system", "content": "You are a helpful assistant of a bank. Answer briefly and name your sources."},
        {"role": "user", "content": "Which documents do I need to open a savings account for my daughter, who is nine?"},
    ],
    "max_tokens": 120,
    "temperature": 0.7,
}
MARKER = "chatcmpl-bench"  # only the engine behind a gateway writes this
ANSWER = {
    "id": MARKER,
    "object": "chat.completion",
    "created": 1700000000,
    "model": "m1",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "An identity card of a parent and the birth certificate; see page 4."},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ],
    "usage": {"prompt_tokens": 41, "completion_tokens": 15, "total_tokens": 56},
}
MODELS = {"object": "list", "data": [{"id": "m1", "object": "model", "created": 1, "owned_by": "bench"}]}
ENGINE = """
worker_processes 1; daemon off; pid {folder}/pid; error_log {folder}/error.log;
events {{ worker_connections 4096; }}
http {{
  access_log off; keepalive_requests 100000000; keepalive_timeout 600; default_type application/json;
  client_body_temp_path {folder}/a; proxy_temp_path {folder}/b;
  fastcgi_temp_path {folder}/c; uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location /v1/chat/completions {{ return 200 '{answer}'; }}
    location /v1/models {{ return 200 '{models}'; }}
    location / {{ return 200 '{{"status":"ok"}}'; }}
  }}
}}
"""


@dataclass(frozen=True, slots=True)
class Mode:
    """The figure that the ratios are about, whether more of it is better, what a bad answer is called, and the settings that count."""

    key: str
    more_is_better: bool
    bad: str
    settings: tuple[str, ...]


MODES = {
    "json": Mode("rps", True, "bad", ("seconds", "connections")),
    "rate": Mode("p99_us", False, "bad", ("seconds", "rate")),
    "stream": Mode("cpu_us_per_chunk", False, "lost", ("streams", "chunks", "interval")),
}


@dataclass(frozen=True, slots=True)
class Running:
    """A target that is up: where it listens, and its process."""

    port: int
    pid: int


class Bench:
    """One run: the engine, the key and the request are the same for all targets."""

    def __init__(self, options: argparse.Namespace, folder: Path, log: IO[bytes]) -> None:
        self.options, self.folder, self.log = options, folder, log
        self.key = "bench-" + secrets.token_hex(24)
        body = json.loads(Path(options.body).read_text()) if options.body else BODY
        if options.mode == "stream":
            body = {**body, "stream": True}
        self.body = json.dumps(body, separators=(",", ":")).encode()
        self.headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.key}"}
        self.gateway_core, self.load_core = options.cores
        self.peers = targets.install_peers(options.targets)

    @contextlib.contextmanager
    def engine(self) -> Iterator[str]:
        """Runs the engine on the load's core and gives its base URL."""
        port = processes.free_port()
        if self.options.mode == "stream":
            command = [sys.executable, str(targets.HERE / "engine_sse.py"), str(port), str(self.options.chunks), str(self.options.interval)]
        else:
            configuration = self.folder / "engine.conf"
            folder = self.folder / "engine"
            folder.mkdir()
            configuration.write_text(ENGINE.format(port=port, folder=folder, answer=json.dumps(ANSWER), models=json.dumps(MODELS)))
            command = ["nginx", "-c", str(configuration), "-e", str(folder / "error.log")]
        path = {"PATH": os.environ.get("PATH", "") + ":/usr/sbin"}
        with processes.running(command, self.load_core, self.log, path) as pid:
            self._wait(port, pid)
            yield f"http://127.0.0.1:{port}"

    def _wait(self, port: int, pid: int) -> None:
        processes.wait_until_answers(port, load.http_request(self.headers, self.body), MARKER.encode(), Path(self.log.name), pid=pid)

    @contextlib.contextmanager
    def started(self, target: Target, engine: str) -> Iterator[Running]:
        """Starts the target, waits until it relays and warms it up."""
        with tempfile.TemporaryDirectory(dir=self.folder) as state:
            port, extra = target.port or processes.free_port(), processes.free_port()
            places = targets.Places(port, extra, engine, self.key, Path(state), self.peers.get(target.peer or "", ""))
            command, env = targets.prepare(target, places)
            with processes.running(command, self.gateway_core, self.log, env) as pid:
                self._wait(port, pid)
                if self.options.mode == "stream":
                    load.side_by_side(port, self.headers, self.body, 4)
                else:
                    self._load(port, self.options.warmup)
                yield Running(port, pid)

    def measure(self, running: Running) -> Figures:
        """One measurement of a target that runs."""
        o = self.options
        before = processes.usage(running.pid).cpu
        if o.mode == "stream":
            figures = load.side_by_side(running.port, self.headers, self.body, o.streams, limit=o.chunks * o.interval * 5 + 30)
        else:
            figures = self._load(running.port, o.seconds)
        used = processes.usage(running.pid)
        if o.mode == "stream":
            figures["cpu_us_per_chunk"] = (used.cpu - before) * 1e6 / max(1.0, figures["chunks"])
        elif o.mode == "json":
            figures["cpu_us"] = (used.cpu - before) * 1e6 / max(1.0, figures.pop("requests"))
        figures["rss_mib"] = used.rss_mib
        return figures

    def _load(self, port: int, seconds: int) -> Figures:
        o = self.options
        if o.mode == "json":
            return load.closed_loop(port, self.headers, self.body, o.connections, seconds, self.load_core, self.folder)
        return load.open_loop(port, self.headers, self.body, o.rate, seconds)


def run_rounds(bench: Bench, mode: Mode) -> dict[str, list[Figures]]:
    """Every target's figures, round by round: each started afresh, or all started once and measured by turns, in both directions."""
    o = bench.options
    rounds: dict[str, list[Figures]] = {target.name: [] for target in o.targets}
    with bench.engine() as engine, contextlib.ExitStack() as stack:
        ready = {target.name: stack.enter_context(bench.started(target, engine)) for target in o.targets} if o.paired else {}
        for number in range(o.rounds):
            for target in o.targets if number % 2 == 0 or not o.paired else reversed(o.targets):
                if o.paired:
                    figures = bench.measure(ready[target.name])
                else:
                    with bench.started(target, engine) as running:
                        figures = bench.measure(running)
                rounds[target.name].append(figures)
                print(f"round {number + 1} {target.name}: {mode.key} {figures[mode.key]:,.1f}", file=sys.stderr)
    return rounds


def summarise(rounds: dict[str, list[Figures]], mode: Mode, paired: bool = False) -> dict[str, Figures]:
    """The median of every figure (of bad answers: their sum), and each target's ratio to the first; `paired`: the median of its ratios."""
    summary = {
        name: {key: sum(r[key] for r in figures) if key == mode.bad else statistics.median(r[key] for r in figures) for key in figures[0]}
        for name, figures in rounds.items()
    }
    reference, first = next(iter(summary.values()))[mode.key], next(iter(rounds.values()))
    for name, figures in summary.items():
        own = statistics.median(mine[mode.key] / its[mode.key] for mine, its in zip(rounds[name], first, strict=True))
        figures["ratio"] = own if paired else figures[mode.key] / reference
    return summary


def shortfalls(summary: dict[str, Figures], mode: Mode, expected: list[tuple[str, float]]) -> list[str]:
    """What was expected and not reached: a ratio, and no bad answer from any target that something is expected of."""
    found = []
    for name, ratio in expected:
        figures = summary[name]
        if figures[mode.bad]:
            found.append(f"{name}: {figures[mode.bad]:.0f} {mode.bad} answers")
        reached = figures["ratio"] >= ratio if mode.more_is_better else figures["ratio"] <= ratio
        if not reached:
            sign = ">=" if mode.more_is_better else "<="
            found.append(f"{name}: {mode.key} is {figures['ratio']:.2f} of the first target's, expected {sign} {ratio}")
    return found


def table(summary: dict[str, Figures]) -> str:
    columns = list(next(iter(summary.values())))
    lines = [f"{'':18s}" + "".join(f"{column:>18s}" for column in columns)]
    lines += [f"{name:18s}" + "".join(f"{figures[column]:18,.2f}" for column in columns) for name, figures in summary.items()]
    return "\n".join(lines)


def machine() -> dict[str, object]:
    model = next(
        (line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), ""
    )
    return {"cpu": model or platform.machine(), "cores": os.cpu_count(), "kernel": platform.release(), "python": platform.python_version()}


def commit() -> str:
    found = subprocess.run(["git", "-C", str(ROOT), "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    return found.stdout.strip()


def described(options: argparse.Namespace, rounds: dict[str, list[Figures]], summary: dict[str, Figures]) -> dict[str, object]:
    """The run: when, what, where, every round and the summary."""
    settings = {key: getattr(options, key) for key in ("mode", "paired", "rounds", *MODES[options.mode].settings)}
    run = {"when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "commit": commit(), "machine": machine(), "settings": settings}
    return {**run, "key": MODES[options.mode].key, "summary": summary, "rounds": rounds}


def record(name: str, run: dict[str, object]) -> Path:
    """Keeps the run as loadtests/baselines/NAME.json."""
    BASELINES.mkdir(exist_ok=True)
    path = BASELINES / f"{name}.json"
    path.write_text(json.dumps(run, indent=1) + "\n")
    return path


def expectation(text: str) -> tuple[str, float]:
    name, _, ratio = text.partition("=")
    return name, float(ratio)


def cores(text: str) -> tuple[int, int]:
    gateway, _, other = text.partition(",")
    return int(gateway), int(other)


def count(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number


def possible(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Ends the run for what would only show in the middle of it, or after it."""
    if strange := set(options.cores) - (usable := os.sched_getaffinity(0)):
        parser.error(f"--cores: this process may not use {sorted(strange)}; it may use {sorted(usable)}")
    unknown = {name for name, _ in options.expect} - {target.name for target in options.targets}
    if unknown:
        parser.error(f"--expect names no target: {', '.join(sorted(unknown))}")
    if options.report and importlib.util.find_spec("matplotlib") is None:
        parser.error("--report needs matplotlib (requirements/dev.txt)")
    if options.body:
        try:
            json.loads(Path(options.body).read_text())
        except (OSError, ValueError) as error:
            parser.error(f"--body: {error}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("--target", action="append", dest="targets", metavar="NAME[=COMMAND]", help="may be repeated; see targets.py")
    parser.add_argument("--rounds", type=count, default=3)
    parser.add_argument("--paired", action="store_true", help="start all targets once and measure them by turns")
    parser.add_argument("--seconds", type=count, default=5, help="of each measurement (json, rate)")
    parser.add_argument("--warmup", type=int, default=2, help="seconds before it")
    parser.add_argument("--connections", type=count, default=32, help="json")
    parser.add_argument("--rate", type=count, default=2000, help="requests a second (rate)")
    parser.add_argument("--streams", type=count, default=64, help="stream: how many at once")
    parser.add_argument("--chunks", type=count, default=400, help="stream: of each")
    parser.add_argument("--interval", type=float, default=0.01, help="stream: seconds between chunks")
    parser.add_argument("--body", help="a JSON file to send instead of the built-in chat; its model must be m1")
    parser.add_argument("--cores", type=cores, default=(0, 1), metavar="GATEWAY,LOAD")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    parser.add_argument("--record", metavar="NAME", help="keep the run as loadtests/baselines/NAME.json")
    parser.add_argument("--report", metavar="FOLDER", help="write a table (MODE.md) and a plot (MODE.png) there; needs matplotlib")
    parser.add_argument(
        "--installed",
        action="store_true",
        help="targets where no --target is given: gatehouse with and without every policy, and each peer that is installed",
    )
    parser.add_argument("--expect", action="append", type=expectation, default=[], metavar="NAME=RATIO")
    options = parser.parse_args()
    names = options.targets or ["vllm-router", "gatehouse"]
    if options.installed and not options.targets:
        if not (peers := targets.installed_peers()):
            print("no peer is installed, so there is nothing to compare with: loadtests/relay/peers.sh installs them", file=sys.stderr)
        names = [*peers, "gatehouse", "gatehouse-everything"]
    options.targets = [targets.parse(text) for text in names]
    possible(parser, options)
    return options


def main() -> int:
    options = arguments()
    mode = MODES[options.mode]
    processes.need("taskset", *({"json": ("nginx", "wrk"), "rate": ("nginx",), "stream": ()}[options.mode]))
    with tempfile.TemporaryDirectory(prefix="relay-") as folder, open(f"{folder}/log", "wb") as log:
        bench = Bench(options, Path(folder), log)
        os.sched_setaffinity(0, {bench.load_core})
        rounds = run_rounds(bench, mode)
    summary = summarise(rounds, mode, options.paired)
    print(json.dumps(summary) if options.json else table(summary))
    run = described(options, rounds, summary)
    if options.record:
        print(f"recorded {record(options.record, run)}", file=sys.stderr)
    if options.report:
        with tempfile.NamedTemporaryFile("w", suffix=".json") as kept:
            json.dump(run, kept)
            kept.flush()
            subprocess.run([sys.executable, "-m", "loadtests.relay.report", kept.name, options.report], cwd=ROOT, check=True)
    missed = shortfalls(summary, mode, options.expect)
    for line in missed:
        print(f"NOT REACHED: {line}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
