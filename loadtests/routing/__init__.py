"""Benchmarks of routing. They run what operators run: the compiled hot path, where there is a build of it (gateway/compiled.py)."""

from gateway.compiled import activate

activate()
