"""What of an audit log is verified, as requests and commands say it."""

from __future__ import annotations

from gateway.core.audit_questions import AuditScope


def scope_of(from_segment: str, archived: str) -> AuditScope:
    """What must be there, from the texts of a request or a command. Raises ValueError, with what would be right."""
    first, starts = 1, dict[str, int]()
    for text in filter(None, from_segment.strip().split(",")):
        writer, named, number = text.rpartition("=")
        if not (number.isascii() and number.isdigit() and 0 < int(number) < 10**8) or (named and not writer):
            raise ValueError(f"from-segment: {text!r} is not a segment: it must be a number from 1 on, or WRITER=NUMBER")
        if named:
            starts[writer] = int(number)
        else:
            first = int(number)
    return AuditScope(first, starts, tuple(filter(None, archived.strip().split(","))))
