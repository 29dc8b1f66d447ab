"""What enters the configuration from outside its file: overrides by environment variables, and references to secrets.

`GATEHOUSE__LISTEN__DATA=0.0.0.0:8080` overrides `listen.data`; numbers pick members of lists
(`GATEHOUSE__ENGINES__0__SLOTS`). `${env:NAME}` and `${file:PATH}` inside a value are replaced by a variable or a file;
`$${` is a literal `${`. Replaced text is never shown in an error.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

from gateway.wire.yamltree import Node, Origin, join, read

PREFIX = "GATEHOUSE__"
MAX_FILE_BYTES = 64 * 1024
_IPV6 = re.compile(r"\[[0-9A-Fa-f:.]+(?:%\w+)?\]:[0-9]+")
_REFERENCE = re.compile(r"\$?\$\{[^}]*\}?")


def override(root: Node, environ: Mapping[str, str]) -> None:
    """Applies all `GATEHOUSE__...` variables to the tree, shorter paths first. Raises ConfigError naming the variable."""
    names = sorted((name for name in environ if name.startswith(PREFIX)), key=lambda name: (name.count("__"), name))
    for name in names:
        _apply(root, name, environ[name])


def _apply(root: Node, variable: str, value: str) -> None:
    origin = Origin(None, None, variable)
    segments = variable[len(PREFIX) :].lower().split("__")
    if not all(segments):
        raise origin.error("", "names no setting; write GATEHOUSE__SECTION__SETTING")
    node, path = root, ""
    for position, segment in enumerate(segments):
        last = position == len(segments) - 1
        if node.is_null:
            node.kind, node.text = "mapping", ""
            node.origin = node.origin if node is root else origin
        if node.kind == "mapping":
            key = next((known for known in node.entries if known.lower() == segment), segment)
            path = join(path, key)
            if last:
                node.entries[key] = _value(value, origin)
            elif key not in node.entries:
                node.entries[key] = Node("mapping", origin)
            else:
                node.entries[key] = _own(node.entries[key])
            node.key_origins.setdefault(key, origin)
            node = node.entries[key]
        elif node.kind == "sequence":
            index = _index(segment, node, origin, path)
            path = f"{path}[{index}]"
            node.items[index] = _value(value, origin) if last else _own(node.items[index])
            node = node.items[index]
        else:
            raise origin.error(path, f"is a plain value; there is no setting '{segment}' in it")


def _index(segment: str, node: Node, origin: Origin, path: str) -> int:
    count = len(node.items)
    if not segment.isascii() or not segment.isdigit() or len(segment) > 9 or int(segment) >= count:
        known = f"a number from 0 to {count - 1}" if count else "in the file first: the list is empty"
        raise origin.error(path, f"'{segment}' is not a member of this list; it must be {known}")
    return int(segment)


def _own(node: Node) -> Node:
    """Copies one level, so that a value used in several places (an anchor) changes in one of them only."""
    return Node(node.kind, node.origin, node.text, node.plain, node.hidden, list(node.items), dict(node.entries), dict(node.key_origins))


def _value(text: str, origin: Origin) -> Node:
    """A variable's value: lists and mappings in YAML's (JSON's) flow style, everything else as it is, IPv6 addresses with a port too."""
    if text.startswith(("[", "{")) and not _IPV6.fullmatch(text):
        return read(text, file=None, variable=origin.variable)
    return Node("scalar", origin, text=text, hidden=True)


PLACES = frozenset(("port", "socket", "model", "key", "context", "slots", "threads", "device", "state"))
"""What a command of an engine refers to with `${...}`: engines.command.options has the same names."""
_COMMAND = re.compile(r"^engines\[\d+\]\.options\.(command|environment)\b")


def resolve(node: Node, path: str, environ: Mapping[str, str], directory: Path) -> Node:
    """Replaces the references in a scalar; returns the same node if it has none. Raises ConfigError, never showing a value."""
    if "${" not in node.text:
        return node
    hidden = False

    def replace(match: re.Match[str]) -> str:
        nonlocal hidden
        written = match.group()
        if written.startswith("$$"):
            return written[1:]
        kind, separator, name = written[2:-1].partition(":")
        if written[2:-1] in PLACES and _COMMAND.search(path):
            return written  # the sidecar fills it in when it starts the command
        if not written.endswith("}") or not separator or kind not in ("env", "file") or not name:
            raise node.origin.error(path, "a reference must be ${env:NAME} or ${file:PATH}; $${ stands for a literal ${")
        hidden = True
        return _variable(name, node, path, environ) if kind == "env" else _file(name, node, path, directory)

    text = _REFERENCE.sub(replace, node.text)
    return Node("scalar", node.origin, text=text, plain=node.plain and not hidden, hidden=node.hidden or hidden)


def _variable(name: str, node: Node, path: str, environ: Mapping[str, str]) -> str:
    value = environ.get(name)
    if not value:
        raise node.origin.error(path, f"the environment variable {name} is {'not set' if value is None else 'empty'}")
    return value


def read_file(target: Path, limit: int) -> bytes | None:
    """All of a file, or at least `limit` + 1 bytes if it is longer than `limit`. Raises OSError.

    None if it is not a regular file: reading a pipe could wait for ever, and a device has no end."""
    descriptor = os.open(target, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        data = b""
        while len(data) <= limit and (piece := os.read(descriptor, limit + 1)):
            data += piece
        return data
    finally:
        os.close(descriptor)


def _file(name: str, node: Node, path: str, directory: Path) -> str:
    """The text of a file, relative to the configuration's folder, without its last line break."""
    target = directory / name
    try:
        data = read_file(target, MAX_FILE_BYTES)
    except OSError as error:
        raise node.origin.error(path, f"cannot read {target}: {error.strerror}") from None
    if data is None:
        raise node.origin.error(path, f"{target} is not a file")
    if len(data) > MAX_FILE_BYTES:
        raise node.origin.error(path, f"{target} is larger than {MAX_FILE_BYTES} bytes")
    try:
        text = data.decode("utf-8").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise node.origin.error(path, f"{target} is not UTF-8 text") from None
    if not text:
        raise node.origin.error(path, f"{target} is empty")
    return text
