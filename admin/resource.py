"""CRUD for one kind of resource, written once: pages, filters, ETags, dry runs, differences, the file's resources beside the store's.

A resource of the configuration file is read-only (`"source": "file"`) and comes first in lists; it wins over one of the store
with the same name. A new kind is a `Collection` in a file of its own under admin/resources.
"""

from __future__ import annotations

import base64
import heapq
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Generic, Literal, TypeVar
from urllib.parse import quote

import msgspec
from msgspec import Meta

from admin import problems, values
from admin.moments import Timestamp, timestamp
from admin.operation import JSON, PREFIX, Answer, Call, NoQuery, Operation, Written
from gateway.core.durations import shown
from gateway.core.errors import NotFound, RequestError, VersionMismatch
from gateway.core.storage import Page, Resource
from gateway.core.write_set import NO_OTHERS, WriteSet

S = TypeVar("S", bound=msgspec.Struct)
T = TypeVar("T")
Source = Literal["file", "store"]
Tenant = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}$")]
Prefix = Annotated[str, Meta(max_length=255)]
Cursor = Annotated[str, Meta(pattern=r"^(file:[A-Za-z0-9._:/-]{0,255}|store:[A-Za-z0-9_-]{0,2000})$")]
Tenants = str | Sequence[str] | None
MERGE_PATCH: Final = "application/merge-patch+json"
CHANGE_TRIES: Final = 5


class Listed(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Query of a list. prefix: of the name. cursor: from the previous page."""

    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    cursor: Cursor | None = None
    prefix: Prefix = ""
    tenant: Tenant | None = None
    source: Source | None = None


class Paged(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Query of a list that has no filters. cursor: from the previous page."""

    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    cursor: Cursor | None = None


class Metadata(msgspec.Struct, kw_only=True):
    """What every resource shows beside its settings. Null for a resource of the file: version, times, who."""

    source: Source
    version: int | None = None
    created_at: Timestamp | None = None
    updated_at: Timestamp | None = None
    updated_by: str | None = None


METADATA = Metadata.__struct_fields__


class Change(msgspec.Struct):
    """One difference: the path of a setting, its value before and after (secrets masked)."""

    path: str
    # `from` is a word of the language
    before: Any = msgspec.field(name="from", default=None)
    to: Any = None


async def no_check(call: Call, settings: Any, before: dict[str, Any] | None) -> None:
    """The check of kinds whose type expresses every constraint."""


@dataclass(frozen=True)
class Collection(Generic[S]):
    """kind: as in paths, permissions and the store. settings: the body of a create and of a replacement, with `name`.

    in_file: those of the configuration in force (masked, plain values), as settings. tenant_of: the tenant that a resource belongs
    to ("" for the installation). check: raises for unacceptable settings; gets the previous settings, None for a new resource.
    on_delete: raises for a resource that is still in use.
    """

    kind: str
    singular: str
    settings: type[S]
    in_file: Callable[[dict[str, Any]], Iterable[dict[str, Any]]]
    tenant_of: Callable[[dict[str, Any]], str]
    check: Callable[[Call, S, dict[str, Any] | None], Awaitable[None]] = no_check
    on_delete: Callable[[Call, str], Awaitable[None]] | None = None

    # --- the table

    def operations(self) -> list[Operation]:
        """GET and POST on the list, GET, PUT, PATCH and DELETE on each."""
        shapes = self.shapes()
        view, page, either = shapes.view, shapes.page, (shapes.view, shapes.dry_run)
        one = f"{self.kind}/{{name}}"
        return [
            Operation("GET", self.kind, f"{self.kind}:read", f"List {self.kind}", self.pages, page, query=Listed),
            Operation(
                "POST",
                self.kind,
                f"{self.kind}:create",
                f"Create a {self.singular}",
                self.create,
                either,
                query=Written,
                body=self.settings,
                status=201,
                creates=True,
            ),
            Operation("GET", one, f"{self.kind}:read", f"Show a {self.singular}", self.show, view, query=NoQuery),
            Operation(
                "PUT",
                one,
                f"{self.kind}:update",
                f"Replace a {self.singular}",
                self.replace,
                either,
                query=Written,
                body=self.settings,
                conditional=True,
            ),
            Operation(
                "PATCH",
                one,
                f"{self.kind}:update",
                f"Change a {self.singular}",
                self.patch,
                either,
                query=Written,
                body=patch_of(self.settings),
                accepts=(JSON, MERGE_PATCH),
                conditional=True,
            ),
            Operation(
                "DELETE", one, f"{self.kind}:delete", f"Delete a {self.singular}", self.delete, either, query=Written, conditional=True
            ),
        ]

    def shapes(self) -> Shapes:
        return shapes_of(self.settings)

    # --- reading

    async def pages(self, call: Call) -> Answer:
        query: Listed = call.query
        tenants = scope(call, f"{self.kind}:read", query.tenant)

        async def stored(limit: int, cursor: str | None) -> Page[Resource]:
            found = await call.store.list(self.kind, tenant=tenants, prefix=query.prefix, limit=limit, cursor=cursor)
            await self.prepare(call, [one.name for one in found.items])
            return found

        async def from_file(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
            await self.prepare(call, [str(body["name"]) for body in found])
            return [self.file_view(call, body) for body in found]

        mine = [body for body in self._in_file(call) if within(self.tenant_of(body), tenants)]
        return await listing(call, query, mine, stored, lambda found: self.view(call, found), file_views=from_file)

    async def show(self, call: Call) -> Answer:
        view = await self._found(call, f"{self.kind}:read")
        return Answer(view, version=tag(view))

    async def prepare(self, call: Call, names: Sequence[str]) -> None:
        """Fetches what `view` needs to show the resources of these names, besides themselves."""

    def in_force_from_file(self, call: Call, name: str) -> bool:
        """Whether the configuration file has one of this name, which would override the store's."""
        return any(body["name"] == name for body in self._in_file(call))

    def _in_file(self, call: Call) -> list[dict[str, Any]]:
        return sorted(self.in_file(call.ports.config.current()), key=lambda body: str(body["name"]))

    async def _found(self, call: Call, permission: str) -> dict[str, Any]:
        """One resource as shown. Raises NotFound also when the caller may not see it."""
        name = call.path["name"]
        for body in self._in_file(call):
            if body["name"] == name:
                await self.prepare(call, [name])
                call.seen(permission, self.tenant_of(body), self.singular, name)
                return self.file_view(call, body)
        if call.ports.store is None:
            raise NotFound(f"There is no {self.singular} {name!r}.")
        resource = await call.store.get(self.kind, name)
        call.seen(permission, resource.tenant, self.singular, name)
        await self.prepare(call, [name])
        return self.view(call, resource)

    def view(self, call: Call, resource: Resource) -> dict[str, Any]:
        """One of the store, as shown."""
        body = self.plain(resource)
        return {
            **body,
            "source": "store",
            "version": resource.version,
            "created_at": timestamp(resource.created),
            "updated_at": timestamp(resource.updated),
            "updated_by": resource.actor,
        }

    def plain(self, resource: Resource) -> dict[str, Any]:
        """Its settings, secrets masked, durations as texts."""
        body: dict[str, Any] = shown(values.mask({"name": resource.name, **resource.body}), self.settings)
        return body

    def decided(self, resource: Resource) -> dict[str, Any]:
        """What of it are settings, which a patch is merged with."""
        return {"name": resource.name, **resource.body}

    def diff(self, before: dict[str, Any] | None, after: dict[str, Any] | None) -> list[dict[str, Any]]:
        """The differences, durations as texts."""
        return values.diff(shown(before, self.settings), shown(after, self.settings))

    def file_view(self, call: Call, body: dict[str, Any]) -> dict[str, Any]:
        """One of the file; `body` is already masked."""
        return {**body, **dict.fromkeys(METADATA), "source": "file"}

    # --- writing

    async def create(self, call: Call) -> Answer:
        settings: S = call.body
        body = msgspec.to_builtins(settings)
        name, tenant = str(body["name"]), self.tenant_of(body)
        call.target = f"{self.kind}/{name}"
        call.require(f"{self.kind}:create", tenant)
        self._refuse_file(call, name)
        body = await self.checked(call, settings, body, None)
        needs = self.needs(call, body)
        made = await call.store.create(self.kind, name, body, actor=call.actor, tenant=tenant, dry_run=call.dry_run, needs=needs)
        call.diff = self.diff(None, body)
        await self.prepare(call, [name])
        view = self.view(call, made)
        return written(call, view, status=201, location=location(self.kind, name))

    async def replace(self, call: Call) -> Answer:
        call.target = f"{self.kind}/{call.path['name']}"
        return await self._update(call, call.body, await self._writable(call, "update"), call.expected())

    async def patch(self, call: Call) -> Answer:
        """A merge patch (RFC 7396): what it does not name stays, secrets too; null restores the default."""
        call.target = f"{self.kind}/{call.path['name']}"
        expected = call.expected()
        return await (anew(lambda: self._patch(call, None)) if expected is None else self._patch(call, expected))

    async def _patch(self, call: Call, expected: int | None) -> Answer:
        before = await self._writable(call, "update")
        if expected is None:
            expected = before.version  # the version merged with must still be current
        merged = values.merge_patch(self.decided(before), msgspec.json.decode(call.raw))
        return await self._update(call, values.decode(msgspec.json.encode(merged), self.settings), before, expected)

    async def _update(self, call: Call, settings: S, before: Resource, expected: int | None) -> Answer:
        body = msgspec.to_builtins(settings)
        tenant = self.tenant_of(body)
        if body["name"] != before.name:
            raise problems.simple(409, "name_mismatch", f"The body is for {body['name']!r}; names do not change.", param="name")
        call.require(f"{self.kind}:update", tenant)
        body = await self.checked(call, settings, body, before.body)
        made = await call.store.update(
            self.kind,
            before.name,
            body,
            actor=call.actor,
            version=expected,
            tenant=tenant,
            dry_run=call.dry_run,
            needs=self.needs(call, body),
        )
        call.diff = self.diff(before.body, body)
        await self.prepare(call, [made.name])
        return written(call, self.view(call, made))

    async def delete(self, call: Call) -> Answer:
        name = call.path["name"]
        call.target = f"{self.kind}/{name}"
        before = await self._writable(call, "delete")
        await self.prepare(call, [name])
        if self.on_delete is not None:
            await self.on_delete(call, name)
        gone = await call.store.delete(self.kind, name, actor=call.actor, version=call.expected(), dry_run=call.dry_run)
        call.diff = self.diff(before.body, None)
        return written(call, self.view(call, gone), tagged=False)

    async def checked(self, call: Call, settings: S, body: dict[str, Any], before: dict[str, Any] | None) -> dict[str, Any]:
        """The body to store. Raises for unacceptable settings."""
        kept = self.kept(call, body, before)
        await self.examine(call, settings, before, kept)
        return kept

    def kept(self, call: Call, body: dict[str, Any], before: dict[str, Any] | None) -> dict[str, Any]:
        """The body as the store keeps it."""
        return body

    async def examine(
        self,
        call: Call,
        settings: S,
        before: dict[str, Any] | None,
        kept: dict[str, Any],
        writes: WriteSet = NO_OTHERS,
    ) -> None:
        """Raises for unacceptable settings. writes: everything that the same write
        stores and deletes, this one included."""
        await self.check(call, settings, before)

    def carried(self, sent: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
        """A resource from an applied file, completed with the secrets that the file may omit because the store has them."""
        return sent

    def needs(self, call: Call, body: dict[str, Any]) -> Sequence[tuple[str, str]]:
        """Other resources of the store (kind, name) that must be there when this one is written."""
        return ()

    async def _writable(self, call: Call, verb: str) -> Resource:
        name = call.path["name"]
        self._refuse_file(call, name)
        before = await call.store.get(self.kind, name)
        call.seen(f"{self.kind}:read", before.tenant, self.singular, name)
        call.require(f"{self.kind}:{verb}", before.tenant)
        return before

    def _refuse_file(self, call: Call, name: str) -> None:
        if self.in_force_from_file(call, name):
            raise read_only(self.singular, name)


def read_only(singular: str, name: str) -> Exception:
    return problems.simple(
        409, "read_only", f"The {singular} {name!r} is defined in the configuration file: change it there.", param="name"
    )


def scope(call: Call, permission: str, tenant: str | None) -> Tenants:
    """The tenants to list: the requested one, or all that the caller may read. Raises PermissionDenied."""
    if tenant is not None:
        call.require(permission, tenant)
        return tenant
    held = call.access.tenants(permission)
    return None if held is None else sorted(held)


def within(tenant: str, tenants: Tenants) -> bool:
    return tenants is None or (tenant == tenants if isinstance(tenants, str) else tenant in tenants)


async def anew(change: Callable[[], Awaitable[T]]) -> T:
    """A change that is made from what was there, again where somebody else has changed that meanwhile: whoever expected no version
    (If-Match) has nothing to read again. Raises VersionMismatch where that goes on."""
    for _ in range(CHANGE_TRIES - 1):
        try:
            return await change()
        except VersionMismatch as error:
            if error.current is None:  # what is refused is not the version
                raise
    return await change()


def written(
    call: Call, view: dict[str, Any], *, status: int = 200, location: str | None = None, tagged: bool = True, remember: Any = None
) -> Answer:
    """The answer to a write; for a dry run, what it would change."""
    if call.dry_run:
        return Answer({"dry_run": True, "diff": call.diff, "result": view})
    return Answer(view, status, tag(view) if tagged else None, location, remember=remember)


def location(kind: str, name: str) -> str:
    return f"{PREFIX}/{kind}/{quote(name, safe='')}"


def tag(view: dict[str, Any]) -> str | None:
    """The ETag's content: the store's version; none for a resource of the file (its version is the configuration's).

    Where `version` is a setting of the resource itself, the store's is called `revision`.
    """
    found = view.get("revision" if "revision" in view else "version")
    return None if found is None else str(found)


async def listing(
    call: Call,
    query: Any,
    mine: list[dict[str, Any]],
    stored: Callable[[int, str | None], Awaitable[Page[T]]],
    view: Callable[[T], dict[str, Any]],
    name: str = "name",
    file_views: Callable[[list[dict[str, Any]]], Awaitable[list[dict[str, Any]]]] | None = None,
) -> Answer:
    """A page of the file's resources (all in memory, by name), then the store's. The cursor says which part comes next."""
    part, _, after = (query.cursor or "file:").partition(":")
    if part not in ("file", "store"):
        raise RequestError("This cursor did not come from a page.", param="cursor")
    items: list[dict[str, Any]] = []
    if part == "file":
        rest = [] if query.source == "store" else [i for i in mine if i[name] > after and i[name].startswith(query.prefix)]
        items = rest[: query.limit] if file_views is None else await file_views(rest[: query.limit])
        if len(rest) > query.limit:
            return Answer({"items": items, "cursor": f"file:{items[-1][name]}"})
        after = ""
    room = query.limit - len(items)
    if query.source == "file" or call.ports.store is None:
        return Answer({"items": items, "cursor": None})
    if not room:
        return Answer({"items": items, "cursor": "store:"})
    page = await stored(room, after or None)
    hidden = {i[name] for i in mine}
    items += [shown for shown in (view(item) for item in page.items) if shown[name] not in hidden]
    return Answer({"items": items, "cursor": None if page.cursor is None else f"store:{page.cursor}"})


def portion(query: Any, items: Iterable[T], key: Callable[[T], str]) -> tuple[list[T], str | None]:
    """One page of a list in memory, in the order of the keys (which are unique), and the cursor of the next page."""
    after = cursor_key(query.cursor)
    found = heapq.nsmallest(query.limit + 1, (one for one in items if after is None or key(one) > after), key=key)
    return found[: query.limit], key_cursor(key(found[query.limit - 1])) if len(found) > query.limit else None


def key_cursor(last: str) -> str:
    """The cursor of the page after this key."""
    return f"store:{base64.urlsafe_b64encode(last.encode()).decode().rstrip('=')}"


def cursor_key(cursor: str | None) -> str | None:
    """The key after which a page begins. Raises RequestError."""
    if cursor is None:
        return None
    part, _, text = cursor.partition(":")
    try:
        if part == "store":
            return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True).decode()
    except ValueError:
        pass
    raise RequestError("This cursor did not come from a page.", param="cursor")


# --- types of answers, built from the types of settings


@dataclass(frozen=True)
class Shapes:
    """The types of a kind's answers, for the document. Not strict: later versions may add fields."""

    view: Any
    page: Any
    dry_run: Any


def patch_of(settings: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """The type of a merge patch: each setting may be absent; null means its default."""
    fields: list[Any] = [
        (
            f.name,
            (f.type | msgspec.UnsetType) if f.required else (f.type | None | msgspec.UnsetType),
            msgspec.field(default=msgspec.UNSET, name=f.encode_name),
        )
        for f in msgspec.structs.fields(settings)
    ]
    name = settings.__name__.removesuffix("Settings").removesuffix("Spec")
    return msgspec.defstruct(f"{name}Patch", fields, forbid_unknown_fields=True, frozen=True, kw_only=True, module=__name__)


def shapes_of(settings: type[msgspec.Struct], metadata: type[msgspec.Struct] = Metadata) -> Shapes:
    """The settings with the metadata; a page of them; a dry run's answer."""
    name = settings.__name__.removesuffix("Settings").removesuffix("Spec")
    fields: list[Any] = [
        (f.name, f.type) if f.required else (f.name, f.type, msgspec.field(default=None, name=f.encode_name))
        for f in msgspec.structs.fields(settings)
    ]
    return shapes_for(name, msgspec.defstruct(f"{name}View", fields, bases=(metadata,), kw_only=True, module=__name__))


def shapes_for(name: str, view: Any) -> Shapes:
    """The same for a handwritten type."""
    page: list[Any] = [("items", Annotated[tuple[view, ...], Meta(max_length=1000)]), ("cursor", str | None)]
    dry_run: list[Any] = [("dry_run", bool), ("diff", tuple[Change, ...]), ("result", view)]
    return Shapes(
        view, msgspec.defstruct(f"{name}Page", page, module=__name__), msgspec.defstruct(f"{name}DryRun", dry_run, module=__name__)
    )
