"""Resources of a file made those of the store: what is new is created, what differs replaced, nothing is deleted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from admin.cli.client import ApiError, Client, name
from admin.cli.errors import CommandError

Wanted = dict[str, list[dict[str, Any]]]
"""Resources by kind."""


def read(file: Path, kinds: Sequence[str]) -> Wanted:
    """The resources of a file, in the order of the kinds. Raises CommandError."""
    try:
        found = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise CommandError(f"{file}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise CommandError(f"{file} is not YAML: {str(error).splitlines()[0]}") from None
    if not isinstance(found, dict) or not found or any(kind not in kinds for kind in found):
        raise CommandError(f"{file} must hold a mapping with {', '.join(kinds)}")
    for kind, items in found.items():
        if not isinstance(items, list) or any(not isinstance(item, dict) or not item.get("name") for item in items):
            raise CommandError(f"{file}: {kind} must be a list of mappings with a name")
    return {kind: found[kind] for kind in kinds if kind in found}


def apply_all(client: Client, wanted: Wanted, dry_run: bool) -> list[dict[str, Any]]:
    """What was done to each: kind, name, action, diff. Raises ApiError for the first that is refused, which it names."""
    done: list[dict[str, Any]] = []
    for kind, items in wanted.items():
        for item in items:
            try:
                done.append(_apply(client, kind, item, dry_run))
            except ApiError as error:
                before = f" ({len(done)} before it were applied)" if done and not dry_run else ""
                raise ApiError(error.status, f"{kind}/{item['name']}: {error}{before}") from None
    return done


def _apply(client: Client, kind: str, item: dict[str, Any], dry_run: bool) -> dict[str, Any]:
    path = f"/{kind}/{name(str(item['name']))}"
    params = {"dry_run": "true"} if dry_run else {}
    try:
        current = client.request("GET", path)
    except ApiError as error:
        if error.status != 404:
            raise
        client.post(f"/{kind}", item, dry_run=dry_run)
        return {"kind": kind, "name": item["name"], "action": "created", "diff": []}
    planned = client.json("PUT", path, json=item, params={"dry_run": "true"})
    if planned["diff"] and not dry_run:
        client.json("PUT", path, json=item, params=params, headers={"if-match": current.headers.get("etag", "*")})
    return {"kind": kind, "name": item["name"], "action": "replaced" if planned["diff"] else "unchanged", "diff": planned["diff"]}
