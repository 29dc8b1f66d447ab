"""What is left of a proof in the headers once it has been read."""

import pytest

from gateway.core.proofs import METHOD, PATH, PROOF, PROVED, note_target, proven
from gateway.core.types import Headers


@pytest.mark.parametrize("key", [b"thumbprint", None])
def test_a_proof_is_asked_for_once_and_a_token_stays_bound_to_its_key(key: bytes | None) -> None:
    headers: Headers = {b"authorization": b"DPoP token", PROOF: b"proof", **({} if key is None else {PROVED: key})}
    note_target(headers, b"GET", b"/admin/v1/events")
    assert (headers[METHOD], headers[PATH]) == (b"GET", b"/admin/v1/events")
    proven(headers)
    proved = {b"authorization": b"Bearer token", PROVED: key}
    assert headers == (proved if key else {b"authorization": b"DPoP token"}), "without a key, the scheme still asks for a proof"
