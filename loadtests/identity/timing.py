"""Whether the time of a refusal tells what was wrong: python -m loadtests.identity.timing [--trials 150] [--workers 0] [--slow].

Starts a gateway with keys in its store and a directory (slapd), and fails to log in, in random order and each time from another address of
the loopback network with a credential that was not seen before, so that neither caches nor throttles answer. Compared are refusals that
must not be told apart:

- keys: an unknown one, a key of the store with another last character (and the right checksum for it), and one that is revoked;
- names and passwords: an unknown user, and a wrong password of a user who exists; and five wrong passwords of one at once, of which the
  last answer counts. `--slow`: the directory's hashes are slow (crypt, 200,000 rounds of SHA-512).

Prints the median of each, and for each pair the Kolmogorov-Smirnov distance with its p-value and the probability that one takes longer than
the other (Mann-Whitney, with the half width of its 95% interval): 0.5 says nothing. Exits with 1 if one is beyond 0.55 by more than chance.
"""

from __future__ import annotations

import argparse
import base64
import bisect
import http.client
import math
import random
import statistics
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

from gateway.core.clock import SystemEntropy
from gateway.identity.keys import ALPHABET, generate, well_formed
from gateway.identity.keys import PREFIX as KEY_PREFIX
from tests.e2e.adminapi import admin, config
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import Gatehouse
from tests.integration.slapd import ADMIN, ADMIN_PASSWORD, BASE, Slapd, directory

UNKNOWN_KEY, NEAR_KEY, REVOKED_KEY = "unknown key", "known key, wrong secret", "revoked key"
UNKNOWN_USER, WRONG_PASSWORD = "unknown user", "wrong password"
UNKNOWN_BURST, WRONG_BURST = "unknown user, five at once", "wrong password, five at once"
PAIRS = ((UNKNOWN_KEY, NEAR_KEY), (UNKNOWN_KEY, REVOKED_KEY), (UNKNOWN_USER, WRONG_PASSWORD), (UNKNOWN_BURST, WRONG_BURST))
AT_ONCE = 5
SLOW = "{CRYPT}$6$rounds=200000$gatehouse$5SkqGiTBbdNqYVmuXlMJU5jo5.K6I5FiuAZzo5as0s3zObh3KVXDmeuGO14k9mMRu9aE7jkPJbl1bRc3erN2Y/"
"""Of `secret`."""
MOST = 0.55
CHECK = 6
"""Characters of a key's checksum."""


def near(key: str) -> str:
    """The key with another last character of its secret, well-formed."""
    body = key[len(KEY_PREFIX) : -CHECK]
    other = KEY_PREFIX + body[:-1] + ALPHABET[(ALPHABET.index(body[-1]) + 1) % len(ALPHABET)]
    made = other + checksum(other)
    assert well_formed(made) and made != key
    return made


def checksum(key: str) -> str:
    """As keys have it: the CRC-32 of what stands before it, in base62."""
    number, digits = zlib.crc32(key.encode()), ""
    for _ in range(CHECK):
        number, digit = divmod(number, 62)
        digits = ALPHABET[digit] + digits
    return digits


def bearer(key: str) -> str:
    return f"Bearer {key}"


def basic(name: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


def credentials(gatehouse: Gatehouse, slapd: Slapd, trials: int, slow: bool) -> dict[str, list[list[str]]]:
    """As many of each case as there are trials: the `Authorization` headers that are sent at once."""
    secrets: dict[str, list[str]] = {"kept": [], "revoked": []}
    with admin(gatehouse) as client:
        for kind, each in secrets.items():
            for number in range(trials):
                made = client.post("/keys", json={"id": f"{kind}-{number}", "tenant": "acme", "models": ["*"]})
                each.append(made.raise_for_status().json()["secret"])
                if kind == "revoked":
                    client.post(f"/keys/{kind}-{number}/revoke").raise_for_status()
    people = [
        f"dn: uid=user{number},ou=people,{BASE}\nchangetype: add\nobjectClass: inetOrgPerson\nuid: user{number}\ncn: U\nsn: U\no: acme\n"
        f"userPassword: {SLOW if slow else f'secret-{number}'}\n"
        for number in range(2 * trials)
    ]
    slapd.modify("\n".join(people))
    single = {
        UNKNOWN_KEY: [bearer(generate(SystemEntropy())) for _ in range(trials)],
        NEAR_KEY: [bearer(near(key)) for key in secrets["kept"]],
        REVOKED_KEY: [bearer(key) for key in secrets["revoked"]],
        UNKNOWN_USER: [basic(f"nobody{number}", f"secret-{number}") for number in range(trials)],
        WRONG_PASSWORD: [basic(f"user{number}", f"secret+{number}") for number in range(trials)],
    }
    burst = {
        UNKNOWN_BURST: [[basic(f"absent{number}", f"secret-{turn}") for turn in range(AT_ONCE)] for number in range(trials)],
        WRONG_BURST: [[basic(f"user{trials + number}", f"secret+{turn}") for turn in range(AT_ONCE)] for number in range(trials)],
    }
    return {name: [[header] for header in headers] for name, headers in single.items()} | burst


def measure(gatehouse: Gatehouse, cases: dict[str, list[list[str]]]) -> dict[str, list[float]]:
    """Milliseconds until the last of the refusals of each turn. The connections are made before."""
    host, _, port = gatehouse.url.removeprefix("http://").rpartition(":")
    turns = [(name, headers) for name, each in cases.items() for headers in each]
    random.shuffle(turns)
    took: dict[str, list[float]] = {name: [] for name in cases}
    for number, (name, headers) in enumerate(turns):
        source = f"127.1.{number // 250}.{number % 250 + 1}"
        lines = [http.client.HTTPConnection(host, int(port), timeout=30, source_address=(source, 0)) for _ in headers]
        for line in lines:
            line.connect()
        began = time.perf_counter()
        for line, header in zip(lines, headers, strict=True):
            line.request("GET", "/v1/models", headers={"authorization": header})
        for line in lines:
            answer = line.getresponse()
            answer.read()
            assert answer.status == 401, (name, answer.status)
        took[name].append((time.perf_counter() - began) * 1e3)
        for line in lines:
            line.close()
    return took


def distance(one: Sequence[float], other: Sequence[float]) -> tuple[float, float]:
    """The Kolmogorov-Smirnov distance of two samples, and how likely one as large is by chance (asymptotic)."""
    first, second = sorted(one), sorted(other)
    most = max(abs(bisect.bisect_right(first, x) / len(first) - bisect.bisect_right(second, x) / len(second)) for x in (*first, *second))
    size = math.sqrt(len(first) * len(second) / (len(first) + len(second)))
    z = (size + 0.12 + 0.11 / size) * most
    p = 2 * sum((-1) ** (k - 1) * math.exp(-2 * k * k * z * z) for k in range(1, 101)) if z > 0.2 else 1.0
    return most, min(1.0, max(0.0, p))


def longer(one: Sequence[float], other: Sequence[float]) -> tuple[float, float]:
    """How likely a value of the second sample is larger than one of the first (Mann-Whitney's U over all pairs), and the half width of the
    95% interval around 0.5."""
    first = sorted(one)
    wins = sum(bisect.bisect_left(first, x) + (bisect.bisect_right(first, x) - bisect.bisect_left(first, x)) / 2 for x in other)
    n, m = len(one), len(other)
    return wins / (n * m), 1.96 * math.sqrt((n + m + 1) / (12 * n * m))


def report(took: dict[str, list[float]], say: Callable[[str], None] = print) -> int:
    """Prints it; how many pairs can be told apart."""
    for name, each in took.items():
        each = sorted(each)
        low, high = each[len(each) // 10], each[len(each) * 9 // 10]
        say(f"{name:30} median {statistics.median(each):7.2f} ms   80% within {low:.2f} to {high:.2f} ms of {len(each)}")
    apart = 0
    for one, other in PAIRS:
        ks, p = distance(took[one], took[other])
        auc, half = longer(took[one], took[other])
        told = abs(auc - 0.5) > max(MOST - 0.5, half)
        apart += told
        verdict = "TOLD APART" if told else "not told apart"
        say(f"{one} / {other}: KS {ks:.3f} (p {p:.2f}), AUC {auc:.3f} (chance: 0.5 +- {half:.3f}): {verdict}")
    return apart


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=150)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--slow", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, directory(Path(folder)) as slapd:
        settings = config(Path(folder) / "state", EngineThread().port)
        settings["identity"]["ldap"] = [
            {
                "name": "corp",
                "servers": [f"ldap://127.0.0.1:{slapd.port}"],
                "bind": {"dn": ADMIN, "password": ADMIN_PASSWORD},
                "users": {"base": f"ou=people,{BASE}"},
                "groups": {"base": f"ou=groups,{BASE}", "nested": True},
                "tenant": {"attribute": "o"},
            }
        ]
        arguments = ["--workers", str(given.workers)] if given.workers else []
        with Gatehouse(Path(folder), settings, arguments=arguments) as gatehouse:
            took = measure(gatehouse, credentials(gatehouse, slapd, given.trials, given.slow))
    return 1 if report(took) else 0


if __name__ == "__main__":
    sys.exit(main())
