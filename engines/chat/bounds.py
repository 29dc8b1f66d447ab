"""A bound of the time that a chat template may take: a template is a program that came with the model, and must not hold a thread.

Each turn of a loop, each macro and each filter or test of `map`, `select` and the like looks at the clock. One step of Python's own is not
interrupted.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final

from jinja2 import nodes
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engines.sidecar.shell import ApiError

MOST_SECONDS: Final = 5.0
"""Of processor time for one prompt."""
MOST_CHARS: Final = 16 * 1024 * 1024
"""Of a prompt, and of a text or a list that is repeated (`*`)."""
MOST_BITS: Final = 1 << 16
_monotonic: Final = time.monotonic


class _Here(threading.local):
    """What the render in this thread may still use. began: the thread's processor time; until: when that is looked at again."""

    began = 0.0
    seconds = MOST_SECONDS
    until = float("inf")


_here: Final = _Here()


@contextmanager
def bounded(seconds: float = MOST_SECONDS) -> Generator[None]:
    """What is rendered within, in this thread, has so much processor time. Raises ApiError 400 when it is up."""
    _here.began, _here.seconds = time.thread_time(), seconds
    _here.until = _monotonic() + seconds
    try:
        yield
    finally:
        _here.until = float("inf")


def _late() -> None:
    """Processor time counts: a busy machine is no fault of the template."""
    left = _here.seconds - (time.thread_time() - _here.began)
    if left <= 0:
        raise _exceeded(f"takes more than {_here.seconds:g} s of processor time for these messages")
    _here.until = _monotonic() + left


def _exceeded(what: str) -> ApiError:
    return ApiError(400, f"the model's chat template {what}", param="messages", code="chat_template_failed")


class BoundedSandbox(ImmutableSandboxedEnvironment):
    """The sandbox of chat templates. Kimi's collect messages in lists of their own: a request's messages are copies, and what a template
    adds, it alone sees."""

    intercepted_binops = frozenset(("*", "**"))

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        del self.globals["lipsum"]  # text by chance, as long as one likes: nothing of a prompt

    @property
    def tick(self) -> None:
        """A step: named at the head of each loop and macro."""
        if _monotonic() > _here.until:
            _late()

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        steps: list[nodes.For | nodes.Macro | nodes.CallBlock] = [
            *tree.find_all(nodes.For), *tree.find_all(nodes.Macro), *tree.find_all(nodes.CallBlock)
        ]  # fmt: skip
        for step in steps:
            step.body.insert(0, nodes.ExprStmt(nodes.EnvironmentAttribute("tick"), lineno=step.lineno))
        return tree

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Also `append` and `pop` of lists."""
        return (type(obj) is list and attr in ("append", "pop")) or super().is_safe_attribute(obj, attr, value)

    def call_filter(self, *arguments: Any, **named: Any) -> Any:
        """Of `map` and the like, for each element."""
        _ = self.tick
        return super().call_filter(*arguments, **named)

    def call_test(self, *arguments: Any, **named: Any) -> Any:
        """Of `select` and the like, for each element."""
        _ = self.tick
        return super().call_test(*arguments, **named)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """`*` and `**`: what they make is bounded."""
        if isinstance(left, int) and isinstance(right, int):
            bits = abs(left).bit_length() * abs(right) if operator == "**" else abs(left).bit_length() + abs(right).bit_length()
            if bits > MOST_BITS:
                raise _exceeded("makes a number that is too large")
        elif operator == "*":
            for many, times in ((left, right), (right, left)):
                if isinstance(many, str | bytes | list | tuple) and isinstance(times, int) and len(many) * times > MOST_CHARS:
                    raise _exceeded(f"repeats something to more than {MOST_CHARS} characters or elements")
        return self.binop_table[operator](left, right)
