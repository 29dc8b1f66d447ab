"""The `options` of an engine with `runtime: command`. Imports nothing of the runtime: the gateway reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

from msgspec import Meta, field

from engines.sidecar.loading import ShellOptions
from gateway.core.specs import Natural, Seconds

Word = Annotated[str, Meta(min_length=1, max_length=65536)]
Folder = Annotated[str, Meta(pattern="^/.")]
PLACES: Final = ("port", "socket", "model", "key", "context", "slots", "threads", "device", "state")
"""What `${...}` may name in a command and its environment."""


class CommandOptions(ShellOptions, frozen=True, kw_only=True):
    """The `options` of an engine with `runtime: command`."""

    command: Annotated[tuple[Word, ...], Meta(min_length=1, max_length=1024)]
    """The program and its arguments, without a shell. `${port}` or `${socket}` is where it must listen, `${model}` the engine's model,
    `${key}` its `api_key`, `${context}`, `${slots}`, `${threads}` those of the engine, `${state}` a folder where it may keep files."""
    environment: dict[Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")], str] = field(default_factory=dict)
    """Further variables of its environment, in which the same may stand."""
    health: Annotated[str, Meta(pattern=r"^/[!-~]*$")] = "/health"
    """The path that answers 200 when it is ready."""
    health_interval: Seconds = 2.0
    health_timeout: Seconds = 10.0
    health_fall: Annotated[int, Meta(ge=1, le=100)] = 3
    """Health checks in a row without an answer after which it is restarted."""
    start_timeout: Seconds = 600.0
    """How long it may take until it is ready for the first time."""
    stop_timeout: Seconds = 20.0
    """How long it may take to end after SIGTERM; then it and all its processes are killed."""
    memory_bytes: Natural | None = None
    """Memory that it takes of each of its devices (of main memory on `cpu`), for placement; None: on `cpu` what it took at most the last
    time that this gateway had it running, else it is not checked."""
    reads: tuple[Folder, ...] = ()
    writes: tuple[Folder, ...] = ()
    """Files and folders that it may read, or write too, besides its program, its model, the system's libraries and its own folders."""
    network: bool = False
    """Whether it may open connections and listen on other ports than its own."""

    def __post_init__(self) -> None:
        """Raises ValueError for a command that cannot work."""
        texts = (*self.command, *self.environment.values())
        if not any("${port}" in text or "${socket}" in text for text in texts):
            raise ValueError("the command names neither ${port} nor ${socket}: the server must be told where to listen")
        if "/" in self.command[0] and not Path(self.command[0]).is_absolute():
            raise ValueError("the command must begin with an absolute path, or with a name without '/' that is in PATH")
