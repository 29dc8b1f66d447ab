"""The server in docs/guardrails.md: it runs as it stands there, and verifies what the gateway signs."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from gateway.core.errors import EngineError
from gateway.core.secret import Secret
from gateway.core.types import ALLOW, Verdict
from gateway.guardrails.http import HttpGuardrail, HttpSettings

PAGE = Path(__file__).parents[4] / "docs" / "guardrails.md"
SECRET = "0123456789abcdef0123456789abcdef"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    code = next(block for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if "class Guard" in block)
    names: dict[str, object] = {"__name__": "example"}
    exec(compile(code, str(PAGE), "exec"), names)
    server = ThreadingHTTPServer(("127.0.0.1", 0), names["Guard"])  # type: ignore[arg-type]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/check"
    server.shutdown()
    server.server_close()
    thread.join()


async def asked(url: str, secret: str, *texts: str) -> Verdict:
    guardrail = HttpGuardrail("g", HttpSettings(url=url, shape="generic", secret=Secret(secret), timeout=120.0))
    try:
        found = guardrail.check(texts)
        return found if isinstance(found, Verdict) else await found  # type: ignore[misc,no-any-return]
    finally:
        await guardrail.aclose()


async def test_it_answers_what_is_signed_and_refuses_what_is_not(url: str) -> None:
    assert await asked(url, SECRET, "hello") is ALLOW
    verdict = await asked(url, SECRET, "", "👋 see TICKET-12 and TICKET-3")
    assert (verdict.action, verdict.texts) == ("rewrite", ("", "👋 see [TICKET] and [TICKET]"))
    assert [(one.text, one.start, one.end, one.entity) for one in verdict.findings] == [(1, 6, 15, "ticket"), (1, 20, 28, "ticket")]
    with pytest.raises(EngineError, match="status 401"):
        await asked(url, "another secret of 24 bytes or more", "hello")
