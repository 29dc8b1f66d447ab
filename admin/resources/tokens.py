"""Gateway tokens: the keys that they are signed with, and what of all tokens is revoked."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from admin.moments import Moment, Timestamp, timestamp
from admin.operation import Answer, Call, Operation, Written
from admin.ports import RevocationControl, TokenControl
from admin.resource import Cursor, location, written
from gateway.core.errors import RequestError, StoreUnavailable
from gateway.core.storage import Resource


class TokenKeyView(msgspec.Struct, kw_only=True):
    """id: the `kid`. state: `next` signs from `signs_from` on; `signing`; `former` tokens still count."""

    id: str
    state: Literal["next", "signing", "former"]
    created_at: Timestamp
    signs_from: Timestamp


class TokenKeyPage(msgspec.Struct):
    items: list[TokenKeyView]
    cursor: str | None = None


class TokenKeyDryRun(msgspec.Struct):
    result: TokenKeyPage
    diff: list[dict[str, Any]]
    dry_run: bool = True


class Rotation(Written, forbid_unknown_fields=True, kw_only=True):
    """after: seconds until the new key signs. Whoever verifies tokens must know it by then."""

    after: Annotated[float, Meta(ge=0, le=86400)] = 300.0


class RevocationSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """type: `token` (by `issuer` and `value`, its `jti`), `subject` (by `issuer` and `value`), `issuer` (all its tokens) or `all`.

    before: all but the first refuse what was issued until then; by default until now. expires_at: when it is not needed any more; by
    default once all such tokens have expired. issuer: as `iss` has it; of logins by name and password, the directory's name.
    """

    type: Literal["token", "subject", "issuer", "all"]
    issuer: Annotated[str, Meta(max_length=512)] = ""
    value: Annotated[str, Meta(max_length=512)] = ""
    before: Moment | None = None
    expires_at: Moment | None = None
    reason: Annotated[str, Meta(max_length=1024)] = ""


class RevocationView(msgspec.Struct, kw_only=True):
    id: str
    type: str
    issuer: str
    value: str
    before: Timestamp
    expires_at: Timestamp
    reason: str
    created_at: Timestamp
    created_by: str


class RevocationPage(msgspec.Struct):
    items: list[RevocationView]
    cursor: str | None = None


class RevocationDryRun(msgspec.Struct):
    result: RevocationView
    diff: list[dict[str, Any]]
    dry_run: bool = True


class Paged(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """cursor: from the previous page."""

    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    cursor: Cursor | None = None


# --- keys


async def keys(call: Call) -> Answer:
    return Answer(_keys(_tokens(call).views()))


async def rotate(call: Call) -> Answer:
    call.target = "token-keys"
    found = await _tokens(call).rotate(call.query.after, call.actor, dry_run=call.dry_run)
    return _changed(call, found, 201)


async def withdraw(call: Call) -> Answer:
    """Refuses all tokens of the key at once."""
    kid = call.path["id"]
    call.target = f"token-keys/{kid}"
    found = await _tokens(call).withdraw(kid, call.actor, dry_run=call.dry_run)
    call.diff = [{"path": "id", "from": kid, "to": None}]
    return _changed(call, found, 200)


def _changed(call: Call, found: list[dict[str, Any]], status: int) -> Answer:
    page = _keys(found)
    if call.dry_run:
        return Answer({"dry_run": True, "diff": call.diff, "result": page})
    return Answer(page, status, location=location("token-keys", "") if status == 201 else None)


def _keys(found: list[dict[str, Any]]) -> dict[str, Any]:
    items = [
        {"id": key["id"], "state": key["state"], "created_at": timestamp(key["created"]), "signs_from": timestamp(key["signs_from"])}
        for key in found
    ]
    return {"items": items, "cursor": None}


def _tokens(call: Call) -> TokenControl:
    if call.ports.tokens is None:
        raise StoreUnavailable("This installation has no store, so it issues no tokens.")
    return call.ports.tokens


# --- revocations


async def index(call: Call) -> Answer:
    part, _, after = (call.query.cursor or "store:").partition(":")
    if part != "store":
        raise RequestError("This cursor did not come from a page.", param="cursor")
    page = await _revocations(call).page(call.query.limit, after or None)
    return Answer({"items": [_view(one) for one in page.items], "cursor": None if page.cursor is None else f"store:{page.cursor}"})


async def show(call: Call) -> Answer:
    return Answer(_view(await _revocations(call).get(call.path["id"])))


async def revoke(call: Call) -> Answer:
    """Answers once it is in force in this process; with `?wait=`, in all of its workers."""
    wanted: RevocationSettings = call.body
    needs_value, needs_issuer = wanted.type in ("token", "subject"), wanted.type != "all"
    for name, given, needed in (("issuer", wanted.issuer, needs_issuer), ("value", wanted.value, needs_value)):
        if bool(given) != needed:
            raise RequestError(f"A revocation of the type {wanted.type!r} {'needs' if needed else 'has no'} {name}.", param=name)
        if given != given.strip() or not given.isprintable():
            raise RequestError("It has characters that a token cannot have there.", param=name)
    call.target = f"revocations/{wanted.type}"
    before, expires = wanted.before, wanted.expires_at
    if expires is not None and expires <= call.ports.clock.wall():
        raise RequestError("It would already have ended.", param="expires_at")
    if before is not None and before > call.ports.clock.wall() + 60:
        raise RequestError("It lies in the future: what will be issued cannot be revoked.", param="before")
    made = await _revocations(call).revoke(
        wanted.type, wanted.issuer, wanted.value, before, expires, wanted.reason, call.actor, dry_run=call.dry_run
    )
    view = _view(made)
    call.diff = [{"path": name, "from": None, "to": view[name]} for name in ("type", "issuer", "value", "before", "reason")]
    return written(call, view, status=201, location=location("revocations", made.name), tagged=False)


async def lift(call: Call) -> Answer:
    call.target = f"revocations/{call.path['id']}"
    gone = await _revocations(call).lift(call.path["id"], call.actor, dry_run=call.dry_run)
    view = _view(gone)
    call.diff = [{"path": name, "from": view[name], "to": None} for name in ("type", "issuer", "value")]
    return written(call, view, tagged=False)


def _view(found: Resource) -> dict[str, Any]:
    body = found.body
    return {
        "id": found.name,
        "type": body["type"],
        "issuer": body["issuer"],
        "value": body["value"],
        "before": timestamp(body["before"]),
        "expires_at": timestamp(body["expires"]),
        "reason": body.get("reason", ""),
        "created_at": timestamp(found.created),
        "created_by": found.actor,
    }


def _revocations(call: Call) -> RevocationControl:
    if call.ports.revocations is None:
        raise StoreUnavailable("This installation has no store, so nothing can be revoked.")
    return call.ports.revocations


def operations() -> list[Operation]:
    some, one = (TokenKeyPage, TokenKeyDryRun), (RevocationView, RevocationDryRun)
    return [
        Operation("GET", "token-keys", "token-keys:read", "List the keys of gateway tokens", keys, TokenKeyPage),
        Operation("POST", "token-keys", "token-keys:rotate", "Make the next key of gateway tokens", rotate, some, Rotation, status=201),
        Operation(
            "DELETE", "token-keys/{id}", "token-keys:withdraw", "Refuse all tokens of a key", withdraw, some, query=Written, finds=True
        ),
        Operation("GET", "revocations", "revocations:read", "List revoked tokens", index, RevocationPage, query=Paged),
        Operation("GET", "revocations/{id}", "revocations:read", "Show a revocation", show, RevocationView),
        Operation("POST", "revocations", "revocations:create", "Revoke tokens", revoke, one, Written, RevocationSettings, 201),
        Operation("DELETE", "revocations/{id}", "revocations:delete", "Take a revocation back", lift, one, query=Written, finds=True),
    ]
