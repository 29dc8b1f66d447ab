"""Who callers are and what they may do, beyond the configuration: keys, tokens, logins, suspensions, revocations, roles, halts."""
