"""A signal ends nmt-translate between two lines, not within one."""

import os
import signal
import sys
import time
from contextlib import contextmanager

import pytest
from fault_process import Child
from made_run import HASTY

from nmt.cli.begin import Stop
from nmt.cli.translate import main
from nmt.cli.translate_output import LineTranslator

SOURCE = b"the ship\nin May\nthe old ship\nleft\n"
MADE_OF = HASTY


@pytest.mark.parametrize(("name", "twice"), [("SIGINT", True), ("SIGTERM", False)])
def test_lines_in_work_are_finished_and_a_second_signal_does_not_wait(translate, monkeypatch, name, twice):
    wanted, _ = translate("--decode.window", 1)
    handler = signal.getsignal(getattr(signal, name))
    real, calls = LineTranslator.records, []

    def signalled(*args):
        calls.append(args)
        if len(calls) == 2:
            for _ in range(1 + twice):
                os.kill(os.getpid(), getattr(signal, name))
                time.sleep(0.01)
        return real(*args)

    monkeypatch.setattr(LineTranslator, "records", signalled)
    lines, err = translate("--decode.window", 1, code=128 + getattr(signal, name))
    assert lines == wanted[: 1 if twice else 2]
    assert "Traceback" not in err
    assert signal.getsignal(getattr(signal, name)) == handler


def test_a_command_that_waits_for_input_stops_at_once(folder, tmp_path):
    source, typed = os.pipe()
    idle, waits = os.pipe()

    def body():
        os.close(idle)
        os.dup2(source, 0)
        sys.stdin = os.fdopen(0, "r", encoding="utf-8")
        finishing = Stop.finishing

        @contextmanager
        def told(stop, wanted=True):
            with finishing(stop, wanted):
                if not wanted:
                    os.write(waits, b".")
                yield

        Stop.finishing = told
        return main([folder])

    child = Child(body, tmp_path / "talk", {"TOKENIZERS_PARALLELISM": "false"}).go()
    os.close(waits)
    assert os.read(idle, 1)  # for the first line
    os.write(typed, b"the ship\n")
    assert os.read(idle, 1)  # for the second, so the first is answered
    child.send(signal.SIGTERM)
    ended = child.wait()
    os.close(typed), os.close(source), os.close(idle)
    assert ended.code == 143
    assert ended.said.count("\n") == 1 and not ended.left  # the answer, and no word


def test_a_reader_that_goes_away_ends_it_without_a_word(folder, tmp_path):
    (tmp_path / "in").write_bytes(SOURCE * 2_000)
    reader, writer = os.pipe()

    def body():
        os.close(reader)
        os.dup2(writer, 1)
        sys.stdout = os.fdopen(1, "w", encoding="utf-8")
        return main([folder, "-i", str(tmp_path / "in"), "--decode.window", "2"])

    child = Child(body, tmp_path / "talk", {"TOKENIZERS_PARALLELISM": "false"}).go()
    os.close(writer)
    assert os.read(reader, 1)
    os.close(reader)
    ended = child.wait()
    assert (ended.code, ended.said, ended.left) == (141, "", [])


def test_a_signal_that_comes_just_before_it_waits_ends_it_too(capfd):
    with pytest.raises(SystemExit) as end, Stop() as stop, stop.finishing():
        stop.ask()
        os.kill(os.getpid(), signal.SIGTERM)
        with stop.finishing(False):
            pytest.fail("it waits for a line that may never come")
    assert end.value.code == 143
    assert "SIGTERM: stopping" in capfd.readouterr().err


def test_what_a_library_makes_of_a_signal_is_the_signal_all_the_same():
    with pytest.raises(SystemExit) as end, Stop():
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except SystemExit:
            raise ValueError("as code in C does") from None
    assert end.value.code == 130
    with pytest.raises(ValueError, match="of another kind"), Stop():
        raise ValueError("of another kind")
