"""Names of what an engine stands for: its copies (`scale`), the addresses of its name (`dns`), the machines that bring it (`joined`)."""

from __future__ import annotations

from typing import Final

COPY: Final = "~"
"""Between the name of an engine and the number of its copy, from 2 on."""
AT: Final = "@"
"""Between the name of an engine and an address, or a machine."""
_PORT: Final = ":"
"""What no name of a machine has (gateway.core.joining.MachineName), and every address."""


def is_copy(name: str) -> bool:
    """Whether this is the name of a copy of an engine, other than the first."""
    return COPY in name


def shown(name: str) -> str:
    """What clients are told of an endpoint: its name, without the address that it may have. Records and operators have the whole."""
    engine, _, place = name.partition(AT)
    return engine if _PORT in place else name
