"""Where the console script begins: puts the compiled hot path in place before anything of it is imported. Import it for that only."""

from __future__ import annotations

from gateway.compiled import activate

activate()

from gateway.main import main  # noqa: E402 - the line above decides what is imported here

__all__ = ["main"]
