"""The guardrail `injection`: heuristics for prompt injection and jailbreaks."""
