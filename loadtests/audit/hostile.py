"""A real rsyslog receives hostile records over TLS, byte for byte: `python -m loadtests.audit.hostile [--records 100000]`.

The records have texts that a log or a parser may trip over: line feeds and other controls, NUL, every edge of UTF-8, halves of surrogates,
text that looks like syslog, like JSON or like an end of our own line, and texts of 60 KiB (`--large`, a share). They go through the audit
log, its courier and its syslog sink. Required: every line of the log is in rsyslog's file as it is in the log, and nothing else. Exit code
1 when that is not so.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Final

import msgspec

from gateway.audit.broker import AuditBroker
from gateway.audit.courier import Courier
from gateway.audit.sink_positions import SinkPositionsFile
from gateway.audit.sinks.syslog import SyslogSink
from gateway.core.specs import AuditSpec
from gateway.core.specs.sinks import SyslogSinkSpec
from gateway.core.types import EventRecord, IntentRecord
from gateway.core.waiting import as_future
from loadtests.audit.receivers import in_rsyslog, logged
from tests.integration.rsyslog import Rsyslog

EDGES: Final = (
    *(0, 1, 7, 8, 9, 10, 11, 12, 13, 27, 31, 32, 34, 37, 60, 92, 93, 126, 127, 128, 133, 159, 160, 0x7FF, 0x800, 0x2028, 0x202E, 0xD7FF),
    *(0xD800, 0xDBFF, 0xDC00, 0xDFFF, 0xE000, 0xFDD0, 0xFEFF, 0xFFFD, 0xFFFE, 0xFFFF, 0x10000, 0x1F600, 0x10FFFF),
)
PHRASES: Final = (
    *(
        "line\nfeed\r\n",
        "\r",
        "\n\n",
        "\0",
        "\x1b[31m",
        "<13>1 - - - - - - forged",
        "\n<13>1 2026-01-01T00:00:00Z h a p m - x",
        "11 <13>1 x",
    ),
    *(
        '"}\n{"seq":1,"kind":"event"',
        '","hash":"' + "0" * 64 + '"}',
        "]",
        '[gatehouse@32473 writer="0" seq="1"]',
        '"\\',
        "%s %msg% %n",
        "\t",
    ),
    *("ünïcödé \U0001f600", "\u202etxt.exe", "e\u0301", "\ufeff", "$(reboot)", "`id`", "\\u0000", "\\n"),
)
BATCH: Final = 256
LARGEST: Final = 60 * 1024


def hostile(chance: random.Random, large: float) -> str:
    if chance.random() < large:
        return chance.choice(PHRASES) + "x" * (LARGEST - 2048) + chance.choice(PHRASES)
    parts = []
    for _ in range(chance.randint(1, 6)):
        if chance.random() < 0.5:
            parts.append(chance.choice(PHRASES))
        else:
            parts += [chr(chance.choice(EDGES)) for _ in range(chance.randint(1, 8))]
    return "".join(parts)


def record(chance: random.Random, number: int, large: float) -> EventRecord | IntentRecord:
    text = hostile(chance, large)
    if number % 2:
        return EventRecord(float(number), "hostile", actor=text[:64], target=hostile(chance, 0.0), detail={"text": text, text[:16]: 1})
    who, model = hostile(chance, 0.0), hostile(chance, 0.0)
    return IntentRecord(float(number), f"h-{number}", who, who, "api_key", "p", "chat", model, False, 1, user=who, detail={"text": text})


async def write(options: argparse.Namespace, place: Path, server: Rsyslog) -> tuple[float, Courier]:
    """Seconds until everything was sent."""
    broker = AuditBroker(AuditSpec(queue=4 * BATCH), str(place), writer="gw")
    settings = {"address": f"tls://127.0.0.1:{server.tls}", "tls": {"ca": server.authority.cert}, "timeout": 30.0}
    sink = SyslogSink(msgspec.convert(settings, SyslogSinkSpec))
    courier = Courier("siem", sink, place / "audit", SinkPositionsFile(place, "siem"), history=True)
    courier.prepare()
    await broker.start()
    courier.start()
    chance, began = random.Random(options.seed), time.monotonic()
    for first in range(0, options.records, BATCH):
        ended = None
        for number in range(first, min(first + BATCH, options.records)):
            ended = broker.event(record(chance, number, options.large))  # type: ignore[arg-type]
        if ended is not None:
            await as_future(ended)
    await broker.aclose()
    await courier.aclose(600)
    took = time.monotonic() - began
    await sink.aclose()
    return took, courier


def compare(place: Path, server: Rsyslog, seconds: float) -> Counter[str]:
    """How many lines are right, otherwise, foreign, missing or there again."""
    lines = {(writer, seq): line for writer, seq, line in logged(place / "audit")}
    deadline = time.monotonic() + seconds
    while sum(1 for _ in in_rsyslog(server)) < len(lines) and time.monotonic() < deadline:
        time.sleep(0.5)  # it may still be reading
    found: Counter[str] = Counter({"right": 0, "otherwise": 0, "missing": 0})
    seen: set[tuple[str, int]] = set()
    for writer, seq, line in in_rsyslog(server):
        if (writer, seq) in seen:
            found["again"] += 1
        elif (wanted := lines.get((writer, seq))) is None:
            found["foreign"] += 1
        else:
            found["right" if wanted == line else "otherwise"] += 1
            seen.add((writer, seq))
    found["missing"] = len(lines) - len(seen)
    found["bytes"] = sum(map(len, lines.values()))
    found["longest"] = max(map(len, lines.values()))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--large", type=float, default=0.01, help="the share of records with a text of 60 KiB")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hostile-") as name:
        place = Path(name)
        server = Rsyslog(place).start()
        try:
            took, courier = asyncio.run(write(options, place, server))
            found = compare(place, server, 60.0)
        finally:
            server.stop()
    print(f"seed {options.seed}, {options.records} records, {took:.0f} s; {dict(found)}; refused {courier.refused}, lost {courier.lost}")
    bad = found["otherwise"] + found["missing"] + found["foreign"] + courier.refused + courier.lost
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
