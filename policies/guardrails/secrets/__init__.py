"""The guardrail `secrets`: keys, tokens and passwords."""
