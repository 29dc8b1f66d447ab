"""Limits where they are kept: in the store, in Redis and in the audit log, and what compares these with each other."""
