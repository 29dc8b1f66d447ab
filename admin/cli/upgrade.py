"""`gatehouse upgrade`: the installed program takes the place of the running one."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from admin.cli.client import LONG, ApiError
from admin.cli.errors import CommandError
from admin.cli.session import DryRun, Session, connected

LOOK_SECONDS = 0.25


@connected
def upgrade(
    session: Session,
    dry_run: DryRun = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until every worker has been replaced.")] = True,
    timeout: Annotated[float, typer.Option("--timeout", help="Seconds to wait.", min=1)] = 300.0,
) -> None:
    """Upgrades a gateway that runs with `serve --workers`: the program that is installed now takes over, with the file as it is now.

    No request is dropped and no stream is cut; sidecars keep running. The new program is checked first: if it would not start, nothing
    changes and the command says why.
    """
    with session.client() as client:
        before = client.get("/upgrade")["upgrades"]
    with session.client() as client, session.out.remarks.status("check the new program"):
        answer = client.post("/upgrade", timeout=LONG, dry_run=dry_run)
    if dry_run:
        session.out.remark(f"Version {answer['to']} could take over from {answer['version']}. Nothing was changed.")
    elif wait:
        with session.out.remarks.status("replace the workers"):
            answer = _finished(session, before, timeout)
    session.out.one(answer)


def _finished(session: Session, before: int, seconds: float) -> Any:
    """How the upgrade stands once it is over; an answer may fail while one program follows the other. Raises CommandError when it does not
    come to its end."""
    end = time.monotonic() + seconds
    while True:
        late, found = f"the workers were not replaced within {seconds:g} s; `gatehouse status` and the log say more", None
        try:
            with session.client() as client:
                found = client.get("/upgrade")
        except ApiError:
            raise
        except CommandError as error:
            late = f"the new program does not answer: {error}"
        if found is not None and found["state"] == "idle":
            if found["upgrades"] > before:
                return found
            raise CommandError("the new program has ended, and the gateway was started again: the log says why it ended")
        if found is not None and found.get("stuck"):
            raise CommandError(f"the old workers go on, because the new program's do not start: {found['stuck']}")
        if time.monotonic() > end:
            raise CommandError(late)
        time.sleep(LOOK_SECONDS)
