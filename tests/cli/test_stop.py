"""A signal ends a command wherever it comes."""

import signal
import sys
import time
import weakref

import pytest

from nmt.cli.begin import Stop


class _Interrupted:
    """What a signal comes in the destructor of."""

    def __del__(self):
        signal.raise_signal(signal.SIGTERM)


def _in_a_destructor():
    _Interrupted()


def _in_what_a_weak_reference_calls():
    class Something:
        pass

    something = Something()
    reference = weakref.ref(something, lambda _: signal.raise_signal(signal.SIGTERM))
    del something
    assert reference() is None


@pytest.mark.parametrize("come", [_in_a_destructor, _in_what_a_weak_reference_calls])
def test_a_signal_where_nothing_can_be_raised_comes_again(come, capfd):
    before = sys.unraisablehook
    with pytest.raises(SystemExit) as raised, Stop(("SIGTERM",)):
        come()
        time.sleep(10)
    assert raised.value.code == 128 + signal.SIGTERM
    assert capfd.readouterr().err == ""
    assert sys.unraisablehook is before


def test_what_else_python_ignores_is_told_as_ever(monkeypatch):
    told = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: told.append(what.exc_type))

    class Broken:
        def __del__(self):
            raise ValueError

    with Stop(("SIGTERM",)):
        Broken()
    assert told == [ValueError]
