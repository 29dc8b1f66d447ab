"""The collector is off while somebody asks for it, and afterwards as it was."""

from __future__ import annotations

import gc
from threading import Event, Thread

import pytest

from gateway.core.collecting import Pause


def test_it_is_off_until_the_last_thread_has_ended_its_work():
    pause, entered, go = Pause(), Event(), Event()

    def work() -> None:
        with pause():
            entered.set()
            go.wait(90)

    thread = Thread(target=work)
    with pause():
        thread.start()
        assert entered.wait(90)
    assert not gc.isenabled()
    go.set()
    thread.join(90)
    assert gc.isenabled()


def test_an_error_switches_it_on_again_and_what_was_off_stays_off():
    pause = Pause()
    with pytest.raises(ValueError), pause():
        raise ValueError
    assert gc.isenabled()
    gc.disable()
    try:
        with pause():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
