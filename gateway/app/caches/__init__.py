"""Caches of answers: what their keys depend on, what stands behind a process's memory, statistics and purges over all processes."""
