"""What a process tells of itself: the figures of a scrape, log lines and their levels, traces, the health report."""
