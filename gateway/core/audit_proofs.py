"""What the local audit log proves: the keys that sign it, proofs of records and of checkpoints."""

from __future__ import annotations

from typing import Any, Protocol


class AuditProofs(Protocol):
    """Part of gateway.core.ports.AuditReader. Everything here blocks."""

    def public_keys(self) -> list[dict[str, Any]]:
        """The keys that checkpoints are verified with: {"id", "algorithm", "pem", "current", "since", "endorsement"}."""
        ...

    def prove(self, request_id: str) -> list[dict[str, Any]]:
        """A proof for each record of a request (gateway.audit.proof); empty where there are none. Raises AuditUnproven."""
        ...

    def bundle(self, request_id: str) -> bytes | None:
        """The evidence bundle of a request, a ZIP file; None where there are no records. Raises AuditUnproven."""
        ...

    def consistency(self, writer: str, first: int, second: int | None = None) -> dict[str, Any]:
        """That a writer's checkpoint `second`, or its newest one, goes on from what `first` signed. Raises AuditUnproven."""
        ...

    def endorsements(self) -> list[dict[str, Any]]:
        """How the keys that sign the log followed one another."""
        ...

    def rotate_key(self) -> dict[str, Any]:
        """Puts a new signing key, signed by the present one, in its place; the endorsement."""
        ...
