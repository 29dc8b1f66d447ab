"""Shell completion of existing names: keys, tenants, models, engines and so on, asked of the gateway that the command would talk to.

The callbacks are typer's `autocompletion=`: (context, what is typed so far) to the values. A shell waits for them, so they read one
page of a list, take at most SECONDS and never fail: without an answer nothing is offered. A name that a command creates is not completed.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable
from typing import Any, Final

import typer

from admin.cli import profile as profiles
from admin.cli.client import Client
from admin.cli.session import resolve

SECONDS: Final = 0.6
"""With the start of the command, the shell waits for less than a second."""
PAGE: Final = 1000
FILES: Final = ("ca", "cert", "cert_key")
_SAFE: Final = re.compile(r"[A-Za-z0-9._:/@%+=,-]{1,255}")
"""The shells expand what they are given (zsh evaluates it), so other characters that a gateway answers with never reach them."""

Complete = Callable[[typer.Context, str], list[str]]
Fetch = Callable[[Client, str], Iterable[Any]]


def answered(context: typer.Context, fetch: Callable[[Client], Iterable[Any]]) -> list[str]:
    """The names that `fetch` found within SECONDS; none when anything goes wrong."""
    found: list[str] = []

    def ask() -> None:
        try:
            given = context.params
            where = resolve(given.get("url"), given.get("key"), given.get("profile") or profiles.DEFAULT, *map(given.get, FILES))
            with Client(where.url, where.key, tls=where.tls, holder=where.holder) as client:
                names = [name for name in fetch(client) if isinstance(name, str) and _SAFE.fullmatch(name)]
            found.extend(names)
        except Exception:  # noqa: BLE001 - boundary: a shell completes a line here; an error has no place to be shown
            return

    thread = threading.Thread(target=ask, daemon=True)  # not a timeout of httpx: looking up a host's name has none
    thread.start()
    thread.join(SECONDS)
    return sorted(set(found))


def listed(path: str, field: str = "name", *, prefix: bool = True, **params: Any) -> Complete:
    """Completes a field of a list of the admin API. prefix: whether the list can be asked for names with a beginning."""

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        wanted = {**params, **({"prefix": incomplete} if prefix and incomplete else {})}
        return answered(ctx, lambda client: (item.get(field) for item in client.get(path, **wanted)["items"]))

    return complete


def one_of(*values: str) -> Complete:
    """Completes fixed values."""

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        return list(values)

    return complete


POLICY_KINDS: Final = ("limits", "guardrails", "roles", "bindings")


def _policies(**params: Any) -> Complete:
    """Completes KIND/NAME: first the kind, then the names of that kind."""

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        kind, slash, start = incomplete.partition("/")
        if not slash:
            return [f"{known}/" for known in POLICY_KINDS]
        if kind not in POLICY_KINDS:
            return []
        wanted = {"limit": PAGE, **params, **({"prefix": start} if start else {})}
        return answered(ctx, lambda client: (f"{kind}/{item['name']}" for item in client.get(f"/{kind}", **wanted)["items"]))

    return complete


keys: Final = listed("/keys", "id", limit=PAGE)
stored_keys: Final = listed("/keys", "id", limit=PAGE, source="store")
tenants: Final = listed("/tenants", limit=PAGE)
stored_tenants: Final = listed("/tenants", limit=PAGE, source="store")
own_keys: Final = listed("/my/keys", "id", limit=PAGE)
users: Final = listed("/users", limit=PAGE)
groups: Final = listed("/groups", limit=PAGE)
roles: Final = listed("/roles", limit=PAGE)
stored_roles: Final = listed("/roles", limit=PAGE, source="store")
bindings: Final = listed("/bindings", limit=PAGE, source="store")
all_bindings: Final = listed("/bindings", limit=PAGE)
limits: Final = listed("/limits", limit=PAGE)
models: Final = listed("/models", limit=PAGE)
stored_models: Final = listed("/models", limit=PAGE, source="store")
engines: Final = listed("/engines", limit=PAGE)
stored_engines: Final = listed("/engines", limit=PAGE, source="store")
model_files: Final = listed("/model-files")
removable_files: Final = listed("/model-files", source="registry")
uploads: Final = listed("/model-uploads", "id", prefix=False)
policies: Final = _policies()
stored_policies: Final = _policies(source="store")
operations: Final = one_of(
    "chat",
    "completions",
    "embeddings",
    "rerank",
    "score",
    "classify",
    "moderations",
    "images",
    "speech",
    "transcriptions",
    "translations",
    "tokenize",
    "infer",
)
priorities: Final = one_of("interactive", "standard", "batch")
