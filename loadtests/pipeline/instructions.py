"""Counts the processor's instructions of one request in the compiled pipeline, by the function of ours that they were spent for.

A clock on a shared machine differs by half from run to run; this count differs by a percent. It runs loadtests/pipeline/bench.py under
valgrind's callgrind (Debian's package valgrind) and adds up what happens between a read and the last write, the audit writer's
thread included, in some rounds behind the first ones, so nothing is counted that is done once. An instruction is counted for the nearest
of our compiled functions in its chain of callers, so the cost of a look-up or an allocation stands where it was caused. Left out: the
sockets and the kernel. SHA-256 is counted too high, because callgrind knows no SHA instructions.

usage: python loadtests/pipeline/instructions.py [--rounds 8] [--warm 8] [--slots 1024] [--leased] [--config FILE] [--state DIRECTORY]
       [--top 40] [--build DIRECTORY]
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PARALLEL = 32
TIMEOUT = 6 * 3600
"""Seconds. A start with 100,000 objects takes hours under callgrind."""
ENTRIES = (
    "CPyDef_protocol___Connection___data_received",
    "CPyDef_job_thread___JobThread____heard",
    "CPyDef_writer___ChainWriter___write",
    "CPyDef_pipeline___stream___AnswerRelay___on_end",
    "CPyDef_router___PoolRoute___pump",
)
"""Where a request's work begins: a read from the client, the audit writer's answer, its thread, the end of the engine's answer, a free slot
in the queue. mypyc puts as much of a module's path before a name as makes it unique, so a second module of the same name changes these."""
RUN = """
import runpy, sys
from gateway.app.compiled import activate
if (why := activate()) is not None:
    sys.exit(f"the compiled hot path cannot be used: {why}")
sys.argv = ["bench", "--callgrind", "--rounds", sys.argv[1], "--warm", sys.argv[2], "--slots", sys.argv[3], *sys.argv[4:]]
runpy.run_path("loadtests/pipeline/bench.py", run_name="__main__")
"""
NAME = re.compile(r"\((\d+)\)(?: (.*))?")


def record(rounds: int, warm: int, slots: int, build: str | None, further: list[str], out: Path) -> None:
    """Runs the benchmark under callgrind, which writes its counts to `out`."""
    environment = dict(os.environ, PYTHONPATH=str(ROOT)) | ({"GATEHOUSE_COMPILED": build} if build else {})
    command = ["valgrind", "--tool=callgrind", "--quiet", "--separate-callers=12", "--instr-atstart=no", "--collect-atstart=no"]
    command += [f"--callgrind-out-file={out}", *(f"--toggle-collect={entry}" for entry in ENTRIES)]
    command += [sys.executable, "-c", RUN, str(rounds), str(warm), str(slots), *further]
    if subprocess.run(command, cwd=ROOT, env=environment, check=False, stdout=subprocess.DEVNULL, timeout=TIMEOUT).returncode:
        sys.exit(1)  # it has said why


def read(out: Path) -> tuple[Counter[str], dict[str, Counter[str]]]:
    """Instructions by owner, and for each owner by the function that spent them. The format is callgrind's profile data format."""
    names: dict[str, str] = {}
    own: Counter[str] = Counter()
    current, called = "", False
    with out.open() as lines:
        for line in lines:
            if line.startswith(("fn=", "cfn=")):
                match = NAME.match(line.rstrip().partition("=")[2])
                assert match is not None
                if match[2]:
                    names[match[1]] = match[2]
                if line.startswith("fn="):
                    current = match[1]
            elif line.startswith("calls="):
                called = True  # the next line is the cost of the callee
            elif line[:1] in "0123456789+-*" and line.strip():
                if not called:
                    own[current] += int(line.split()[1])
                called = False
    owners: Counter[str] = Counter()
    spent: dict[str, Counter[str]] = defaultdict(Counter)
    for number, count in own.items():
        chain = names[number].split("'")
        owner = next((name for name in chain if name.startswith(("CPyDef_", "CPyPy_"))), "elsewhere")
        owner = re.sub(r"^CPy(Def|Py)_", "", owner).replace("___", ".")
        owners[owner] += count
        spent[owner][chain[0].rpartition("/")[2]] += count
    return owners, spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--warm", type=int, default=8, help="rounds before those that are counted")
    parser.add_argument("--slots", type=int, default=1024, help="fewer than 32: the others wait in the queue")
    parser.add_argument("--leased", action="store_true", help="limits as in one of several workers")
    parser.add_argument("--config", help="as for loadtests/pipeline/bench.py")
    parser.add_argument("--state", help="as for loadtests/pipeline/bench.py")
    parser.add_argument("--top", type=int, default=40)
    parser.add_argument("--build", help="a directory that scripts/compile.py made; by default the environment's own build")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "callgrind.out"
        further = ["--leased"] if arguments.leased else []
        if arguments.config:
            further += ["--config", str(Path(arguments.config).resolve())]
        if arguments.state:
            further += ["--state", arguments.state]
        record(arguments.rounds, arguments.warm, arguments.slots, arguments.build, further, out)
        owners, spent = read(out)
    requests = arguments.rounds * PARALLEL
    print(f"instructions a request: {sum(owners.values()) / requests:,.0f}")
    for owner, count in owners.most_common(arguments.top):
        detail = ", ".join(f"{name[:32]} {part / requests:.0f}" for name, part in spent[owner].most_common(4))
        print(f"{count / requests:9,.0f}  {owner:<52} {detail}")


if __name__ == "__main__":
    main()
