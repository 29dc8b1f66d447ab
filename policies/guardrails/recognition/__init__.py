"""What guardrails that look for entities share: patterns of bounded length, their search in normalised text, and streams."""
