"""What the patterns of settings mean, in words for people: errors of the configuration and of the admin API end with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_BEGINNING: Final = "beginning with a letter or digit"
_NAME: Final = f"1 to 128 letters, digits, '.', '_', ':', '/' or '-', {_BEGINNING}"
_PATTERN_OF_NAMES: Final = "1 to 128 letters, digits or any of '._:/-', with * for any text"
_FILE: Final = "letters, digits, '.', '_' or '-'"
_ADDRESS: Final = "an address with a port, HOST:PORT or [IPv6]:PORT"
_BUCKET: Final = "the name of a bucket: 3 to 63 lower-case letters, digits, '.' or '-'"
_DAY: Final = "a day such as 2026-01-31"

WORDS: Final[Mapping[str, str]] = {
    # names
    r"^[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}$": _NAME,
    r"^[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}([~@][A-Za-z0-9.:\[\]_-]{1,300})?$": _NAME,
    r"^[A-Za-z0-9%][A-Za-z0-9._:/@%-]{0,200}@[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}$": "a name and its tenant, NAME@TENANT",
    r"^[A-Za-z0-9][A-Za-z0-9._-]{0,119}$": f"1 to 120 letters, digits or any of '._-', {_BEGINNING}",
    r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$": f"1 to 64 letters, digits or any of '._-', {_BEGINNING}",
    r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$": f"1 to 128 letters, digits or any of '._-', {_BEGINNING}",
    r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,127}$": f"1 to 128 letters, digits or any of '._/-', {_BEGINNING}",
    r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,63}$": f"1 to 64 letters, digits, '.', '_', ':' or '-', {_BEGINNING}",
    r"^[A-Za-z0-9._-]{1,128}$": "1 to 128 letters, digits or any of '._-'",
    r"^[A-Za-z0-9._-]{1,64}$": "1 to 64 letters, digits or any of '._-'",
    r"^[A-Za-z0-9._-]{1,100}$": "1 to 100 letters, digits or any of '._-'",
    r"^[A-Za-z0-9._-]{1,249}$": "1 to 249 letters, digits or any of '._-'",
    r"^[a-z][a-z0-9_-]{0,31}$": "1 to 32 lower-case letters, digits, '_' or '-', beginning with a letter",
    r"^([a-z0-9][a-z0-9_-]{0,62})?$": "empty, or 1 to 63 lower-case letters, digits, '_' or '-', beginning with a letter or digit",
    r"^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$": "1 to 32 lower-case letters, digits or '-', beginning and ending with a letter or digit",
    r"^[A-Za-z_][A-Za-z0-9_]{0,127}$": "the name of an environment variable",
    r"^[A-Za-z_][A-Za-z0-9_]*$": "the name of an environment variable",
    # patterns of names
    r"^[A-Za-z0-9._:/*-]{1,128}$": _PATTERN_OF_NAMES,
    r"^[A-Za-z0-9*._:/-]{1,128}$": _PATTERN_OF_NAMES,
    r"^[a-z0-9*-]{1,63}$": "1 to 63 lower-case letters, digits or '-', with * for any text",
    r"^[a-z0-9_.*]{1,64}$": "the name of an event, such as budget_used, with * for any text",
    # files, paths and addresses
    r"^[A-Za-z0-9][A-Za-z0-9._-]{0,114}\.gguf$": f"NAME.gguf, where NAME is {_FILE}",
    r"^[A-Za-z0-9][A-Za-z0-9._-]{0,119}(/[A-Za-z0-9][A-Za-z0-9._-]{0,119}){0,3}$": f"up to four names of {_FILE}, with '/' between",
    r"^(/[^\0]{1,1000})?$": "an absolute path, or empty",
    r"^/": "an absolute path",
    r"^/.": "an absolute path",
    r"^/.*\.prom$": "an absolute path that ends with .prom",
    r"^(\*\.)?[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$": "a host name in lower case, or *. and a domain",
    r"^/[!-~]*$": "a path such as /health, without spaces",
    r"^[A-Za-z0-9][A-Za-z0-9._-]{0,250}\.gguf$": f"NAME.gguf, where NAME is {_FILE}",
    r"^(:[0-9]{1,5})?/[!-~]{0,256}$": "a path such as /metrics, or a port and a path such as :8002/metrics",
    r"^([A-Za-z0-9!_.*'()-]+/)*$": "empty, or folders that end with '/', such as prod/audit/",
    r"^([A-Za-z0-9_-][A-Za-z0-9._-]*/)*$": "empty, or folders that end with '/', such as prod/models/",
    r"^(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+):\d{1,5}$": _ADDRESS,
    r"^([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]):[0-9]{1,5}$": _ADDRESS,
    r"^[!-~]{0,255}$": "a host name of up to 255 characters, without spaces",
    r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$": _BUCKET,
    # devices
    r"^(cpu|metal|(cuda|rocm|vulkan):\d+(,\d+)*)$": "cpu, metal, cuda:N, rocm:N or vulkan:N",
    r"^(cpu|metal|(rocm|vulkan):\d+(,\d+)*|cuda:(\d+|(GPU|MIG)-[0-9a-fA-F-]{8,64})(,(\d+|(GPU|MIG)-[0-9a-fA-F-]{8,64}))*)$": (
        "cpu, metal, cuda:N or cuda:UUID, rocm:N or vulkan:N"
    ),
    r"^(cpu|cuda|cuda:\d{1,2}(,\d{1,2}){0,15})$": "cpu, cuda or cuda:N",
    # choices
    r"^(user|group|role|key)/[^\s].{0,254}$": "user/NAME, group/NAME, role/NAME or key/ID",
    r"^[a-z]{2,3}$": "a language in two or three letters, such as en",
    r"^(prefix|session|tenant|key|header:[A-Za-z0-9-]+)$": "prefix, session, tenant, key or header:NAME",
    r"^(request|prefix|session|tenant|key|header:[A-Za-z0-9-]+)$": "request, prefix, session, tenant, key or header:NAME",
    r"^[a-z][a-z0-9_]{0,63}(:[!-~]{1,128})?$": "a type of tool such as web_search, or TYPE:NAME for one server or function",
    r"^(all|(key|agent|user|tenant|model)/[^\x00-\x20\x7f-\xa0]([^\x00-\x1f\x7f-\x9f]{0,254}[^\x00-\x20\x7f-\xa0])?)$": (
        "all, or one of key/ID, agent/ID, user/NAME, user/NAME@TENANT, tenant/ID and model/NAME"
    ),
    r"^(tenant|key|user|agent|model|operation|currency|day)(,(tenant|key|user|agent|model|operation|currency|day)){0,7}$": (
        "any of tenant, key, user, agent, model, operation, currency and day, separated by commas"
    ),
    # money and times
    r"^(tokens|requests|[a-z]{3})$": "tokens, requests, or a currency in three lower-case letters, such as usd",
    r"^[A-Za-z]{3}$": "a currency in three letters, such as usd",
    r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$": _DAY,
    r"^[1-9][0-9]{3}-(0[1-9]|1[0-2])$": "a month such as 2026-01",
    r"^\d{4}-\d{2}-\d{2}(T\d{2}:\d{2}(:\d{2})?(Z|[+-]\d{2}:\d{2}))?$": f"{_DAY}, or a time such as 2026-01-31T09:00Z",
    # digests, keys and cursors
    r"^[0-9a-f]{64}$": "a SHA-256 in 64 lower-case hexadecimal digits",
    r"^[0-9a-fA-F]{64}$": "a SHA-256 in 64 hexadecimal digits",
    r"^[0-9a-f]{16}$": "16 lower-case hexadecimal digits",
    r"^(file:[A-Za-z0-9._:/-]{0,255}|store:[A-Za-z0-9_-]{0,2000})$": "the cursor of the previous page",
    r"^[A-Za-z0-9_-]{1,4000}$": "the cursor of the previous page",
    r"^[A-Za-z0-9_-]{1,100}$": "the cursor of the previous page",
}
"""What a text must be that matches a pattern, as the end of "it must be"."""


def words(pattern: str) -> str:
    """What a text must be to match the pattern: in words, or else the pattern itself."""
    return WORDS.get(pattern) or f"a text that matches {pattern}"
