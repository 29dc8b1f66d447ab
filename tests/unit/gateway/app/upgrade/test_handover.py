"""What one program hands to the next: encoded whole, read once, its descriptors for nobody else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.host.handover import HeldEngines, HeldSidecar
from gateway.app.upgrade.handover import FORMAT, VARIABLE, HandOver, HeldWorker, Mark, decode, encode, take
from gateway.core.errors import ConfigError
from gateway.core.secret import Secret
from gateway.core.specs import EngineSpec, LimitSpec
from gateway.limits.lease_messages import AccountState, BookState, LeaseState, StockState

ROOT = Path(__file__).resolve().parents[5]


def whole() -> HandOver:
    engine = EngineSpec(name="e", runtime="llama.cpp", model="m", api_key=Secret("geheim"), headers={"a": "b"})
    limit = LimitSpec(name="l", concurrent=2)
    account = AccountState(limit, ("k",), [1, 2], [3, 4], [LeaseState("gw-1", 1, [2, 3], 4, 5, 6)], {1: StockState(1, 2, 3, 4, 5)}, 6, 7)
    return HandOver(
        version="1.2",
        data=5,
        admin=6,
        workers=[HeldWorker(id="gw-1", number=1, pid=10, feed=7, state="ready", unread=b"\0\0", asked=3, acknowledged=2)],
        change=2,
        engines=HeldEngines(sidecars=[HeldSidecar(spec=engine, pid=11, lifeline=8, socket="/s", state="ready")], generation=4),
        marks=[Mark("e", True, "open")],
        limits=BookState(1, 2, [account], {"gw-1": [(1, limit)]}),
        actor="me",
    )


def test_everything_survives_its_encoding_with_its_secrets() -> None:
    found = decode(encode(whole()))
    assert found == whole()
    key = found.engines.sidecars[0].spec.api_key
    assert key is not None and key.reveal() == "geheim"
    assert found.descriptors() == [5, 6, 7, 8]


@given(st.binary(max_size=200))
def test_what_cannot_be_read_is_refused_with_a_reason(data: bytes) -> None:
    with pytest.raises(ConfigError, match="restart instead"):
        decode(data)


def test_the_lock_survives_where_the_next_program_takes_it() -> None:
    assert HandOver(version="1", data=3, admin=4, lock=5).descriptors() == [3, 4, 5]
    assert HandOver(version="1", data=3, admin=4).descriptors() == [3, 4]


def test_another_format_is_refused() -> None:
    with pytest.raises(ConfigError, match=f"this version reads format {FORMAT}"):
        decode(encode(msgspec.structs.replace(whole(), format=FORMAT + 1)))


def test_an_ordinary_start_takes_nothing() -> None:
    assert take({"PATH": "/bin"}) is None


@pytest.mark.parametrize("given", ["x", "9999"])
def test_a_descriptor_that_is_not_there_is_refused(given: str) -> None:
    environ = {VARIABLE: given}
    with pytest.raises(ConfigError, match=VARIABLE):
        take(environ)
    assert environ == {}, "no child sees it"


PROGRAM = """
import os, signal, sys
from gateway.app.upgrade.handover import HandOver, VARIABLE, become, handled, take
seen = []
signal.signal(signal.SIGTERM, lambda *_: seen.append("SIGTERM"))
handed = take(os.environ)
if handed is None:
    data, other = os.pipe()
    os.write(other, b"through the exec")
    secret = os.open("/dev/null", os.O_RDONLY)
    print(os.getpid(), flush=True)
    environ = {"PATH": os.environ["PATH"], "KEPT": str(secret)}
    become([sys.executable, "-c", sys.argv[1], sys.argv[1]], environ, HandOver(version="1", data=data, admin=other))
os.kill(os.getpid(), signal.SIGUSR2)  # ignored: nobody handles it yet
os.kill(os.getpid(), signal.SIGTERM)
assert seen == [], "it waits"
handled()
assert seen == ["SIGTERM"]
assert os.read(handed.data, 100) == b"through the exec"
assert not os.get_inheritable(handed.data) and VARIABLE not in os.environ
try:
    os.fstat(int(os.environ["KEPT"]))
except OSError:
    print(os.getpid(), handed.version, "and nothing else")
"""


def test_a_program_becomes_another_in_the_same_process() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, PROGRAM], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    before, after = done.stdout.splitlines()
    assert after == f"{before} 1 and nothing else"
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ()), "nothing of it happens here"
    assert os.getpid() != int(before)


def test_the_new_program_hears_that_the_old_one_was_asked_to_end() -> None:
    asked = PROGRAM.replace("admin=other))", "admin=other), lambda: True)").replace("os.kill(os.getpid(), signal.SIGTERM)\n", "")
    assert "os.kill(os.getpid(), signal.SIGTERM)" not in asked and "lambda: True" in asked
    done = subprocess.run([sys.executable, "-c", asked, asked], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("and nothing else\n")


BETWEEN = """
import asyncio, os, signal
import uvloop
from gateway.app.upgrade.handover import last_signals
numbers = (signal.SIGHUP, signal.SIGUSR2, signal.SIGTERM, signal.SIGINT)
ended = []
async def run():
    for number in numbers:
        asyncio.get_running_loop().add_signal_handler(number, print, "the loop")
    last_signals(lambda: ended.append(1))
uvloop.run(run())
for number in numbers:
    os.kill(os.getpid(), number)
print("ended", len(ended))
"""


def test_no_signal_behind_the_end_of_the_loop_ends_the_program() -> None:
    done = subprocess.run([sys.executable, "-c", BETWEEN], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "ended 2\n"), done.stderr
