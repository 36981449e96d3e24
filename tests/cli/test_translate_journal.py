"""nmt-translate ends between two lines, and --output goes on where it was, with the bytes of an undisturbed run."""

import json
import os
import signal
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from fault_process import Child
from made_run import HASTY

from nmt.cli.begin import Stop
from nmt.cli.translate import main
from nmt.cli.translate_job import Journal
from nmt.cli.translate_output import LineTranslator, Record
from nmt.errors import NmtError
from tests.disk import full_disk

LINES = ["the ship", "für Übung", "the ship", "", "in May", "für Übung", "the old ship left", "the ship", "left"]
SOURCE = "".join(line + "\n" for line in LINES).encode()
MADE_OF = HASTY
SETTINGS = {"model": "a", "decode.beam": 4}
WINDOW = ("--decode.window", 2)


@pytest.fixture(autouse=True)
def no_bar(monkeypatch):
    """What is said is compared, and on a slow machine a bar would get between."""
    monkeypatch.setattr("nmt.progress.EVERY", 1e9)


def records(n, n_line=10):
    return [Record([f"ü{n}"], "a", warnings=["x"], flags=["cap"])] * n_line


def known(path, settings=SETTINGS):
    """The windows that a journal gives again, and what is said."""
    said = []
    with Journal(path, settings, said.append) as journal:
        found = []
        while (window := journal.take(f"digest {len(found)}")) is not None:
            found.append(window)
    return found, said


@pytest.fixture
def path(tmp_path):
    """A journal of three windows."""
    with Journal(tmp_path / "j", SETTINGS, print) as journal:
        for n in range(3):
            journal.add(f"digest {n}", records(n))
    return tmp_path / "j"


def test_a_journal_cut_off_or_damaged_anywhere_gives_what_is_whole_before(path):
    whole = path.read_bytes()
    ends = [n + 1 for n, byte in enumerate(whole) if byte == ord("\n")]
    for n_byte in range(0, len(whole), 97):
        for damaged in (whole[:n_byte], whole[:n_byte] + b"\0" * 99, whole[:n_byte] + bytes([whole[n_byte] ^ 1])):
            path.write_bytes(damaged)
            n_whole = max(0, sum(end <= n_byte for end in ends) - 1)
            assert known(path)[0] == [records(n) for n in range(n_whole)]
    path.write_bytes(whole[: ends[2] + 5])
    with Journal(path, SETTINGS, print) as journal:
        assert [journal.take(f"digest {n}") for n in range(3)] == [records(0), records(1), None]
        journal.add("digest 2", records(2))
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    ("settings", "why"), [({"model": "b"}, "model"), ({"decode.beam": 1}, "decode.beam"), (None, "not a journal")]
)
def test_a_journal_that_does_not_fit_is_not_used_and_not_lost(path, settings, why):
    if settings is None:
        path.write_bytes(b"what somebody wrote\n")
    before = path.read_bytes()
    found, said = known(path, {**SETTINGS, **(settings or {})})
    assert not found and len(said) == 1 and why in said[0] and "kept as j.unused" in said[0]
    assert path.with_name("j.unused").read_bytes() == before and not path.exists()
    path.write_bytes(b"another\n")
    assert "kept as j.unused-2" in known(path)[1][0] and path.with_name("j.unused").read_bytes() == before


def test_two_processes_cannot_write_the_same_output(path):
    with Journal(path, SETTINGS, print), pytest.raises(NmtError, match="in use"):
        Journal(path, SETTINGS, print)


@pytest.fixture
def place(tmp_path):
    for name in ("in", "ref"):
        (tmp_path / name).write_bytes(SOURCE)
    return tmp_path


def lines_of(place):
    return (place / "out").read_text(encoding="utf-8").split("\n")[:-1]


def at(n, harm, otherwise):
    """A function that does `harm` when it is called for the n-th time."""
    count = iter(range(1, 1000))
    return lambda *args, **kwargs: (harm if next(count) == n else otherwise)(*args, **kwargs)


@pytest.fixture
def meanwhile(monkeypatch):
    """Have something done while the model answers for the n-th time, or let it fail."""
    real = LineTranslator.records

    def put(n=3, harm=lambda: 1 / 0):
        monkeypatch.setattr(LineTranslator, "records", at(n, lambda *args: (harm(), real(*args))[1], real))

    return put


def flags_of(place):
    names = {"input": "in", "output": "out", "ref": "ref", "scores": "scores.json", "alignments": "links"}
    paths = [f"--{flag}={place / name}" for flag, name in names.items()]
    return [*paths, "--format", "jsonl", "--decode.n_best", "2", *map(str, WINDOW)]


def files_of(place):
    return {path.name: path.read_bytes() for path in place.iterdir()}


def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)


def half(journal, value):
    journal._file.write(json.dumps(value).encode()[:50])
    die()


def renamed(*args, replace=os.replace):
    replace(*args)
    die()


@pytest.mark.parametrize(
    ("owner", "name", "harm", "n", "n_kept"),
    [
        *[(Journal, "_write", half, 1, 0), (Journal, "_write", half, 4, 4)],
        *[(os, "replace", renamed, 1, 9), (os, "replace", renamed, 3, 9)],
    ],
)
def test_killed_at_any_instant_it_goes_on_and_ends_with_the_same_bytes_and_words(
    folder, translate, place, tmp_path_factory, owner, name, harm, n, n_kept
):
    def body():
        setattr(owner, name, at(n, harm, getattr(owner, name)))
        return main([folder, *flags_of(place)])

    talk = tmp_path_factory.mktemp("talk") / "talk"
    ended = Child(body, talk, {"TOKENIZERS_PARALLELISM": "false"}).go().wait()
    assert ended.code == 137, ended.output
    _, err = translate(*flags_of(place))
    found = files_of(place)
    assert f"has the translations of {n_kept} lines: resuming after them" in err or not n_kept
    _, wanted = translate(*flags_of(place), "--overwrite")
    assert found == files_of(place)
    assert [line for line in err.split("\n") if "out.journal" not in line] == wanted.split("\n")


@pytest.mark.parametrize("changed", ["input", "option", "output"])
def test_an_output_that_a_journal_does_not_vouch_for_is_not_replaced(translate, place, monkeypatch, changed):
    flags = ["-i", place / "in", "-o", place / "out", *WINDOW]
    with monkeypatch.context() as patch:  # killed before it could delete the journal
        patch.setattr(Path, "unlink", lambda *_: 1 / 0)
        translate(*flags, code=1)
    if changed == "output":
        (place / "out").write_bytes(b"by hand\n")
    if changed == "input":
        (place / "in").write_bytes(SOURCE.replace(b"May", b"June"))
    before = (place / "out").read_bytes()
    _, err = translate(*flags, *(["--decode.beam", 2] if changed == "option" else []), code=2)
    assert "out exists already" in err and (place / "out").read_bytes() == before


def test_a_full_disk_costs_nothing_but_time(translate, place):
    wanted, _ = translate(*WINDOW, source=SOURCE)
    with full_disk(1_500):
        _, err = translate("-i", place / "in", "-o", place / "out", *WINDOW, code=1)
    assert "out.journal: File too large" in err and not (place / "out").exists()
    translate("-i", place / "in", "-o", place / "out", *WINDOW)
    assert lines_of(place) == wanted


@pytest.mark.parametrize("given", [[], ["--score", "in"]])
def test_after_a_signal_the_model_is_asked_only_for_what_is_missing(translate, place, meanwhile, monkeypatch, given):
    monkeypatch.chdir(place)
    flags = ("-o", "out", *given, *WINDOW)
    meanwhile(3, lambda: os.kill(os.getpid(), signal.SIGTERM))
    _, err = translate(*flags, source=SOURCE, code=143)  # from stdin as well
    assert "out.journal keeps the translations of 4 lines; the same command resumes" in err
    assert sorted(files_of(place)) == ["in", "out.journal", "ref"]
    asked, real = [], LineTranslator.records

    def noted(model, lines, *rest):
        asked.extend(line.request.source for line in lines)
        return real(model, lines, *rest)

    monkeypatch.setattr(LineTranslator, "records", noted)
    translate(*flags, source=SOURCE)
    assert asked == LINES[4:]
    wanted, _ = translate(*given, *WINDOW, source=SOURCE)
    assert lines_of(place) == wanted


@pytest.mark.parametrize(
    ("changed", "is_used"),
    [
        (["--decode.beam", "2"], False),
        (["--checkpoint", "model"], True),  # the same weights
        (["--format", "tsv"], False),
        (["--alignments", "links"], False),
    ],
)
def test_other_options_begin_anew_and_say_so(translate, place, meanwhile, monkeypatch, changed, is_used):
    monkeypatch.chdir(place)
    meanwhile(3)
    translate("-i", "in", "-o", "out", *WINDOW, code=1)
    _, err = translate("-i", "in", "-o", "out", *WINDOW, *changed)
    assert ("has the translations of 4 lines" in err) == is_used
    assert (place / "out.journal.unused").exists() == ("written with another" in err) == (not is_used)


@pytest.mark.parametrize("how", ["input", "phrases"])
def test_lines_that_changed_are_translated_anew_from_there(translate, place, meanwhile, how):
    flags, changed = ["-i", place / "in", *WINDOW], [*LINES[:3], "something else", *LINES[4:]]
    meanwhile(4)
    translate(*flags, "-o", place / "out", code=1)
    if how == "input":
        (place / "in").write_text("".join(f"{line}\n" for line in changed), "utf-8")
    else:
        flags += ["--keep", "May"]
    _, err = translate(*flags, "-o", place / "out")
    assert f"the input differs after line {2 if how == 'input' else 4}" in err
    wanted, _ = translate(*flags)
    assert lines_of(place) == wanted


def test_an_input_that_is_written_to_meanwhile_is_refused(translate, place, meanwhile):
    meanwhile(3, lambda: (place / "in").write_bytes(SOURCE.replace(b"ship", b"vessel")))
    _, err = translate("-i", place / "in", "-o", place / "out", *WINDOW, code=2)
    assert "in: changed while it was read" in err and not (place / "out").exists()


@pytest.mark.parametrize("name", ["out", "links"])
def test_a_file_that_came_meanwhile_is_not_replaced(translate, place, meanwhile, name):
    flags = ("-o", place / "out", "--alignments", place / "links", *WINDOW)
    meanwhile(3, lambda: (place / name).write_bytes(b"mine"))
    _, err = translate(*flags, source=SOURCE, code=2)
    assert f"{name} exists already. Move it away and give the command again, which resumes from" in err
    assert sorted(files_of(place)) == sorted(["in", "ref", name, "out.journal"])
    assert (place / name).read_bytes() == b"mine"
    (place / name).unlink()
    _, err = translate(*flags, source=SOURCE)
    assert f"has the translations of {len(LINES)} lines: resuming" in err
    assert sorted(files_of(place)) == ["in", "links", "out", "ref"]


def test_what_the_report_cannot_do_is_said_when_the_output_is_there(translate, place):
    _, err = translate("-o", place / "out", "--attention", place / "a.png", "--lines", "77", code=2)
    assert "--lines 77" in err and sorted(files_of(place)) == ["in", "out", "ref"]


@pytest.mark.parametrize(("name", "twice"), [("SIGINT", True), ("SIGTERM", False)])
def test_lines_in_work_are_finished_and_a_second_signal_does_not_wait(translate, meanwhile, name, twice):
    wanted, _ = translate("--decode.window", 1)
    number = getattr(signal, name)
    handler = signal.getsignal(number)

    def signalled():
        for _ in range(1 + twice):
            os.kill(os.getpid(), number)
            time.sleep(0.01)

    meanwhile(2, signalled)
    assert translate("--decode.window", 1, code=128 + number)[0] == wanted[: 1 if twice else 2]
    assert signal.getsignal(number) == handler


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
    assert ended.output.count("\n") == 1 and not ended.survivors  # the answer, and no word


def test_a_reader_that_goes_away_ends_it_without_a_word(folder, tmp_path):
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
