"""Waiting without tasks: the hot path's own future and the driver that steps an exchange's coroutine.

An asyncio.Task with two futures costs about 10 microseconds a request. A `Signal` completes once and resumes whoever awaits
it synchronously, in the setter's stack; a `Driver` steps a coroutine that awaits Signals (and, on slow paths, asyncio
futures). Nothing here is thread-safe: other threads complete a Signal through `loop.call_soon_threadsafe`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Final, Generic, TypeAlias, TypeVar

T = TypeVar("T")

Maybe: TypeAlias = T | Awaitable[T]
"""A value, or an awaitable when it must wait; the fast path returns the value."""


class Signal(Generic[T]):
    """Completes once, with a value or an error; any number of coroutines may await it.

    Those that wait are resumed in order, synchronously, by `set` or `fail`. Completing it again does nothing. Drivers that wait are kept as
    they are, and the first one, as nearly always the only one, without a list: a callback would be an object more for each wait.
    """

    __slots__ = ("_callbacks", "_driver", "done", "error", "value")

    def __init__(self) -> None:
        self.done = False
        self.value: T | None = None
        self.error: BaseException | None = None
        self._driver: Driver | None = None
        self._callbacks: list[Driver | Callable[[], None]] | None = None

    def set(self, value: T) -> None:
        if not self.done:
            self.value = value
            self._finish()

    def fail(self, error: BaseException) -> None:
        if not self.done:
            self.error = error
            self._finish()

    def _finish(self) -> None:
        self.done = True
        driver, self._driver = self._driver, None
        if driver is not None:
            driver.step()
        callbacks = self._callbacks
        if callbacks is not None:
            callbacks.reverse()
            while callbacks:  # one of them may remove another that has not been called yet
                waiting = callbacks.pop()
                if isinstance(waiting, Driver):
                    waiting.step()
                else:
                    waiting()
            self._callbacks = None

    @property
    def awaited(self) -> bool:
        """Whether anything would be called back now."""
        return self._driver is not None or bool(self._callbacks)

    def add_callback(self, callback: Callable[[], None]) -> None:
        """Calls back once when complete, immediately if it already is. Callbacks must not raise."""
        if self.done:
            callback()
        elif self._callbacks is None:
            self._callbacks = [callback]
        else:
            self._callbacks.append(callback)

    def resume(self, driver: Driver) -> None:
        """Steps a driver once when complete; it is not complete yet."""
        if self._driver is None and not self._callbacks:
            self._driver = driver
        elif self._callbacks is None:
            self._callbacks = [driver]
        else:
            self._callbacks.append(driver)

    def forget(self, driver: Driver) -> None:
        """Does not step it any more."""
        if self._driver is driver:
            self._driver = None
        else:
            self.remove_callback(driver)

    def remove_callback(self, callback: Driver | Callable[[], None]) -> None:
        if self._callbacks and callback in self._callbacks:
            self._callbacks.remove(callback)

    def __await__(self) -> Generator[Any, Any, T]:
        return SignalWait(self)  # type: ignore[return-value]  # an iterator is all that await needs


def check(error: BaseException | None) -> None:
    """Raises the error of a failed Signal. Drops the Signal first, as the traceback will hold the frame."""
    if error is not None:
        try:
            raise error
        finally:
            error = None


class Completion:
    """Waits until a Signal is done; the caller then looks up how it ended. A third of the cost of awaiting the Signal itself.

    An iterator that ends with a value must raise StopIteration; a tuple's just ends.
    """

    __slots__ = ("_signal",)

    def __init__(self, signal: Signal[Any]) -> None:
        self._signal = signal

    def __await__(self) -> Generator[Any, Any, None]:
        return iter((self._signal,))  # type: ignore[return-value]


class SignalWait:
    """One wait for a Signal, as the iterator that `await` steps: gives the Signal out until it is done, then ends with its value or error.

    It drops the Signal before it raises: the error's traceback holds the frame, which would hold the Signal, which holds the error.
    """

    __slots__ = ("_signal",)

    def __init__(self, signal: Signal[Any]) -> None:
        self._signal: Signal[Any] | None = signal

    def __iter__(self) -> SignalWait:
        return self

    def __next__(self) -> Any:
        signal = self._signal
        if signal is None:
            raise StopIteration
        if not signal.done:
            return signal
        self._signal = None
        error, value = signal.error, signal.value
        signal = None
        if error is None:
            raise StopIteration(value)
        try:
            raise error
        finally:
            error = None


_ENDED: Final[Any] = object()
_next: Final[Any] = next
"""Compiled, a Final is one load, and the name of a builtin function an attribute of its module."""
WAITS = (Signal, asyncio.Future)
"""The types of a pending `Maybe`, for `isinstance`: looking for `__await__`, or checking the ABC, costs many times as much."""
_FUTURE: Final = asyncio.Future


def waits(value: object) -> bool:
    """`isinstance(value, WAITS)`, for where each request asks it: compiled, the class of a Signal is compared and not looked up."""
    if isinstance(value, Signal):
        return True
    return isinstance(value, _FUTURE)


def as_future(signal: Signal[T]) -> asyncio.Future[T]:
    """A future of the running loop that completes with the Signal, for code that runs in a task."""
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def done() -> None:
        if future.done():
            return
        if signal.error is not None:
            future.set_exception(signal.error)
        else:
            future.set_result(signal.value)  # type: ignore[arg-type]

    signal.add_callback(done)
    return future


class Driver:
    """Steps one coroutine to its end without a task. `start` runs it to its first wait; `cancel` throws an error into it.

    `on_done(error)` is called exactly once: with None, or with the exception that left the coroutine.
    """

    __slots__ = ("_coroutine", "_on_done", "_running", "_steps", "_thrown", "_waiting_on")

    def __init__(self, coroutine: Coroutine[Any, Any, None], on_done: Callable[[BaseException | None], None]) -> None:
        self._coroutine: Coroutine[Any, Any, None] | None = coroutine
        self._steps: Any = coroutine.__await__()
        self._on_done: Callable[[BaseException | None], None] | None = on_done
        self._waiting_on: Any = None
        self._running = False
        self._thrown: BaseException | None = None

    @property
    def done(self) -> bool:
        return self._coroutine is None

    def start(self) -> None:
        self.step()

    def cancel(self, error: BaseException) -> None:
        """Throws `error` where the coroutine waits; if it is running (this is called from inside it), at its next wait."""
        if self._coroutine is None:
            return
        if self._running:
            self._thrown = error
            return
        waiting, self._waiting_on = self._waiting_on, None
        if isinstance(waiting, Signal):
            waiting.forget(self)
        elif waiting is not None:
            waiting.remove_done_callback(self._future_done)
            waiting.cancel()
        self.step(error)

    def _future_done(self, future: asyncio.Future[Any]) -> None:
        self.step()

    def step(self, error: BaseException | None = None) -> None:
        """Goes on where the coroutine waits. error: thrown there."""
        coroutine = self._coroutine
        if coroutine is None:
            return
        self._waiting_on = None
        while True:
            self._running = True
            try:
                waiting = _next(self._steps, _ENDED) if error is None else coroutine.throw(error)
            except StopIteration:  # only after a throw: `next` gives the end as a value, which costs much less
                self._finish(None)
                return
            except BaseException as failure:  # noqa: BLE001 - boundary: the owner settles whatever left the coroutine
                self._finish(failure)
                return
            finally:
                self._running = False
            if waiting is _ENDED:
                self._finish(None)
                return
            error, self._thrown = self._thrown, None
            if error is not None:
                if not isinstance(waiting, Signal):
                    waiting.cancel()
                continue
            if isinstance(waiting, Signal):
                if waiting.done:
                    continue
                self._waiting_on = waiting
                waiting.resume(self)
            else:
                waiting._asyncio_future_blocking = False
                self._waiting_on = waiting
                waiting.add_done_callback(self._future_done)
            return

    def _finish(self, error: BaseException | None) -> None:
        self._coroutine = self._steps = None
        on_done, self._on_done = self._on_done, None
        if on_done is not None:
            on_done(error)
        if error is not None:
            cut(error)


def cut(error: BaseException) -> None:
    """Removes the tracebacks from a handled error and from the errors that caused it.

    A traceback holds frames, which hold what was waited for, which holds the error: a cycle for the collector, with all of an
    exchange on it.
    """
    found: BaseException | None = error
    while found is not None and found.__traceback__ is not None:
        found.__traceback__ = None
        found = found.__cause__ or found.__context__
