"""How many files and connections the process may have open (getrlimit(2), RLIMIT_NOFILE).

A shell, a container or a service without a setting of its own usually gives a soft limit of 1,024, which a few hundred requests use up:
each takes a descriptor for its client and one for its engine. The hard limit is mostly far higher, and a process may go up to it.
"""

from __future__ import annotations

import resource
from typing import Final

ENOUGH: Final = 65_536
"""What the unit of systemd sets, too; far more would only make programs slow that close every number there could be."""
OWN: Final = 128
"""Open files that the audit log, the store, sidecars and libraries need."""


def raise_limit() -> int:
    """Raises the limit to ENOUGH, or as far as the hard limit allows; never lowers it. Returns the one in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH if hard == resource.RLIM_INFINITY else min(ENOUGH, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return ENOUGH if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):  # a system with a limit beside this one (macOS), or a security module
        return soft
    return wanted


def too_few(limit: int, connections: int, workers: int) -> str:
    """What to say if so many descriptors do not suffice for `listen.max_connections`, of which each worker takes a share; or nothing."""
    share = -(-connections // max(1, workers))
    wanted = 2 * share + OWN
    if limit >= wanted:
        return ""
    enough = max(1, (limit - OWN) // 2) * max(1, workers)
    return (
        f"a process may open {limit} files (ulimit -n), too few for {share} requests at once: beyond about {enough} in all, requests fail "
        f"because their engines cannot be reached; raise the limit (systemd: LimitNOFILE={wanted}, a container: --ulimit nofile={wanted}, "
        f"a shell: ulimit -n {wanted} as root), or lower listen.max_connections"
    )
