"""What a chat template may cost: a template is a program that came with the model, and must neither hold a thread nor fill the memory.

Each turn of a loop, each call, each assignment that may make something longer, and each filter or test of `map`, `select` and the like
looks at the clock; every few milliseconds that look is one at the processor time and at the memory of the process, too. One step of
Python's own is not interrupted: the sandbox (engines.chat.sandbox) sees to it that none makes much of little, and that nothing is held so
often, within lists of lists, that to write it out would not end.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from gc import get_referents
from sys import getsizeof
from typing import Any, Final, NoReturn

from jinja2.filters import _GroupTuple

from engines.sidecar.shell import ApiError

MOST_SECONDS: Final = 5.0
"""The most processor time for one prompt."""
LOOK_SECONDS: Final = 0.004
"""Between two looks at processor time and memory."""
MOST_CHARS: Final = 16 * 1024 * 1024
"""The longest prompt, and the longest text that a template keeps or that one step makes of shorter ones."""
MOST_ELEMENTS: Final = 64 * 1024
"""The most elements of a repeated list, and the most that a filter may be asked to make."""
MOST_HELD: Final = 64 * 1024 * 1024
"""The most bytes of a list or an object that a template makes. What it holds counts each time that it is held."""
MOST_GROWTH: Final = 512 * 1024 * 1024
"""The most bytes by which the process may grow while a template is rendered. Nothing else grows by so much in so short a time."""
MOST_BITS: Final = 1 << 16
_HOLDERS: Final = frozenset((list, tuple, dict, _GroupTuple, type({}.keys()), type({}.values()), type({}.items())))
_monotonic: Final = time.monotonic


class _Here(threading.local):
    """What the render in this thread may still use. began: the thread's processor time; until: when that is looked at again; memory: of the
    process, when it was first looked at; appended: bytes put into lists one by one; known: the list that `+` made last, and its weight."""

    began = 0.0
    seconds = MOST_SECONDS
    until = float("inf")
    memory: int | None = None
    appended = 0
    known: tuple[list[Any], int] | None = None


_here: Final = _Here()


@contextmanager
def bounded(seconds: float = MOST_SECONDS) -> Generator[None]:
    """What is rendered within, in this thread, has so much processor time, and the memory above. Raises ApiError 400 beyond."""
    _here.began, _here.seconds, _here.memory, _here.appended = time.thread_time(), seconds, None, 0
    _here.until = _monotonic() + min(seconds, LOOK_SECONDS)
    try:
        yield
    finally:
        _here.until, _here.known = float("inf"), None


def exceeded(what: str) -> NoReturn:
    raise ApiError(400, f"the model's chat template {what}", param="messages", code="chat_template_failed")


def tick() -> None:
    """A step is taken. Raises ApiError 400 when the time is up, or the process has grown too much."""
    if _monotonic() > _here.until:
        _look()


def _look() -> None:
    """Processor time counts: a busy machine is no fault of the template."""
    left = _here.seconds - (time.thread_time() - _here.began)
    if left <= 0:
        exceeded(f"takes more than {_here.seconds:g} s of processor time for these messages")
    memory = _memory()
    if _here.memory is None:
        _here.memory = memory
    elif memory - _here.memory > MOST_GROWTH:
        exceeded(f"takes more than {MOST_GROWTH >> 20} MiB of memory for these messages")
    _here.until = _monotonic() + min(left, LOOK_SECONDS)


def _memory() -> int:
    """Bytes of the process's memory that are not files' (proc_pid_statm(5)); 0 where the system does not tell."""
    try:
        with open("/proc/self/statm", "rb") as file:
            _size, resident, shared, *_ = map(int, file.read().split())
    except (OSError, ValueError):
        return 0
    return (resident - shared) * 4096


def made(size: int) -> None:
    """A text of so many characters is about to be made in one step."""
    if size > MOST_CHARS:
        exceeded(f"makes a text of more than {MOST_CHARS} characters")


def kept(value: Any) -> Any:
    """What a variable is set to: a step is taken, and a text is bounded."""
    if _monotonic() > _here.until:
        _look()
    if isinstance(value, str | bytes) and len(value) > MOST_CHARS:
        made(len(value))
    return value


def joined(parts: Iterable[Any]) -> str:
    """Texts that a template puts together: what macros and blocks write, and long `~`."""
    tick()
    texts = [part if isinstance(part, str) else str(part) for part in parts]
    made(sum(map(len, texts)))
    return "".join(texts)


def weigh(value: Any) -> int:
    """Bytes of a value with all that it holds, as often as it does: about what it takes to write it out. Raises ApiError 400 beyond
    MOST_HELD; lists that hold each other many times would take for ever."""
    size, layer = 0, [value]
    while layer:
        size += sum(map(getsizeof, layer))
        if size > MOST_HELD:
            exceeded(f"holds a list or an object of more than {MOST_HELD >> 20} MiB, with what is in it as often as it is")
        layer = get_referents(*[one for one in layer if type(one) in _HOLDERS])
    return size


def held(value: Any) -> Any:
    """A list or an object that a template has made."""
    if type(value) in _HOLDERS:
        weigh(value)
    return value


def appended(to: list[Any], value: Any) -> None:
    """`list.append`. All that is appended for one prompt counts."""
    _here.appended += weigh(value)
    if _here.appended > MOST_HELD:
        exceeded(f"puts more than {MOST_HELD >> 20} MiB into lists")
    to.append(value)


def added(left: Any, right: Any) -> Any:
    """The operator `+` on any two values, bounded. A list that grows bit by bit is not measured anew each time."""
    if isinstance(left, str | bytes) and isinstance(right, str | bytes):
        made(len(left) + len(right))
    if not isinstance(left, list) or not isinstance(right, list):
        return held(left + right)
    known = _here.known
    weight = (known[1] if known is not None and known[0] is left else weigh(left)) + weigh(right)
    if weight > MOST_HELD:
        exceeded(f"holds a list of more than {MOST_HELD >> 20} MiB, with what is in it as often as it is")
    result = left + right
    _here.known = (result, weight)
    return result


def multiplied(operator: str, left: Any, right: Any) -> None:
    """`*` and `**`: what they make is bounded."""
    if isinstance(left, int) and isinstance(right, int):
        bits = abs(left).bit_length() * abs(right) if operator == "**" else abs(left).bit_length() + abs(right).bit_length()
        if bits > MOST_BITS:
            exceeded("makes a number that is too large")
    elif operator == "*":
        for many, times in ((left, right), (right, left)):
            if isinstance(many, str | bytes) and isinstance(times, int):
                made(len(many) * max(0, times))
            elif isinstance(many, list | tuple) and isinstance(times, int) and times > 1:
                too_long = len(many) * times > MOST_ELEMENTS or weigh(many) * times > MOST_HELD
                if too_long:
                    exceeded(f"repeats a list to more than {MOST_ELEMENTS} elements, or {MOST_HELD >> 20} MiB")
