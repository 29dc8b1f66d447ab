"""Whether the program that is installed now could take the place of the running one: asked of that program itself, in a process of its own.

It reads the configuration as a start would, loads everything that a start loads, opens the store, and decodes what it would be handed.
Nothing is changed or written; addresses that differ are bound by the running program, so that they cannot fail later.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from gateway.app import offline
from gateway.app.configuration.plugins import installed
from gateway.app.release import release
from gateway.app.upgrade.handover import HandOver, decode, encode
from gateway.app.upgrade.startable import could_start
from gateway.config.load import load
from gateway.core.errors import ConfigError, GatehouseError, one_line
from gateway.core.specs import ListenSpec
from gateway.store.migrate import HEAD

ARGUMENT: Final = "--preflight"
SECONDS: Final = 120.0
"""How long the check may take."""
END_SECONDS: Final = 5.0
"""How long the end of a check that was killed is waited for."""
REASON_BYTES: Final = 2000


class UpgradeRefused(GatehouseError):
    """An upgrade that was not begun, with the reason. The gateway goes on as it is."""

    status = 409
    type = "invalid_request_error"
    default_code = "upgrade_refused"


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of the program that is installed now. reason: why it could not take over; empty if it could. sharing: where it would
    offer models; "" for nowhere; None: an earlier version, which has not looked at the store. keeps_lock: it takes over the lock of the
    state directory; an earlier version locks it anew."""

    reason: str = ""
    version: str = ""
    listen: ListenSpec = ListenSpec()
    state_dir: str = ""
    sharing: str | None = None
    keeps_lock: bool = False


def answer(config: Path) -> int:
    """The check itself: what is to be handed over comes on standard input, the answer goes to standard output."""
    try:
        decode(sys.stdin.buffer.read())
        code, message = offline.check(config, dict(os.environ), workers=True)  # without workers there is no upgrade
        if code:
            raise ConfigError(message.removeprefix("error: "))
        spec = load(config, dict(os.environ), installed().schemas()).spec
        asyncio.run(could_start(spec, os.environ, installed()))
        sharing = spec.model_sharing.listen or ""
        found = Checked(version=release(), listen=spec.listen, state_dir=spec.state_dir, sharing=sharing, keeps_lock=True)
    except GatehouseError as error:
        found = Checked(reason=one_line(str(error)))
    sys.stdout.buffer.write(msgspec.json.encode(found) + b"\n")
    return 0


async def ask(command: Sequence[str], config: Path, environ: Mapping[str, str], handed: HandOver) -> Checked:
    """Runs the check. command: how the program is started. Raises UpgradeRefused with the reason."""
    arguments = [*command, ARGUMENT, str(config)]
    try:
        pipe = subprocess.PIPE
        process = subprocess.Popen(arguments, stdin=pipe, stdout=pipe, stderr=pipe, env=dict(environ), start_new_session=True)
    except OSError as error:
        raise UpgradeRefused(f"The program cannot be started: {command[0]}: {error.strerror}.", code="upgrade_check_failed") from None
    over = False
    try:
        out, errors = await asyncio.to_thread(process.communicate, encode(handed), SECONDS)
        over = True
    except subprocess.TimeoutExpired:
        await _end(process)
        over = True
        for one in (process.stdin, process.stdout, process.stderr):
            if one is not None:
                one.close()
        raise UpgradeRefused(f"The check of the new program took longer than {SECONDS:.0f} s.", code="upgrade_check_failed") from None
    finally:
        if not over:
            await _end(process)
    return read(process.returncode, out, errors)


async def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a check with all that it has started: where the program is a script, what hangs and holds the pipes may not be the script."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        await asyncio.to_thread(process.wait, END_SECONDS)


def read(code: int, out: bytes, errors: bytes) -> Checked:
    """The answer in the output of a check. Raises UpgradeRefused."""
    try:
        found = msgspec.json.decode(out.rpartition(b"\n")[0].rpartition(b"\n")[2], type=Checked)
    except msgspec.MsgspecError:
        said = one_line(errors.decode("utf-8", "replace").strip().rpartition("\n")[2][-REASON_BYTES:]) or "it said nothing"
        raise UpgradeRefused(f"The new program does not start (exit code {code}): {said}", code="upgrade_check_failed") from None
    if found.reason:
        raise UpgradeRefused(f"The new program would not start: {found.reason}", code="upgrade_check_failed")
    if found.sharing is None:  # the schema of all that do not look is an older one
        raise UpgradeRefused(
            f"The new program would not start: it is a build from before the store's schema {HEAD}, and cannot use it; restore a backup "
            "from before the upgrade first.",
            code="upgrade_check_failed",
        )
    return found
