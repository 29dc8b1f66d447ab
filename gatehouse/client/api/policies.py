"""The admin API below /policies. Made by scripts/generate_client.py."""

from __future__ import annotations

from gatehouse.client.calls import Call, segment
from gatehouse.client.connection import Connection
from gatehouse.client.types.policies import CaseResults, Cases, Comparison, Difference, Explanation, PastDecision, Question


class PoliciesApi:
    """Operations below /policies."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def explain(self, body: Question) -> Explanation:
        """Say what would be decided, and why. Needs the permission `policies:test`."""
        return self._connection.json(Call("POST", "/policies:explain", body=body))

    def test(self, body: Cases) -> CaseResults:
        """Say whether cases are decided as expected. Needs the permission `policies:test`."""
        return self._connection.json(Call("POST", "/policies:test", body=body))

    def diff(self, body: Comparison) -> Difference:
        """Say which decisions of the past other roles and bindings would change. Needs the permission `policies:replay`."""
        return self._connection.json(Call("POST", "/policies:diff", body=body))

    def decisions(self, request_id: str) -> PastDecision:
        """Say why a request was allowed or denied. Needs the permission `policies:replay`."""
        return self._connection.json(Call("GET", f"/policies/decisions/{segment(request_id)}"))
