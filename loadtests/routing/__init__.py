"""Benchmarks of routing. They run what operators run: the compiled hot path, where there is a build of it (gateway/app/compiled.py)."""

from gateway.app.compiled import activate

activate()
