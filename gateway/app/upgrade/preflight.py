"""Whether the program that is installed now could take the place of the running one: asked of that program itself, in a process of its own.

It reads the configuration as a start would, loads everything that a start loads, and decodes what it would be handed. Nothing is changed,
written or connected; addresses that differ are bound by the running program, so that they cannot fail later.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from gateway.app import offline
from gateway.app.configuration.plugins import installed
from gateway.app.release import release
from gateway.app.upgrade.handover import HandOver, decode, encode
from gateway.config.load import load
from gateway.core.errors import ConfigError, GatehouseError, one_line
from gateway.core.specs import ListenSpec

ARGUMENT: Final = "--preflight"
SECONDS: Final = 120.0
"""How long the check may take."""
REASON_BYTES: Final = 2000


class UpgradeRefused(GatehouseError):
    """The gateway goes on as it is."""

    status = 409
    type = "invalid_request_error"
    default_code = "upgrade_refused"


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of the program that is installed now. reason: why it could not take over; empty if it could."""

    reason: str = ""
    version: str = ""
    listen: ListenSpec = ListenSpec()
    state_dir: str = ""


def answer(config: Path) -> int:
    """The check itself: what is to be handed over comes on standard input, the answer goes to standard output."""
    try:
        decode(sys.stdin.buffer.read())
        code, message = offline.check(config, dict(os.environ), workers=True)  # without workers there is no upgrade
        if code:
            raise ConfigError(message.removeprefix("error: "))
        spec = load(config, dict(os.environ), installed().schemas()).spec
        found = Checked(version=release(), listen=spec.listen, state_dir=spec.state_dir)
    except ConfigError as error:
        found = Checked(reason=one_line(str(error)))
    sys.stdout.buffer.write(msgspec.json.encode(found) + b"\n")
    return 0


async def ask(command: Sequence[str], config: Path, environ: Mapping[str, str], handed: HandOver) -> Checked:
    """Runs the check. command: how the program is started. Raises UpgradeRefused with the reason."""
    arguments = [*command, ARGUMENT, str(config)]
    try:
        process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(environ))
    except OSError as error:
        raise UpgradeRefused(f"The program cannot be started: {command[0]}: {error.strerror}.", code="upgrade_check_failed") from None
    try:
        out, errors = await asyncio.to_thread(process.communicate, encode(handed), SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        await asyncio.to_thread(process.communicate)
        raise UpgradeRefused(f"The check of the new program took longer than {SECONDS:.0f} s.", code="upgrade_check_failed") from None
    finally:
        if process.poll() is None:
            process.kill()
    return read(process.returncode, out, errors)


def read(code: int, out: bytes, errors: bytes) -> Checked:
    """The answer in the output of a check. Raises UpgradeRefused."""
    try:
        found = msgspec.json.decode(out.rpartition(b"\n")[0].rpartition(b"\n")[2], type=Checked)
    except msgspec.MsgspecError:
        said = one_line(errors.decode("utf-8", "replace").strip().rpartition("\n")[2][-REASON_BYTES:]) or "it said nothing"
        raise UpgradeRefused(f"The new program does not start (exit code {code}): {said}", code="upgrade_check_failed") from None
    if found.reason:
        raise UpgradeRefused(f"The new program would not start: {found.reason}", code="upgrade_check_failed")
    return found
