"""Plug-ins for Gatehouse, one kind a file: a guardrail, an authenticator, an audit sink, a hook."""
