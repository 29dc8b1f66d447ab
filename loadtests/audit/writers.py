"""Kills processes that write one audit log together, again and again: `python -m loadtests.audit.writers [--kills 500] [--seconds 600]`.

One process stands for the control process (it recovers writers that nobody has), three for workers. All write under load into one
directory; one of them at a time is ended with SIGKILL at a random moment and replaced. Required: no start fails, every acknowledged intent
is in the log exactly once, every chain is whole, and no writer has less than the others saw. Exit code 1 when a requirement is not met.

GATEHOUSE_TEST_COMPILED=1 runs the compiled build. Only processes that this script started are ended, by their process ids.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from gateway.audit.crypto import load_verifier
from gateway.audit.reader import LogReader
from gateway.audit.verify import cores, verify_log
from tests.integration.audit_fleet import WORKERS, Fleet
from tests.waiting import until


def run(fleet: Fleet, chance: random.Random, kills: int, seconds: float, life: float) -> int:
    """How many starts failed."""
    end, failed = time.monotonic() + seconds, 0
    for place in range(WORKERS + 1):
        fleet.start(place)
    while fleet.kills < kills and time.monotonic() < end:
        time.sleep(chance.uniform(0.0, life))  # the moment of the kill is the point
        place = chance.randrange(WORKERS + 1)
        try:
            fleet.end(place, signal.SIGKILL)
        except AssertionError as error:
            print(error, flush=True)
            failed += 1
        fleet.start(place)
        if fleet.kills % 100 == 0:
            print(f"{fleet.kills} kills", flush=True)
    for place in range(WORKERS + 1):
        until(lambda place=place: fleet.acknowledged(place) > 0, what="an acknowledgement")  # type: ignore[misc]
        if place == 0:
            continue
        fleet.end(place, signal.SIGTERM)
    return failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--life", type=float, default=0.3, help="seconds between two kills, at most")
    parser.add_argument("--durability", choices=["journal", "write", "fsync"], default="journal")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="writers-") as name:
        fleet = Fleet(Path(name), options.durability)
        try:
            failed = run(fleet, random.Random(options.seed), options.kills, options.seconds, options.life)
            directory = Path(name) / "audit"
            verifier = load_verifier(Path(name) / "keys" / "audit-signing.pub.pem")
            until(lambda: all(w.live or w.unsigned == 1 for w in verify_log(directory, verifier).writers), what="the recovery")
            fleet.end(0, signal.SIGTERM)
        finally:
            fleet.close()
        started = time.monotonic()
        report = verify_log(directory, verifier, processes=cores())
        took = time.monotonic() - started
        found = Counter(record["request_id"] for record in LogReader(directory, verifier).records(kind="intent"))
        opened = [record["detail"] for record in LogReader(directory, verifier).records(event="audit.opened")]
        acknowledged = set(fleet.all_acknowledged())
    lost, twice = len(acknowledged - set(found)), sum(count > 1 for count in found.values())
    print(f"seed {options.seed}, {options.durability}: kills {fleet.kills}, failed starts {failed}")
    print(f"acknowledged intents {len(acknowledged)}, lost {lost}, there twice {twice}")
    print(f"records from journals {sum(d.get('from_journal', 0) for d in opened)}, recoveries {sum('recovered_by' in d for d in opened)}")
    lines = sum(writer.lines for writer in report.writers)
    print(f"writers {len(report.writers)}, lines {lines}, verified in {took:.1f} s; problems: {[p.reason for p in report.problems]}")
    sys.exit(0 if report.ok and not (failed or lost or twice) else 1)


if __name__ == "__main__":
    main()
