"""What a request costs as the configuration grows: tenants, keys, endpoints, bindings, roles, models, limits, guardrails.

Each line is `loadtests.pipeline.bench` (no sockets, an engine that answers at once) with a configuration of that size, the smallest of the
rounds in CPU time; the sizes of one thing are measured by turns, so that a machine whose speed changes does not favour one of them.

With --life each line is followed by what `loadtests.pipeline.life` says of each size: start, memory, reload, scrape.

usage: python -m loadtests.pipeline.growth [--rounds 200] [--turns 3] [--sizes 1,100,10000] [--only keys,limits] [--life]
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

HEAD = """version: 1
engines: [{engines}]
models: [{models}]
identity: {{api_keys: {{static: [{{id: bench, key: "${{env:BENCH_KEY}}", tenant: bench, models: ["*"]{roles}}}{keys}]}}}}
limits: [{{name: per-key, per: key, requests: {{rate: 1000000, per: 1s}}}}{limits}]
{more}
"""
PLAIN = {"engines": "{name: up, runtime: external, url: 'http://127.0.0.1:9', slots: 1024}", "models": "{name: m1, pool: [up]}"}
EMPTY = {"keys": "", "limits": "", "roles": "", "more": ""}


BENCH = """
from gateway.wire import yamltree
yamltree.MAX_BYTES = yamltree.MAX_NODES = 2**28  # the store, which may hold so much, has no such bounds
from loadtests.pipeline.bench import main
main()
"""


def _some(count: int, each: Callable[[int], str]) -> str:
    return "".join(", " + each(number) for number in range(count - 1))


def of_keys(count: int) -> dict[str, str]:
    """API keys, each of a tenant of its own."""
    return {"keys": _some(count, lambda n: f"{{id: k{n}, key_sha256: '{n:064x}', tenant: t{n}, models: ['*']}}")}


def of_endpoints(count: int) -> dict[str, str]:
    """Endpoints in one pool, chosen by consistent hashing."""
    names = ["up", *(f"e{n}" for n in range(count - 1))]
    more = _some(count, lambda n: f"{{name: e{n}, runtime: external, url: 'http://127.0.0.1:9', slots: 1024}}")
    pool = f"{{name: m1, pool: [{', '.join(names)}], routing: {{policy: consistent_hash, key: prefix}}}}"
    return {"engines": PLAIN["engines"] + more, "models": pool}


def of_models(count: int) -> dict[str, str]:
    """Models on one engine."""
    return {"models": PLAIN["models"] + _some(count, lambda n: f"{{name: other-{n}, pool: [up]}}")}


def of_bindings(count: int) -> dict[str, str]:
    """Bindings of other subjects, beside the one that lets the request pass."""
    others = "\n".join(f"  - {{role: chatter, subjects: ['user/u{n}']}}" for n in range(count - 1))
    more = f"roles: {{chatter: {{permissions: ['infer:*']}}}}\nbindings:\n  - {{role: chatter, subjects: ['key/bench']}}\n{others}"
    return {"roles": ", roles: [chatter]", "more": more}


def of_limits(count: int) -> dict[str, str]:
    """Limits, each of another tenant, beside the one that applies."""
    return {"limits": _some(count, lambda n: f"{{name: l{n}, per: key, match: {{tenant: t{n}}}, requests: {{rate: 9, per: 1s}}}}")}


def of_roles(count: int) -> dict[str, str]:
    """Roles, of which the request's key has one."""
    others = "\n".join(f"  r{n}: {{permissions: ['infer:embeddings:model/m1']}}" for n in range(count - 1))
    return {"roles": ", roles: [chatter]", "more": f"roles:\n  chatter: {{permissions: ['infer:*']}}\n{others}"}


def of_guardrails(count: int) -> dict[str, str]:
    """Guardrails, each of another tenant, beside one that looks at the request."""
    each = "\n".join(
        f"  - {{name: g{n}, type: denylist, tenants: [{'bench' if n < 0 else f't{n}'}], settings: {{phrases: ['never{n}']}}}}"
        for n in range(-1, count - 1)
    )
    return {"more": f"guardrails:\n{each}"}


DIMENSIONS: dict[str, Callable[[int], dict[str, str]]] = {
    "keys": of_keys,
    "endpoints": of_endpoints,
    "models": of_models,
    "bindings": of_bindings,
    "limits": of_limits,
    "roles": of_roles,
    "guardrails": of_guardrails,
}


def measured(config: Path, rounds: int) -> float:
    """Microseconds of CPU a request; raises RuntimeError with the reason where the configuration is not taken."""
    command = [sys.executable, "-c", BENCH, "--rounds", str(rounds), "--config", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1800)
    found = re.search(r"CPU ([\d.]+)", done.stdout)
    if found is None:
        raise RuntimeError(done.stderr.strip().splitlines()[-1][:200] if done.stderr.strip() else "no figure")
    return float(found[1])


def life(config: Path) -> str:
    """A line about what it costs beside requests."""
    command = [sys.executable, "-m", "loadtests.pipeline.life", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1800)
    if done.returncode:
        return done.stderr.strip().splitlines()[-1][:200]
    return "  ".join(f"{name} {value:.4g}" for name, value in json.loads(done.stdout.splitlines()[-1]).items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--sizes", default="1,100,10000")
    parser.add_argument("--only", default=",".join(DIMENSIONS))
    parser.add_argument("--life", action="store_true")
    options = parser.parse_args()
    sizes = [int(size) for size in options.sizes.split(",")]
    print(f"{'microseconds':12s}" + "".join(f"{size:>12,}" for size in sizes))
    with tempfile.TemporaryDirectory() as folder:
        for name in options.only.split(","):
            best: dict[int, float] = {}
            why = ""
            for _ in range(options.turns):
                for size in sizes:
                    file = Path(folder) / f"{name}-{size}.yaml"
                    if not file.exists():
                        file.write_text(HEAD.format(**{**PLAIN, **EMPTY, **DIMENSIONS[name](size)}))
                    try:
                        best[size] = min(best.get(size, 1e9), measured(file, options.rounds))
                    except RuntimeError as error:
                        why = f"  {size}: {error}"
            print(f"{name:12s}" + "".join(f"{best[size]:12.1f}" if size in best else f"{'-':>12s}" for size in sizes) + why, flush=True)
            for size in sizes if options.life else ():
                print(f"  {size:>9,}: {life(Path(folder) / f'{name}-{size}.yaml')}", flush=True)


if __name__ == "__main__":
    main()
