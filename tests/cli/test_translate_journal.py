"""Interrupted nmt-translate: it stops between two lines, and --output resumes to the bytes of an uninterrupted run."""

import errno
import json
import os
import signal
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from fault_process import Child
from made_run import FAST_OPTIONS

from nmt.cli.begin import Stop
from nmt.cli.translate import main
from nmt.cli.translate_job import Journal
from nmt.cli.translate_output import LineTranslator, Record
from nmt.errors import NmtError
from tests.disk import full_disk

LINES = ["the ship", "für Übung", "the ship", "", "in May", "für Übung", "the old ship left", "the ship", "left"]
SOURCE = "".join(line + "\n" for line in LINES).encode()
MADE_OF = FAST_OPTIONS
SETTINGS = {"model": "a", "decode.beam": 4}
WINDOW = ("--decode.window", 2)


@pytest.fixture(autouse=True)
def no_progress_bar(monkeypatch):
    """Messages are compared, and on a slow machine a progress bar would come between them."""
    monkeypatch.setattr("nmt.progress.EVERY", 1e9)


def records(n, n_line=10):
    return [Record([f"ü{n}"], "a", warnings=["x"], flags=["cap"])] * n_line


def read_journal(path, settings=SETTINGS):
    """Return the windows that a journal restores, and its messages."""
    messages = []
    with Journal(path, settings, messages.append) as journal:
        windows = []
        while (window := journal.take(f"digest {len(windows)}")) is not None:
            windows.append(window)
    return windows, messages


@pytest.fixture
def path(tmp_path):
    """A journal of three windows."""
    with Journal(tmp_path / "j", SETTINGS, print) as journal:
        for n in range(3):
            journal.add(f"digest {n}", records(n))
    return tmp_path / "j"


def test_damaged_journal_returns_every_window_before_the_damage(path):
    whole = path.read_bytes()
    ends = [n + 1 for n, byte in enumerate(whole) if byte == ord("\n")]
    for n_byte in range(0, len(whole), 97):
        for damaged in (whole[:n_byte], whole[:n_byte] + b"\0" * 99, whole[:n_byte] + bytes([whole[n_byte] ^ 1])):
            path.write_bytes(damaged)
            n_whole = max(0, sum(end <= n_byte for end in ends) - 1)
            assert read_journal(path)[0] == [records(n) for n in range(n_whole)]
    path.write_bytes(whole[: ends[2] + 5])
    with Journal(path, SETTINGS, print) as journal:
        assert [journal.take(f"digest {n}") for n in range(3)] == [records(0), records(1), None]
        journal.add("digest 2", records(2))
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    ("settings", "why"), [({"model": "b"}, "model"), ({"decode.beam": 1}, "decode.beam"), (None, "not a journal")]
)
def test_journal_with_other_settings_is_set_aside_and_kept(path, settings, why):
    if settings is None:
        path.write_bytes(b"what somebody wrote\n")
    before = path.read_bytes()
    windows, messages = read_journal(path, {**SETTINGS, **(settings or {})})
    assert not windows and len(messages) == 1 and why in messages[0] and "kept as j.unused" in messages[0]
    assert path.with_name("j.unused").read_bytes() == before and not path.exists()
    path.write_bytes(b"another\n")
    assert "kept as j.unused-2" in read_journal(path)[1][0] and path.with_name("j.unused").read_bytes() == before


def test_two_processes_cannot_write_the_same_output(path):
    with Journal(path, SETTINGS, print), pytest.raises(NmtError, match="in use"):
        Journal(path, SETTINGS, print)


@pytest.fixture
def files(tmp_path):
    for name in ("in", "ref"):
        (tmp_path / name).write_bytes(SOURCE)
    return tmp_path


def output_lines(files):
    return (files / "out").read_text(encoding="utf-8").split("\n")[:-1]


def on_nth_call(n, harm, otherwise):
    """Return a function that calls `harm` on its n-th call, and `otherwise` on all others."""
    count = iter(range(1, 1000))
    return lambda *args, **kwargs: (harm if next(count) == n else otherwise)(*args, **kwargs)


@pytest.fixture
def at_answer(monkeypatch):
    """Call `harm` before the n-th answer of the model; without `harm`, the answer fails."""
    real = LineTranslator.records

    def install(n=3, harm=lambda: 1 / 0):
        monkeypatch.setattr(LineTranslator, "records", on_nth_call(n, lambda *args: (harm(), real(*args))[1], real))

    return install


def all_flags(files):
    names = {"input": "in", "output": "out", "ref": "ref", "scores": "scores.json", "alignments": "links"}
    paths = [f"--{flag}={files / name}" for flag, name in names.items()]
    return [*paths, "--format", "jsonl", "--decode.n_best", "2", *map(str, WINDOW)]


def contents(files):
    return {path.name: path.read_bytes() for path in files.iterdir()}


def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)


def write_half_and_die(journal, value):
    journal._file.write(json.dumps(value).encode()[:50])
    die()


def replace_and_die(*args, replace=os.replace):
    replace(*args)
    die()


@pytest.mark.parametrize(
    ("owner", "name", "harm", "n", "n_kept"),
    [
        *[(Journal, "_write", write_half_and_die, 1, 0), (Journal, "_write", write_half_and_die, 4, 4)],
        *[(os, "replace", replace_and_die, 1, 9), (os, "replace", replace_and_die, 3, 9)],
    ],
)
def test_killed_translation_resumes_with_the_same_bytes_and_messages(
    folder, translate, files, tmp_path_factory, owner, name, harm, n, n_kept
):
    def body():
        setattr(owner, name, on_nth_call(n, harm, getattr(owner, name)))
        return main([folder, *all_flags(files)])

    log = tmp_path_factory.mktemp("talk") / "talk"
    ended = Child(body, log, {"TOKENIZERS_PARALLELISM": "false"}).go().wait()
    assert ended.code == 137, ended.output
    _, err = translate(*all_flags(files))
    found = contents(files)
    assert f"has the translations of {n_kept} lines: resuming after them" in err or not n_kept
    _, expected = translate(*all_flags(files), "--overwrite")
    assert found == contents(files)
    assert [line for line in err.split("\n") if "out.journal" not in line] == expected.split("\n")


@pytest.mark.parametrize("changed", ["input", "option", "output"])
def test_output_is_not_replaced_if_its_journal_does_not_match(translate, files, monkeypatch, changed):
    flags = ["-i", files / "in", "-o", files / "out", *WINDOW]
    with monkeypatch.context() as patch:  # killed before it could delete the journal
        patch.setattr(Path, "unlink", lambda *_: 1 / 0)
        translate(*flags, code=1)
    if changed == "output":
        (files / "out").write_bytes(b"by hand\n")
    if changed == "input":
        (files / "in").write_bytes(SOURCE.replace(b"May", b"June"))
    before = (files / "out").read_bytes()
    _, err = translate(*flags, *(["--decode.beam", 2] if changed == "option" else []), code=2)
    assert "out exists already" in err and (files / "out").read_bytes() == before


def test_translation_resumes_after_a_full_disk(translate, files):
    expected, _ = translate(*WINDOW, source=SOURCE)
    with full_disk(1_500):
        _, err = translate("-i", files / "in", "-o", files / "out", *WINDOW, code=1)
    assert "out.journal: File too large" in err and not (files / "out").exists()
    translate("-i", files / "in", "-o", files / "out", *WINDOW)
    assert output_lines(files) == expected


def test_temporary_files_of_a_killed_process_are_removed_beside_every_output(translate, files):
    names = {"output": "out", "alignments": "links", "attention": "page.html"}
    leftovers = [files / f".{name}.0123abcd.tmp" for name in names.values()]
    for path in leftovers:
        path.touch()
    translate("--input", files / "in", *(f"--{flag}={files / name}" for flag, name in names.items()))
    assert not any(path.exists() for path in leftovers) and (files / "page.html").exists()


@pytest.mark.parametrize("given", [[], ["--score", "in"]])
def test_after_a_signal_only_missing_lines_are_translated(translate, files, at_answer, monkeypatch, given):
    monkeypatch.chdir(files)
    flags = ("-o", "out", *given, *WINDOW)
    at_answer(3, lambda: os.kill(os.getpid(), signal.SIGTERM))
    _, err = translate(*flags, source=SOURCE, code=143)  # stdin works as well
    assert "out.journal keeps the translations of 4 lines; the same command resumes" in err
    assert sorted(contents(files)) == ["in", "out.journal", "ref"]
    sources, real = [], LineTranslator.records

    def recording(model, lines, *rest):
        sources.extend(line.request.source for line in lines)
        return real(model, lines, *rest)

    monkeypatch.setattr(LineTranslator, "records", recording)
    translate(*flags, source=SOURCE)
    assert sources == LINES[4:]
    expected, _ = translate(*given, *WINDOW, source=SOURCE)
    assert output_lines(files) == expected


@pytest.mark.parametrize(
    ("changed", "is_used"),
    [
        (["--decode.beam", "2"], False),
        (["--checkpoint", "model"], True),  # the same weights
        (["--format", "tsv"], False),
        (["--alignments", "links"], False),
    ],
)
def test_changed_options_start_over_with_a_message(translate, files, at_answer, monkeypatch, changed, is_used):
    monkeypatch.chdir(files)
    at_answer(3)
    translate("-i", "in", "-o", "out", *WINDOW, code=1)
    _, err = translate("-i", "in", "-o", "out", *WINDOW, *changed)
    assert ("has the translations of 4 lines" in err) == is_used
    assert (files / "out.journal.unused").exists() == ("written with another" in err) == (not is_used)


@pytest.mark.parametrize("how", ["input", "phrases"])
def test_translation_starts_over_at_the_first_changed_line(translate, files, at_answer, how):
    flags, changed = ["-i", files / "in", *WINDOW], [*LINES[:3], "something else", *LINES[4:]]
    at_answer(4)
    translate(*flags, "-o", files / "out", code=1)
    if how == "input":
        (files / "in").write_text("".join(f"{line}\n" for line in changed), "utf-8")
    else:
        flags += ["--keep", "May"]
    _, err = translate(*flags, "-o", files / "out")
    assert f"the input differs after line {2 if how == 'input' else 4}" in err
    expected, _ = translate(*flags)
    assert output_lines(files) == expected


def test_input_that_changes_during_translation_is_refused(translate, files, at_answer):
    at_answer(3, lambda: (files / "in").write_bytes(SOURCE.replace(b"ship", b"vessel")))
    _, err = translate("-i", files / "in", "-o", files / "out", *WINDOW, code=2)
    assert "in: changed while it was read" in err and not (files / "out").exists()


@pytest.mark.parametrize("name", ["out", "links"])
def test_file_created_during_translation_is_not_replaced(translate, files, at_answer, name):
    flags = ("-o", files / "out", "--alignments", files / "links", *WINDOW)
    at_answer(3, lambda: (files / name).write_bytes(b"mine"))
    _, err = translate(*flags, source=SOURCE, code=2)
    assert f"{name} exists already. Choose another name, or replace it with --overwrite." in err
    assert f"out.journal keeps the translations of {len(LINES)} lines; the same command resumes after them" in err
    assert sorted(contents(files)) == sorted(["in", "ref", name, "out.journal"])
    assert (files / name).read_bytes() == b"mine"
    (files / name).unlink()
    _, err = translate(*flags, source=SOURCE)
    assert f"has the translations of {len(LINES)} lines: resuming after them" in err
    assert sorted(contents(files)) == ["in", "links", "out", "ref"]


def test_report_error_comes_after_the_output_is_written(translate, files):
    _, err = translate("-o", files / "out", "--attention", files / "a.png", "--lines", "77", code=2)
    assert "--lines 77" in err and sorted(contents(files)) == ["in", "out", "ref"]


def test_full_disk_in_the_report_keeps_the_journal(translate, files, at_answer, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    flags = ["-i", files / "in", "-o", files / "out", "--alignments", files / "links"]
    with monkeypatch.context() as patch:
        patch.setattr("nmt.cli.translate_output.write_lines", fail)
        assert "resumes after them" in translate(*flags, code=1)[1]
    at_answer(1)  # so that it cannot translate
    translate(*flags)
    assert sorted(contents(files)) == ["in", "links", "out", "ref"]


def test_disk_without_locks_is_reported_and_used(translate, files, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", fail)
    _, err = translate("-o", files / "out")
    assert "out.journal: not locked, as its disk has no locks" in err and (files / "out").exists()


@pytest.mark.parametrize(("name", "twice"), [("SIGINT", True), ("SIGTERM", False)])
def test_signal_finishes_lines_in_progress_but_second_ctrl_c_stops_at_once(translate, at_answer, name, twice):
    expected, _ = translate("--decode.window", 1)
    number = getattr(signal, name)
    handler = signal.getsignal(number)

    def send_signal():
        for _ in range(1 + twice):
            os.kill(os.getpid(), number)
            time.sleep(0.01)

    at_answer(2, send_signal)
    assert translate("--decode.window", 1, code=128 + number)[0] == expected[: 1 if twice else 2]
    assert signal.getsignal(number) == handler


def test_command_waiting_for_input_stops_at_once(folder, tmp_path):
    source, typed = os.pipe()
    idle, waits = os.pipe()

    def body():
        os.close(idle)
        os.dup2(source, 0)
        sys.stdin = os.fdopen(0, "r", encoding="utf-8")
        finishing = Stop.finishing

        @contextmanager
        def reporting_finishing(stop, is_finishing=True):
            with finishing(stop, is_finishing):
                if not is_finishing:
                    os.write(waits, b".")
                yield

        Stop.finishing = reporting_finishing
        return main([folder])

    child = Child(body, tmp_path / "talk", {"TOKENIZERS_PARALLELISM": "false"}).go()
    os.close(waits)
    assert os.read(idle, 1)  # it waits for the first line
    os.write(typed, b"the ship\n")
    assert os.read(idle, 1)  # it waits for the second, so the first is answered
    child.send(signal.SIGTERM)
    ended = child.wait()
    os.close(typed), os.close(source), os.close(idle)
    assert ended.code == 143
    assert ended.output.count("\n") == 1 and not ended.survivors  # the answer, and no message


def test_closed_output_pipe_ends_translation_silently(folder, tmp_path):
    (tmp_path / "in").write_bytes(SOURCE * 1_000)
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
    assert (ended.code, ended.output, ended.survivors) == (141, "", [])
