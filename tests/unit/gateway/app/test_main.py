"""The command line loads what a command needs: a call to a running gateway takes a third of a second, not a whole one."""

from __future__ import annotations

import subprocess
import sys

import pytest

SERVING = ("sqlalchemy", "uvicorn", "starlette", "prometheus_client", "engines", "gateway.app.process", "gateway.store", "httpx._main")


@pytest.mark.parametrize("arguments", [["tenants", "list", "--url", "http://127.0.0.1:1"], ["keys", "--help"]])
def test_a_command_for_a_running_gateway_loads_nothing_of_what_serves(arguments: list[str]) -> None:
    program = (
        "import sys\nfrom gateway.app.main import main\nsys.argv[0] = 'gatehouse'\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print('loaded:', *[name for name in sorted(sys.modules) if sys.modules[name] is not None])"
    )
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=120)
    loaded = done.stdout.rpartition("loaded: ")[2].split()
    assert "admin.cli.client" in loaded, done.stderr
    assert [name for name in loaded if any(name == part or name.startswith(part + ".") for part in SERVING)] == []
