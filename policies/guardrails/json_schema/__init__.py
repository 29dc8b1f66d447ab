"""JSON schemas that answers must follow: what a schema may be, and the guardrail."""
