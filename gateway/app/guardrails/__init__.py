"""Guardrails outside a request: who answers /v1/moderations, and trials by operators."""
