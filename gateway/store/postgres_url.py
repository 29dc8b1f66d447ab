"""URLs of PostgreSQL with several hosts, each with its own port, as libpq has them. SQLAlchemy alone takes only one port."""

from __future__ import annotations

import re
from typing import Final

import sqlalchemy as sa

_SEVERAL: Final = re.compile(r"([^:/?#]+://(?:[^@]*@)?)([^/?@]*,[^/?@]*)(.*)", re.DOTALL)
_ONE: Final = re.compile(r"(\[[^\]]*\]|[^\[\]:]*)(?::(\d*))?")


def url_of(text: str) -> sa.URL:
    """`postgresql://USER@HOST:PORT,HOST:PORT/DATABASE?...`, or a URL with one host. Raises ArgumentError, ValueError."""
    several = _SEVERAL.fullmatch(text)
    if several is None:
        return sa.make_url(text)
    before, listed, after = several.groups()
    found = [_ONE.fullmatch(one) for one in listed.split(",")]
    hosts = [(one[1].strip("[]"), one[2] or "") for one in found if one is not None]
    if len(hosts) < len(found):
        raise ValueError("not a host, or not a port")
    url = sa.make_url(before + after)
    ports = {"port": ",".join(port for _, port in hosts)} if any(port for _, port in hosts) else {}
    return url.update_query_dict({"host": ",".join(host for host, _ in hosts), **ports})
